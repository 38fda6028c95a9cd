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

__all__ = ["reordered", "row_major", "same_digit", "slice_of_transposed", "transposed"]

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
    row = numbering.cast(operand, row_major(before), _row(before))
    digits = _digits(row_major(before))
    result = reordered(numbering, row, _row(before), _joined(digits[k] for k in dimensions))
    return numbering.cast(result, _row(after), row_major(after))


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
    """A row's elements in the order of steps over it.

    Where that is the order in which an array could lie, it is a bitcast of that array: what is
    seen as it lies and transposed, and what is transposed by its layout alone, are one number.
    """
    if row in numbering.transposes:
        first, _, inner = numbering.transposes[row]
        row, steps = _composed(first, inner, row, steps)
    first, old, _ = numbering.bitcasts.get(row, (row, flat, flat))
    if (old.element_type, old.element_bits) == (flat.element_type, flat.element_bits):
        major = row_major(old)
        plain = numbering.cast(first, major, flat)
        row, steps = _composed(plain, _lying(old), row, steps)
        if row == plain and (layout := _layout(major, steps)) is not None:
            return numbering.cast(first, layout, flat)
    if steps in ((), ((flat.dimensions[0], 1),)):
        return row
    said = (flat.element_type, flat.element_bits, *(n for step in steps for n in step))
    result = hashed(b"".join((_REORDERED, named(said), row)))
    numbering.transposes[result] = row, flat, steps
    numbering.note_moved(row, result)
    return result


def _composed(first: bytes, inner: Steps, row: bytes, steps: Steps) -> tuple[bytes, Steps]:
    """A row and steps over it, the row being steps `inner` over `first`; as one where they can."""
    parts = [_within(inner, *step) for step in steps]
    if any(part is None for part in parts):
        return row, steps
    return first, _joined(step for part in parts for step in part or ())


def _lying(shape: Shape) -> Steps:
    """The elements of an array as they lie in memory, as steps over its row."""
    digits = _digits(row_major(shape))
    return _joined(digits[k] for k in reversed(shape.minor_to_major))


def _layout(shape: Shape, steps: Steps) -> Shape | None:
    """An array with the layout by which its elements lie in the order of steps, if there is one.

    Args:
      shape: of the array, which lies as a row. steps: over the row.
    """
    left = {k: digit for k, digit in enumerate(_digits(shape)) if digit[0] != 1}
    order = [k for k in range(len(shape.dimensions)) if k not in left]
    for count, distance in steps:
        end = count * distance
        while end > distance:
            k = next((k for k, (n, far) in left.items() if n * far == end), None)
            if k is None or left[k][1] < distance:
                return None
            end = left.pop(k)[1]
            order.append(k)
    if left:
        return None
    return dataclasses.replace(shape, minor_to_major=tuple(reversed(order)), key=b"")


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


def row_major(shape: Shape) -> Shape:
    """The shape of an array that lies in memory as a row."""
    order = tuple(reversed(range(len(shape.dimensions))))
    return dataclasses.replace(shape, minor_to_major=order, key=b"")
