"""Scan residuals: elements of a loop's state of which each iteration writes a slice of its own.

The iterations write each slice once. A slice that is read after the loop, at an index in range, is
therefore what one iteration wrote, and has the number of the written value with that iteration in
place of the counter (`loop_iterations`). So a slice of a residual, and the same value computed
again from the state at the same iteration, have one number.
"""

from __future__ import annotations

from hlo.shapes import Shape, ShapeIndex
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.integers import Form
from olla_xla.check.executable.loop_iterations import follow
from olla_xla.check.executable.numbering import Numbers, hashed
from olla_xla.check.executable.records import Loop, ScanResidual
from olla_xla.check.executable.slice_shapes import is_leading, one_of, sliced_axis

__all__ = ["slice_of_residual", "residual_of"]

_PROBE = hashed(b"any array")


def residual_of(
    numbering: ElementNumbering, loop: Loop, i: ShapeIndex, root: bytes, names: Numbers
) -> ScanResidual | None:
    """Element `i` of a loop's state as a scan residual; None if it is not one.

    Args:
      numbering: of the module. loop: the loop. root: number of the element after an iteration.
      names: numbers of the state as the iteration begins.
    """
    update = numbering.updates.get(numbering.first(root))
    if update is None or numbering.first(update.numbers[0]) != names[i]:
        return None
    axis = sliced_axis(update.part, update.shape)
    if axis is None or update.shape.dimensions[axis] != loop.iterations:
        return None
    cast = numbering.bitcasts.get(update.numbers[0])
    if not _is_put_back(numbering, update.numbers[0], root):
        return None
    seen = None if cast is None else (cast[1], cast[2])
    if seen is not None and axis == 0 and all(is_leading(shape, loop.iterations) for shape in seen):
        seen = None
    at = numbering.integers.whole(update.numbers[2 + axis])
    if at is None or at.symbol != names[loop.counter]:
        return None
    if (at.factor, at.offset) not in ((1, 0), (-1, loop.iterations - 1)):
        return None
    return ScanResidual(loop, i, axis, at.factor, at.offset, seen)


def _is_put_back(numbering: ElementNumbering, taken: bytes, result: bytes) -> bool:
    """Whether a bitcast before an update is undone after it."""
    before, after = (numbering.bitcasts.get(n) for n in (taken, result))
    if before is None or after is None:
        return before is after
    probe = numbering.cast(_PROBE, *before[1:])
    return numbering.cast(probe, *after[1:]) == _PROBE


def slice_of_residual(
    numbering: ElementNumbering, number: bytes, at: bytes, shape: Shape, part: Shape
) -> bytes | None:
    """The number of a slice of a scan residual as its loop wrote it; None if it is not one.

    A number stands for an array in any layout, so layouts matter to bitcasts alone.

    Args:
      numbering: of the module. number: what is sliced.
      at: number of the index along the dimension that counts slices.
      shape: of what is sliced. part: of the slice.
    """
    axis = sliced_axis(part, shape)
    if axis is None:
        return None
    iterations = shape.dimensions[axis]
    residual = numbering.residuals.get(numbering.first(number))
    if residual is not None and (number not in numbering.bitcasts or residual.cast is not None):
        same = (residual.loop.iterations, residual.axis) == (iterations, axis)
        same &= _is_seen(numbering, number, residual)
        return _written(numbering, residual, at) if same else None
    if axis != 0:
        return None  # the rest handles dimension 0 only
    if (cast := numbering.bitcasts.get(number)) is not None:
        first, old, new = cast
        if not is_leading(old, iterations) or not is_leading(new, iterations):
            return None
        inner = slice_of_residual(numbering, first, at, old, one_of(old, 0))
        return None if inner is None else numbering.cast(inner, one_of(old, 0), one_of(new, 0))
    return None


def _is_seen(numbering: ElementNumbering, number: bytes, residual: ScanResidual) -> bool:
    """Whether a number is that of a scan residual in the shape in which its slices were written."""
    if residual.cast is None:
        return number not in numbering.bitcasts
    if number not in numbering.bitcasts:
        return False
    _, *cast = numbering.bitcasts[number]
    return numbering.cast(_PROBE, *cast) == numbering.cast(_PROBE, *residual.cast)


def _written(numbering: ElementNumbering, residual: ScanResidual, at: bytes) -> bytes | None:
    """The number of the value written to a scan residual at an index; None if not known."""
    loop, form = residual.loop, numbering.integers.whole(at)
    if form is None or not numbering.integers.within(at, loop.iterations):
        return None
    factor = residual.factor  # its own inverse
    there = Form(form.symbol, factor * form.factor, factor * (form.offset - residual.offset))
    iteration = numbering.integer(there, loop.type, whole=True)
    root = follow(numbering, loop, iteration, there)
    if root is None:
        return None
    number = root[residual.index]
    first, old, new = numbering.bitcasts.get(number, (number, None, None))
    value = numbering.updates[first].numbers[1]
    if old is None or new is None or residual.cast is not None:
        return value
    return numbering.cast(value, one_of(old, 0), one_of(new, 0))
