"""What transposes make of arrays, and what a slice of that is.

A number stands for an array whatever its layout is. Here an array is a row: its elements one after
the other, those of the first dimension outermost. A transpose takes a row's elements in another
order, which is said as steps over it: (count, distance), the outermost first, each a digit of the
place in the row. Steps of one element are none, and two that follow each other as one are one, so
equal steps over one row are the same elements in the same order. A slice of one element along one
digit is a row without that digit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from hlo.shapes import Shape
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.numbering import hashed, named
from olla_xla.check.executable.records import Steps
from olla_xla.check.executable.slice_shapes import one_of

__all__ = ["same_digit", "slice_of_transposed", "transposed", "reordered"]

_REORDERED, _PART = hashed(b"turn"), hashed(b"part of a row")


def transposed(
    numbering: ElementNumbering,
    operand: bytes,
    before: Shape,
    dimensions: Sequence[int],
    after: Shape,
) -> bytes:
    """The number of what a transpose gives.

    Args:
      numbering: of the module. operand: number of what is transposed. before: its shape.
      dimensions: of the operand, in the order of the result's. after: shape of the result.
    """
    row = numbering.cast(operand, _row_major(before), _row(before))
    digits = _digits(_row_major(before))
    result = reordered(numbering, row, _row(before), _joined(digits[k] for k in dimensions))
    return numbering.cast(result, _row(after), _row_major(after))


def slice_of_transposed(
    numbering: ElementNumbering, number: bytes, at: bytes, axis: int
) -> bytes | None:
    """The number of one slice of what a transpose gave; None where the number is no such thing.

    Args:
      numbering: of the module. number: of the array. at: of the place. axis: along which.
    """
    if number not in numbering.bitcasts:
        return None
    row, flat, shape = numbering.bitcasts[number]
    if row not in numbering.transposes or shape.element_type != flat.element_type:
        return None
    source, _, steps = numbering.transposes[row]
    order = tuple(reversed(shape.minor_to_major))
    found = {k: _within(steps, *digit) for k, digit in enumerate(_digits(shape))}
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
    part = _row(one_of(shape, axis))
    taken = _slice_of_row(numbering, source, at, flat, (count, distance))
    result = reordered(numbering, taken, part, _joined(left))
    return numbering.cast(result, part, one_of(shape, axis))


def same_digit(old: Shape, new: Shape, axis: int) -> int | None:
    """The dimension of an array that is the dimension `axis` of a bitcast of it."""
    digit = _digits(new)[axis]
    if old.element_bits != new.element_bits or new.element_bits < 8 or digit[0] == 1:
        return None
    return _dimension(old, digit)


def _dimension(shape: Shape, digit: tuple[int, int]) -> int | None:
    """The dimension of an array that is a digit of the places where its elements lie."""
    return next((k for k, other in enumerate(_digits(shape)) if other == digit), None)


def _slice_of_row(
    numbering: ElementNumbering, row: bytes, at: bytes, flat: Shape, digit: tuple[int, int]
) -> bytes:
    """A row without a digit, where that is what an index says.

    Args:
      numbering: of the module. row: number of it. at: of the index. flat: shape of the row.
      digit: (how many values it has, distance of two).
    """
    if row in numbering.bitcasts:
        first, old, _ = numbering.bitcasts[row]
        axis = _dimension(old, digit)
        if axis is not None and old.element_type == flat.element_type:
            part = one_of(old, axis)
            return numbering.cast(numbering.taken(first, at, old, axis), part, _row(part))
    said = (flat.element_type, *flat.dimensions, *digit)
    result = hashed(b"".join((_PART, named(said), row, at)))
    numbering.note_moved(row, result)
    return result


def reordered(numbering: ElementNumbering, row: bytes, flat: Shape, steps: Steps) -> bytes:
    """A row's elements in the order of steps over it."""
    if row in numbering.transposes:
        first, _, inner = numbering.transposes[row]
        parts = [_within(inner, *step) for step in steps]
        if all(part is not None for part in parts):
            row = first
            steps = _joined(step for part in parts for step in part or ())
    if steps in ((), ((flat.dimensions[0], 1),)):
        return row
    said = (flat.element_type, flat.element_bits, *(n for step in steps for n in step))
    result = hashed(b"".join((_REORDERED, named(said), row)))
    numbering.transposes[result] = row, flat, steps
    numbering.note_moved(row, result)
    return result


def _within(steps: Steps, count: int, distance: int) -> Steps | None:
    """What a digit of the places in a row is as steps over what the row was taken from.

    Args:
      steps: of the row. count: how many values the digit has. distance: of two in the row.

    Returns:
      The steps; None where the digit's ends divide a step unevenly.
    """
    found: list[tuple[int, int]] = []
    here, end = 1, count * distance
    for many, far in reversed(steps):
        low, high = max(here, distance), min(here * many, end)
        if low < high:
            if low % here or high % low or (here * many) % high:
                return None
            found.append((high // low, far * (low // here)))
        here *= many
    return tuple(reversed(found))


def _joined(steps: Iterable[tuple[int, int]]) -> Steps:
    """Steps without those of one element, such as go on where the next ones end as one."""
    found: list[tuple[int, int]] = []
    for count, distance in steps:
        if count == 1:
            continue
        if found and found[-1][1] == count * distance:
            found[-1] = found[-1][0] * count, distance
        else:
            found.append((count, distance))
    return tuple(found)


def _digits(shape: Shape) -> list[tuple[int, int]]:
    """(extent, distance in elements) of each dimension of an array as it lies in memory."""
    distance, found = 1, dict[int, tuple[int, int]]()
    for k in shape.minor_to_major:
        found[k] = shape.dimensions[k], distance
        distance *= shape.dimensions[k]
    return [found[k] for k in range(len(shape.dimensions))]


def _row(shape: Shape) -> Shape:
    """The shape of an array's elements as a row."""
    return dataclasses.replace(
        shape, dimensions=(shape.num_elements,), minor_to_major=(0,), key=b""
    )


def _row_major(shape: Shape) -> Shape:
    """The shape of an array that lies in memory as a row."""
    order = tuple(reversed(range(len(shape.dimensions))))
    return dataclasses.replace(shape, minor_to_major=order, key=b"")
