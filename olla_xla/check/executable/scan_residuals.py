"""Scan residuals: elements of a loop's state of which each iteration writes a slice of its own.

The iterations write each slice once. A slice that is read after the loop, at an index in range, is
therefore what one iteration wrote, and has the number of the written value with that iteration in
place of the counter (`loop_iterations`). So a slice of a residual, and the same value computed
again from the state at the same iteration, have one number.
"""

from __future__ import annotations

from hlo.shapes import ShapeIndex
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.element_order import as_row, permuted, within
from olla_xla.check.executable.integers import Form
from olla_xla.check.executable.loop_iterations import follow
from olla_xla.check.executable.numbering import Numbers
from olla_xla.check.executable.records import Digit, Loop, ScanResidual, Update
from olla_xla.check.executable.slice_shapes import sliced_axis, sliced_digit


def written(
    numbering: ElementNumbering, root: bytes, name: bytes
) -> tuple[Digit, bytes, bytes] | None:
    """What an update writes into an array; None if `root` is no update of one slice of `name`.

    The array may be moved before the update, if that is undone after it.

    Returns:
      The digit of the position in the array's row that counts slices, the index's number, and that
      of the slice as a row.
    """
    after = numbering.moves.get(root)
    found = _update(numbering, root)
    if found is None:
        return None
    update, at, digit = found
    array = update.numbers[0]
    if array in numbering.moves:
        cut = within(numbering.moves[array].steps, *digit)
        if cut is None or len(cut) != 1:
            return None
        digit = cut[0]
    if after is not None:
        array = numbering.rearranged(array, after)
    if array != name or digit[0] == 1:
        return None
    return digit, at, numbering.taken(root, at, update.shape, digit)


def value_written(numbering: ElementNumbering, root: bytes, digit: Digit) -> bytes | None:
    """The slice that an update writes, moved as the update is, as a row; None if `root` is none."""
    found = _update(numbering, root)
    return None if found is None else numbering.taken(root, found[1], found[0].shape, digit)


def _update(numbering: ElementNumbering, root: bytes) -> tuple[Update, bytes, Digit] | None:
    """The update of one slice that was moved to `root`, its index and the digit that this is."""
    update = numbering.updates.get(numbering.unmoved(root))
    axis = None if update is None else sliced_axis(update.part, update.shape)
    if update is None or axis is None:
        return None
    return update, update.numbers[2 + axis], sliced_digit(update.shape, axis)


def slice_of_update(
    numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit
) -> bytes | None:
    """The number of a slice that was just updated, as a row; None where `number` is no update.

    XLA clamps the indices of an update and of a slice alike.
    """
    found = None if number in numbering.moves else _update(numbering, number)
    if found is None or found[2] != digit or not _is_one_place(numbering, found[1], at):
        return None
    part = found[0].part
    return numbering.arranged(found[0].numbers[1], part, permuted(part), as_row(part))


def _is_one_place(numbering: ElementNumbering, one: bytes, other: bytes) -> bool:
    """Whether two indices are equal, whatever their types."""
    left, right = numbering.integers.whole(one), numbering.integers.whole(other)
    return one == other or (left is not None and left == right)


def residual_of(
    numbering: ElementNumbering, loop: Loop, i: ShapeIndex, root: bytes, names: Numbers
) -> ScanResidual | None:
    """Element `i` of a loop's state as a scan residual; None if it is not one.

    Args:
      numbering: of the module. loop: the loop. root: number of the element after an iteration.
      names: numbers of the state as the iteration begins.
    """
    write = written(numbering, root, names[i])
    if write is None or write[0][0] != loop.iterations:
        return None
    at = numbering.integers.whole(write[1])
    if at is None or at.symbol != names[loop.counter]:
        return None
    if (at.factor, at.offset) not in ((1, 0), (-1, loop.iterations - 1)):
        return None
    return ScanResidual(loop, i, write[0], at.factor, at.offset)


def slice_of_residual(
    numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit
) -> bytes | None:
    """The number of a slice of a scan residual as its loop wrote it; None if it is not one.

    Args:
      numbering: of the module. number: what is sliced. at: number of the index.
      digit: of the position in the array's row that equals the index.
    """
    residual = numbering.residuals.get(number)
    if residual is None or residual.digit != digit:
        return None
    loop, form = residual.loop, numbering.integers.whole(at)
    if form is None or not numbering.integers.within(at, loop.iterations):
        return None
    factor = residual.factor  # its own inverse
    there = Form(form.symbol, factor * form.factor, factor * (form.offset - residual.offset))
    iteration = numbering.integers.integer(there, loop.type, whole=True)
    root = follow(numbering, loop, iteration, there)
    return None if root is None else value_written(numbering, root[residual.index], digit)
