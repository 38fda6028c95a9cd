"""Records of how values were made, kept by the value's number (`element_numbering`).

They are plain data. The file that makes a record also has the rules for it: `element_order` for
steps, `converts`, and `iterations` for terms.
"""

from __future__ import annotations

import bisect
import dataclasses
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
        """A record of an update of one slice; `numbers`: of array, flattened slice, index."""
        part = as_row(shape, shape.num_elements // digit[0])
        return cls(sliced(shape, digit), numbers, shape, part, digit)


class Concatenation(NamedTuple):
    """A record of a concatenate: its operands, and where each begins in the result.

    Attributes:
      made: hash of its attributes. numbers: value numbers of its operands.
      dimension: along which. starts: of each operand in it; and the end of the last one.
      slices: if each operand is one slice: the result's shape, theirs, and (count, stride) of the
        dimension; else None.
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
        the one operand, in which several numbers are joined.
      given: its argument that is no number. operands: the numbers.
      is_later: whether the number is a placeholder, which `again` replaces in each iteration.
    """

    again: Callable[..., Any] | None
    given: Any
    operands: tuple[bytes, ...]
    is_later: bool = False


@functools.lru_cache(maxsize=4096)
def sliced(shape: Shape, digit: Digit) -> bytes:
    """A hash of an array's type and size, and of (count, stride) of its sliced dimension."""
    row = shape.element_type, shape.element_bits, shape.num_elements, digit
    return hashed(b"update" + repr(row).encode())


# Which slice of an array was written last, for arrays that are updated slice by slice.
#
# An array and those that it was updated from are one history, in which each has a version. So the
# slice that an array has at a place is found in time that does not grow with the updates. Once all
# slices were written, nothing of the array before them is left, and a new history begins.


_Writes = tuple[list[int], list[bytes]]
"""Versions that wrote a slice, ascending, and what each wrote."""


@dataclasses.dataclass
class _History:
    """The updates of an array, slice by slice: each makes a new version of it, from 1 on.

    Attributes:
      base: number of the array before them. digit: (count, stride) of the sliced dimension.
      latest: the newest version. writes: slice index -> versions that wrote it, and what.
    """

    base: bytes
    digit: Digit
    latest: int = 0
    writes: dict[int, _Writes] = dataclasses.field(default_factory=dict)

    def at(self, place: int, version: int) -> bytes | None:
        """Value number of the slice at `place` in `version`; None if not written until then."""
        versions, rows = self.writes.get(place, ((), ()))
        count = bisect.bisect_right(versions, version)
        return rows[count - 1] if count else None

    def until(self, version: int) -> _History:
        """A separate copy of this history up to `version`, with each slice's last write alone."""
        kept = {place: self.at(place, version) for place in self.writes}
        writes = {place: ([version], [row]) for place, row in kept.items() if row is not None}
        return _History(self.base, self.digit, version, writes)


class WrittenSlices:
    """For arrays that are updated at constant indices: what was last written at each index."""

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[_History, int]] = {}
        self._all: dict[bytes, list[bytes]] = {}
        self._complete: set[bytes] = set()

    def note(
        self, number: bytes, array: bytes, digit: Digit, place: int, row: bytes
    ) -> list[bytes] | None:
        """Records that array `number` is array `array` with the slice at index `place` replaced.

        Returns all slices in their order, if this was the last one not yet written; else None.

        `number`, `array`, `row`: value numbers of both arrays and of the new slice, flattened.
        `digit`: (count, stride in elements) of the sliced dimension.
        """
        if number in self._found:
            return self._all.get(number)
        history, version = self._found.get(array, (None, 0))
        if history is None or history.digit != digit or array in self._complete:
            history, version = _History(array, digit), 0
        elif history.latest > version:
            history = history.until(version)
        history.latest = version + 1
        is_last = place not in history.writes and len(history.writes) + 1 == digit[0]
        versions, rows = history.writes.setdefault(place, ([], []))
        versions.append(version + 1)
        rows.append(row)
        self._found[number] = history, version + 1
        if is_last:
            self._all[number] = [history.writes[k][1][-1] for k in range(digit[0])]
        return self._all.get(number)

    def note_complete(self, number: bytes, digit: Digit, rows: list[bytes]) -> None:
        """Records that array `number` has exactly the slices `rows`; `digit`: (count, stride)."""
        if number not in self._complete:
            writes = {place: ([1], [row]) for place, row in enumerate(rows)}
            self._found[number] = _History(number, digit, 1, writes), 1
            self._complete.add(number)

    def at(self, number: bytes, digit: Digit, place: int) -> tuple[bytes | None, bytes]:
        """What is in the slice at index `place` of the array with value number `number`.

        Returns (its number, or None if it is not known to be written; the number of an array that
        has the same slice there if it was not). `digit`: (count, stride) of the sliced dimension.
        """
        history, version = self._found.get(number, (None, 0))
        if history is None or history.digit != digit:
            return None, number
        return history.at(place, version), history.base
