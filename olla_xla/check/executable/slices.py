"""The number of one slice of an array, by how the array was made.

A slice of an array that was updated there is the update. One of a scan residual is what the loop
wrote, and one of a broadcast is the operand. One of an array that was moved or converted is the
moved or converted slice, and of two slices along different digits the outer one is taken first, so
that it does not matter which was done first. Any other slice is numbered plainly.
"""

from __future__ import annotations

from hlo.shapes import Shape
from olla_xla.check.executable.checkpoints import slice_of_held
from olla_xla.check.executable.converts import slice_of_converted
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.element_order import as_row, joined, permuted, within, without
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.records import Digit
from olla_xla.check.executable.scan_residuals import slice_of_residual, slice_of_update
from olla_xla.check.executable.slice_shapes import sliced_digit

_SLICE = hashed(b"slice")


def slice_of(
    numbering: ElementNumbering, number: bytes, at: bytes, shape: Shape, digit: Digit
) -> bytes:
    """The number of one slice of an array, as a row.

    Args:
      numbering: of the module. number: of the array. at: of the index. shape: of the array.
      digit: of the position in the array's row that equals the index.
    """
    (count, distance), size = digit, shape.num_elements
    flat = as_row(shape, size // count)
    if count == 1:
        return numbering.arranged(number, shape, permuted(shape), flat)
    if number in numbering.moves:
        move = numbering.moves[number]
        if (found := without(move.steps, size, digit)) is not None:
            row = slice_of(numbering, move.base, at, move.shape, found[0])
            return numbering.arranged(row, flat, found[1], flat)
        others = (size // (count * distance), count * distance), (distance, 1)
        number = numbering.arranged(number, shape, joined((digit, *others)), as_row(shape))
        digit = count, size // count
    cut = number, at, digit
    for rule in (_given, slice_of_update, slice_of_residual, slice_of_converted):
        if (row := rule(numbering, *cut)) is not None:
            return row
    for rule in (_repeated, _cut_before):
        if (row := rule(numbering, *cut, flat)) is not None:
            return row
    kind = hashed(repr((shape.element_type, size, digit)).encode())
    result = hashed(b"".join((_SLICE, kind, number, at)))
    numbering.cuts[result] = cut
    numbering.note_moved(number, result)
    return result


def _given(numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit) -> bytes | None:
    """The number of a slice of a checkpoint array; None where it is not known."""
    if number not in numbering.held:
        return numbering.given.get((number, at, digit))
    return slice_of_held(numbering, numbering.held[number], at, digit)


def _repeated(
    numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit, flat: Shape
) -> bytes | None:
    """The number of a slice that a broadcast repeats, as a row like `flat`; else None."""
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
    """The number of a slice of a slice, the outer of both digits taken first; None for others."""
    if number not in numbering.cuts:
        return None
    array, index, (count, distance) = numbering.cuts[number]
    part = flat.num_elements * digit[0]
    found = within(((part // distance, count * distance), (distance, 1)), *digit)
    if found is None or len(found) != 1 or found[0][1] < distance:
        return None
    outer = slice_of(numbering, array, at, as_row(flat, part * count), found[0])
    return slice_of(
        numbering, outer, index, as_row(flat, part * count // digit[0]), (count, distance)
    )
