"""The number of one slice of an array, by how the array was made.

A slice of an array that was updated there is the update, and one at another constant place is the
array's before the update. One of a broadcast is the operand. One of an array that was moved or
converted is the moved or converted slice, and of two slices along different digits the outer one is
taken first, so that it does not matter which was done first. Any other slice is numbered plainly.
XLA clamps the indices of an update and of a slice alike.
"""

from __future__ import annotations

import functools

from hlo.shapes import Shape, cut_dimensions
from olla_xla.check.executable.converts import slice_of_converted
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.element_order import (
    as_row,
    digits,
    joined,
    of_dimensions,
    permuted,
    row_major,
    within,
    without,
)
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.records import Digit

_SLICE, _PART = hashed(b"slice"), hashed(b"part")


def slice_of(
    numbering: ElementNumbering, number: bytes, at: bytes, shape: Shape, digit: Digit
) -> bytes:
    """The value number of one slice of an array, flattened in row-major order.

    `number`, `at`: those of the array and the index. `shape`: of the array. `digit`: (count, stride
    in elements) of the sliced dimension, in row-major order.
    """
    (count, distance), size = digit, shape.num_elements
    flat = as_row(shape, size // count)
    if count == 1:
        return numbering.arranged(number, shape, permuted(shape), flat)
    if number in numbering.moves:
        move = numbering.moves[number]
        if (split := without(move.steps, size, digit)) is not None:
            row = slice_of(numbering, move.base, at, move.shape, split[0])
            return numbering.arranged(row, flat, split[1], flat)
        others = (size // (count * distance), count * distance), (distance, 1)
        number = numbering.arranged(number, shape, joined((digit, *others)), as_row(shape))
        digit, shape = (count, size // count), as_row(shape)
    place = numbering.integers.clamped(at, count)
    if place is not None:
        at = numbering.integers.number(place)
        row, array = numbering.written.at(number, digit, place)
        if row is not None:
            return row
        if array != number:
            return slice_of(numbering, array, at, shape, digit)
    cut = number, at, digit
    for rule in (_updated, slice_of_converted):
        if (row := rule(numbering, *cut)) is not None:
            return row
    for rule in (_repeated, _cut_before):
        if (row := rule(numbering, *cut, flat)) is not None:
            return row
    result = numbering.term(_SLICE, _kind(shape.element_type, size, digit), number, at)
    numbering.note_term(
        result, lambda it, of, *cut: it.taken(*cut, *of), (shape, digit), number, at
    )
    numbering.cuts[result] = cut
    numbering.note_moved(number, result)
    return result


@functools.lru_cache(maxsize=4096)
def part_kind(whole: Shape, part: Shape) -> bytes:
    """A hash of an array's element type, its extents and those of a part of it."""
    return hashed(repr((_PART, whole.element_type, whole.dimensions, part.dimensions)).encode())


def without_ones(whole: Shape, part: Shape) -> tuple[Shape, Shape]:
    """(whole, part): row-major shapes, without dimensions along which `whole` has extent 1."""
    left = [k for k, extent in enumerate(whole.dimensions) if extent != 1]
    new, small = (of_dimensions(s, [s.dimensions[k] for k in left]) for s in (whole, part))
    return new, small


def without_axis(whole: Shape, part: Shape, axis: int) -> tuple[Shape, Shape, list[int]]:
    """(whole, part, dimensions left): both shapes, row-major, without dimension `axis`."""
    others = [k for k in range(len(whole.dimensions)) if k != axis]
    inner, small = (of_dimensions(s, [s.dimensions[k] for k in others]) for s in (whole, part))
    return inner, small, others


@functools.lru_cache(maxsize=4096)
def _kind(element_type: int, size: int, digit: Digit) -> bytes:
    """A hash of an array's element type and size, and (count, stride) of its sliced dimension."""
    return hashed(repr((element_type, size, digit)).encode())


def sliced_axis(part: Shape, shape: Shape) -> int | None:
    """The dimension along which a part is one slice of an array: one element thick along it, and
    whole along all others. None if it is not one, or its elements are smaller than a byte.

    A part that is the whole array is a slice along dimension 0, if that has extent 1.
    """
    if part.element_type != shape.element_type or shape.element_bits < 8 or not shape.dimensions:
        return None
    axes = cut_dimensions(part.dimensions, shape.dimensions)
    axis = axes[0] if axes else 0
    return axis if len(axes) < 2 and part.dimensions[axis] == 1 else None


def sliced_digit(shape: Shape, axis: int) -> Digit:
    """Dimension `axis` of an array as (extent, stride in elements), in row-major order."""
    return digits(row_major(shape))[axis]


def _updated(numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit) -> bytes | None:
    """Value number of the slice of array `number` at index `at` if its last update wrote it.

    None if there is no such update. `digit`: (count, stride) of the sliced dimension.
    """
    update = numbering.updates.get(number)
    if update is None or update.digit != digit or update.numbers[2] != at:
        return None
    return update.numbers[1]


def _repeated(
    numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit, flat: Shape
) -> bytes | None:
    """Value number of a slice of broadcast `number` along the one dimension it added; or None."""
    if number not in numbering.repeated:
        return None
    value, dimensions, old, new = numbering.repeated[number]
    every = range(len(new.dimensions))
    axis = next((k for k in every if sliced_digit(new, k) == digit), None)
    if dimensions != tuple(k for k in every if k != axis):
        return None
    return numbering.arranged(value, old, permuted(old), flat)


def _cut_before(
    numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit, flat: Shape
) -> bytes | None:
    """Value number of a slice of the slice `number`, if that was along an inner dimension.

    The outer dimension is then sliced first, so that it does not matter which was. Else None.
    """
    if number not in numbering.cuts:
        return None
    array, index, (count, distance) = numbering.cuts[number]
    part = flat.num_elements * digit[0]
    steps = within(((part // distance, count * distance), (distance, 1)), *digit)
    if steps is None or len(steps) != 1 or steps[0][1] < distance:
        return None
    outer = slice_of(numbering, array, at, as_row(flat, part * count), steps[0])
    return slice_of(
        numbering, outer, index, as_row(flat, part * count // digit[0]), (count, distance)
    )
