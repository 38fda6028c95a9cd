"""Numbers of transposes, and of slices of them.

A slice of one element along one digit of the position in a row (`element_order`) is a row without
that digit.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo.shapes import Shape
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.element_order import (
    as_row,
    digits,
    joined,
    permuted,
    row_major,
    within,
)
from olla_xla.check.executable.numbering import hashed, named
from olla_xla.check.executable.records import Steps
from olla_xla.check.executable.slice_shapes import one_of

__all__ = ["reordered", "same_digit", "slice_of_transposed", "transposed"]

_PART = hashed(b"part of a row")


def transposed(
    numbering: ElementNumbering,
    operand: bytes,
    before: Shape,
    dimensions: Sequence[int],
    after: Shape,
) -> bytes:
    """The number of a transpose's result.

    Args:
      numbering: of the module. operand: number of what is transposed. before: its shape.
      dimensions: of the operand, in the order of the result's. after: shape of the result.
    """
    return numbering.arranged(operand, before, permuted(before, dimensions), row_major(after))


def reordered(numbering: ElementNumbering, row: bytes, flat: Shape, steps: Steps) -> bytes:
    """The number of a row's elements in the order of steps over it."""
    return numbering.arranged(row, flat, steps, flat)


def slice_of_transposed(
    numbering: ElementNumbering, number: bytes, at: bytes, axis: int
) -> bytes | None:
    """The number of one slice of a transpose's result; None where `number` is not one.

    Args:
      numbering: of the module. number: of the array. at: of the index. axis: dimension sliced.
    """
    if number not in numbering.bitcasts:
        return None
    row, flat, shape = numbering.bitcasts[number]
    if row not in numbering.transposes or shape.element_type != flat.element_type:
        return None
    source, _, steps = numbering.transposes[row]
    order = tuple(reversed(shape.minor_to_major))
    found = {k: within(steps, *digit) for k, digit in enumerate(digits(shape))}
    cut = found.pop(axis)
    if cut is None or len(cut) != 1 or cut[0][0] != shape.dimensions[axis]:
        return None
    count, distance = cut[0]
    left: list[tuple[int, int]] = []
    for k in order:
        if k == axis:
            continue
        inner = found[k]
        if inner is None:
            return None
        left += [(n, d if d < distance else d // count) for n, d in inner]
    part = as_row(one_of(shape, axis))
    taken = _slice_of_row(numbering, source, at, flat, (count, distance))
    result = reordered(numbering, taken, part, joined(left))
    return numbering.cast(result, part, one_of(shape, axis))


def same_digit(old: Shape, new: Shape, axis: int) -> int | None:
    """The dimension of an array that is dimension `axis` of its bitcast; None if none is."""
    digit = digits(new)[axis]
    if old.element_bits != new.element_bits or new.element_bits < 8 or digit[0] == 1:
        return None
    return _dimension(old, digit)


def _dimension(shape: Shape, digit: tuple[int, int]) -> int | None:
    """The dimension with an (extent, distance) in memory; None if there is none."""
    return next((k for k, other in enumerate(digits(shape)) if other == digit), None)


def _slice_of_row(
    numbering: ElementNumbering, row: bytes, at: bytes, flat: Shape, digit: tuple[int, int]
) -> bytes:
    """The number of a row's elements whose digit equals an index: a row without that digit.

    Args:
      numbering: of the module. row: its number. at: number of the index. flat: shape of the row.
      digit: (count of its values, distance between two in elements).
    """
    if row in numbering.bitcasts:
        first, old, _ = numbering.bitcasts[row]
        axis = _dimension(old, digit)
        if axis is not None and old.element_type == flat.element_type:
            part = one_of(old, axis)
            return numbering.cast(numbering.taken(first, at, old, axis), part, as_row(part))
    said = (flat.element_type, *flat.dimensions, *digit)
    result = hashed(b"".join((_PART, named(said), row, at)))
    numbering.note_moved(row, result)
    return result
