"""Records of how values were made, kept by the value's number (`element_numbering`).

They are plain data. The file that makes a record also has the rules for it: `element_order` for
steps, `converts`, and `iterations` for terms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from hlo.shapes import Shape
from olla_xla.check.executable.element_order import Digit, Steps, as_row
from olla_xla.check.executable.numbering import hashed

Cut = tuple[bytes, bytes, Digit]
"""A slice: the array's number, the index's number, and the digit of its row that the index is."""


class Move(NamedTuple):
    """An array that has another one's elements, in another order or under other extents.

    Attributes:
      base: value number of the other array. shape: of it. new: shape of the array.
      steps: (count, stride) loops over the other array, both in row-major order.
    """

    base: bytes
    shape: Shape
    steps: Steps
    new: Shape


class Update(NamedTuple):
    """A record of a dynamic-update-slice: which array it updates, with what, and where.

    Attributes:
      made: hash of its attributes. numbers: of its operands: array, update, indices.
      shape: of the whole array. part: of the update.
      digit: if it writes one slice, flattened: (count, stride in elements) of the sliced
        dimension, in row-major order; else None.
    """

    made: bytes
    numbers: tuple[bytes, ...]
    shape: Shape
    part: Shape
    digit: Digit | None = None

    @classmethod
    def of_slice(cls, numbers: tuple[bytes, ...], shape: Shape, digit: Digit) -> Update:
        """An update of one slice; `numbers` of the array, of the flattened slice, of the index."""
        part = as_row(shape, shape.num_elements // digit[0])
        return cls(sliced(shape, digit), numbers, shape, part, digit)


class Concatenation(NamedTuple):
    """A record of a concatenate: its operands, and where each begins in the result.

    Attributes:
      made: hash of its attributes. numbers: value numbers of its operands.
      dimension: along which. starts: of each operand in it; and the end of the last one.
      slices: if each operand is one slice: the result's shape, theirs, and the digit that counts
        them; else None.
    """

    made: bytes
    numbers: tuple[bytes, ...]
    dimension: int
    starts: tuple[int, ...]
    slices: tuple[Shape, Shape, Digit] | None = None


class Rounded(NamedTuple):
    """A convert to a type that is not wider, which may round.

    Attributes:
      code: hash of the code of the fusion that computes it; b"" inside it and outside of any.
      operand: number of what is converted. old: its shape. new: shape of the result.
    """

    code: bytes
    operand: bytes
    old: Shape
    new: Shape


class Term(NamedTuple):
    """A record of how a value number was made from others, to compute it for other operands.

    Attributes:
      again: gives the number: `again(numbering, given, *operands)`; None where it is the hash of
        the one operand, which is a list of numbers.
      given: its argument that is no number. operands: the numbers.
      is_later: whether the number is a placeholder, which `again` replaces in each iteration.
    """

    again: Callable[..., Any] | None
    given: Any
    operands: tuple[bytes, ...]
    is_later: bool = False


@functools.lru_cache(maxsize=4096)
def sliced(shape: Shape, digit: Digit) -> bytes:
    """A number for the kind of an update of one slice, and of an array that is its slices."""
    row = shape.element_type, shape.element_bits, shape.num_elements, digit
    return hashed(b"update" + repr(row).encode())
