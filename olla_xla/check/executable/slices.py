"""The number of one slice of an array, by how the array was made.

A slice of an array that was updated there is the update. One of a scan residual is what the loop
wrote, and one of a broadcast is the operand. One of an array that was moved or converted is the
moved or converted slice, so that it does not matter which was done first. Any other slice is
numbered plainly.
"""

from __future__ import annotations

from hlo.shapes import Shape
from olla_xla.check.executable.checkpoints import slice_of_held
from olla_xla.check.executable.converts import slice_of_converted
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.numbering import hashed, named
from olla_xla.check.executable.scan_residuals import slice_of_residual
from olla_xla.check.executable.slice_shapes import is_leading, one_of, sliced_axis
from olla_xla.check.executable.transposes import same_digit, slice_of_transposed

__all__ = ["given_slice", "slice_of"]

_SLICE = hashed(b"slice")


def given_slice(
    numbering: ElementNumbering, number: bytes, at: bytes, axis: int, part: Shape
) -> bytes | None:
    """The number of a slice of a checkpoint array; None where it is not known.

    Args:
      numbering: of the module. number: of the array. at: of the index. axis: dimension sliced.
      part: shape of the slice.
    """
    if axis or number not in numbering.held:
        return numbering.given.get((number, at))
    return slice_of_held(numbering, numbering.held[number], at, part)


def slice_of(
    numbering: ElementNumbering, number: bytes, at: bytes, shape: Shape, axis: int
) -> bytes:
    """The number of one slice of an array.

    Args:
      numbering: of the module. number: of the array. at: of the index. shape: of the array.
      axis: dimension sliced.
    """
    part = one_of(shape, axis)
    if (held := _updated_there(numbering, number, at, shape, part)) is not None:
        return held
    if (found := slice_of_residual(numbering, number, at, shape, part)) is not None:
        return found
    if (found := slice_of_transposed(numbering, number, at, axis)) is not None:
        return found
    if (found := slice_of_converted(numbering, number, at, axis)) is not None:
        return found
    if number in numbering.bitcasts:
        first, old, new = numbering.bitcasts[number]
        if (theirs := same_digit(old, new, axis)) is not None:
            inner = slice_of(numbering, first, at, old, theirs)
            return numbering.cast(inner, one_of(old, theirs), one_of(new, axis))
    kind = named((shape.element_type, axis, *shape.dimensions))
    result = hashed(b"".join((_SLICE, kind, number, at)))
    if axis == 0:
        numbering.cuts[result] = number, at
    numbering.note_moved(number, result)
    return result


def _updated_there(
    numbering: ElementNumbering, number: bytes, at: bytes, shape: Shape, part: Shape
) -> bytes | None:
    """The number of a slice that was just updated, or that a broadcast repeats; else None.

    Args:
      numbering: of the module. number: of the array.
      at: of the index, which XLA clamps alike for update and slice.
      shape: of the array. part: of the slice.
    """
    axis = sliced_axis(part, shape)
    if axis is None:
        return None
    if (update := numbering.updates.get(number)) is not None:
        same = _is_one_place(numbering, update.numbers[2 + axis], at)
        same &= numbering.shape(update.part) == numbering.shape(part)
        return update.numbers[1] if same else None
    if (repeated := numbering.repeated.get(number)) is not None:
        value, dimensions, old = repeated
        others = tuple(k for k in range(len(shape.dimensions)) if k != axis)
        return numbering.cast(value, old, part) if dimensions == others else None
    first, old, new = numbering.bitcasts.get(number, (number, shape, shape))
    count = shape.dimensions[0]
    if first == number or axis or not is_leading(old, count) or not is_leading(new, count):
        return None
    inner = _updated_there(numbering, first, at, old, one_of(old, 0))
    return None if inner is None else numbering.cast(inner, one_of(old, 0), one_of(new, 0))


def _is_one_place(numbering: ElementNumbering, one: bytes, other: bytes) -> bool:
    """Whether two indices are equal, whatever their types."""
    left, right = numbering.integers.whole(one), numbering.integers.whole(other)
    return one == other or (left is not None and left == right)
