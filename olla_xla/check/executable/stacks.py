"""Stacks: elements of a counted loop's state of which each turn writes a slice of its own.

A slice of a stack, taken after the loop at an index in range, is what the turn wrote that wrote
there: as the turns write all slices, every one once, no other turn did. Its number is the one of
the written value with the index in place of the counter (`loop_turns`). So a stack that is read
slice by slice and a value computed again from the same elements' values at the same turn are one
number.
"""

from __future__ import annotations

from hlo.shapes import Shape, ShapeIndex
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.integers import Form
from olla_xla.check.executable.loop_turns import follow
from olla_xla.check.executable.numbering import Numbers
from olla_xla.check.executable.records import Loop, Stack
from olla_xla.check.executable.slice_shapes import is_leading, one_of, sliced_axis

__all__ = ["slice_of_stack", "stack_of"]


def stack_of(
    numbering: ElementNumbering, loop: Loop, i: ShapeIndex, root: bytes, names: Numbers
) -> Stack | None:
    """Element `i` of a loop's state as a stack; None if it is none.

    Args:
      numbering: of the module. loop: the loop. root: number of what a turn makes of the element.
      names: numbers of the state in a turn.
    """
    update = numbering.updates.get(numbering.first(root))
    if update is None or numbering.first(update.numbers[0]) != names[i]:
        return None
    axis = sliced_axis(update.part, update.shape)
    if axis is None or update.shape.dimensions[axis] != loop.turns:
        return None
    cast = numbering.bitcasts.get(update.numbers[0])
    if not _is_put_back(numbering, update.numbers[0], root):
        return None
    seen = None if cast is None else (cast[1], cast[2])
    if seen is not None and axis == 0 and all(is_leading(shape, loop.turns) for shape in seen):
        seen = None
    at = numbering.integers.whole(update.numbers[2 + axis])
    if at is None or at.symbol != names[loop.counter]:
        return None
    if (at.factor, at.offset) not in ((1, 0), (-1, loop.turns - 1)):
        return None
    return Stack(loop, i, axis, at.factor, at.offset, seen)


def _is_put_back(numbering: ElementNumbering, taken: bytes, result: bytes) -> bool:
    """Whether a bitcast before an update is undone after it."""
    before, after = (numbering.bitcasts.get(n) for n in (taken, result))
    if before is None or after is None:
        return before is after
    there, back = (tuple(map(numbering.shape, cast[1:])) for cast in (before, after))
    return there == back[::-1]


def slice_of_stack(
    numbering: ElementNumbering, number: bytes, at: bytes, shape: Shape, part: Shape
) -> bytes | None:
    """The number of a slice of a stack as its loop wrote it, or None if it is no such slice.

    A number stands for an array whatever its layout is, so layouts matter to bitcasts alone.

    Args:
      numbering: of the module. number: what is sliced.
      at: number of the index along the dimension that counts slices.
      shape: of what is sliced. part: of the slice.
    """
    axis = sliced_axis(part, shape)
    if axis is None:
        return None
    turns = shape.dimensions[axis]
    stack = numbering.stacks.get(numbering.first(number))
    if stack is not None and (number not in numbering.bitcasts or stack.cast is not None):
        same = (stack.loop.turns, stack.axis) == (turns, axis)
        same &= _is_seen(numbering, number, stack)
        return _written(numbering, stack, at) if same else None
    if axis != 0:
        return None  # what follows is said of the first dimension
    if (cast := numbering.bitcasts.get(number)) is not None:
        first, old, new = cast
        if not is_leading(old, turns) or not is_leading(new, turns):
            return None
        inner = slice_of_stack(numbering, first, at, old, one_of(old, 0))
        return None if inner is None else numbering.cast(inner, one_of(old, 0), one_of(new, 0))
    return None


def _is_seen(numbering: ElementNumbering, number: bytes, stack: Stack) -> bool:
    """Whether a number is that of a stack in the shape in which its slices were written."""
    if stack.cast is None:
        return number not in numbering.bitcasts
    _, *cast = numbering.bitcasts.get(number, (number,))
    return [numbering.shape(shape) for shape in cast] == [numbering.shape(s) for s in stack.cast]


def _written(numbering: ElementNumbering, stack: Stack, at: bytes) -> bytes | None:
    """What the turn wrote that wrote a slice of a stack; None if that is not known."""
    loop, form = stack.loop, numbering.integers.whole(at)
    if form is None or not numbering.integers.within(at, loop.turns):
        return None
    factor = stack.factor  # its own inverse
    there = Form(form.symbol, factor * form.factor, factor * (form.offset - stack.offset))
    turn = numbering.integer(there, loop.type, whole=True)
    root = follow(numbering, loop, turn, there)
    if root is None:
        return None
    number = root[stack.index]
    first, old, new = numbering.bitcasts.get(number, (number, None, None))
    value = numbering.updates[first].numbers[1]
    if old is None or new is None or stack.cast is not None:
        return value
    return numbering.cast(value, one_of(old, 0), one_of(new, 0))
