"""Numbers of what loops compute, each element of the state for itself.

An element's number says all equations it depends on, and nothing of other elements: its own and
those it reads, where each begins, and how often the loop turns. Elements that begin alike and
change alike get one name, so that neither their order nor a second copy leaves a trace.

A stack is an element of which each turn of a counted loop writes one slice, every one once. A slice
of it, taken after the loop at an index in range, is what that turn wrote; its number is the one of
the written value with the index in place of the counter. So a stack that is read slice by slice
and a value computed again from the same elements' values at the same turn are one number.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from hlo.shapes import Shape, ShapeIndex
from olla_xla.check.executable.arrays import array_of
from olla_xla.check.executable.checkpoints import Tracked, kept, tracked
from olla_xla.check.executable.integers import Form
from olla_xla.check.executable.numbering import is_exchange, ordered
from olla_xla.check.executable.program import Body, Op, leaves
from olla_xla.check.executable.reach import reach

if TYPE_CHECKING:
    from olla_xla.check.executable.element_expressions import ElementNumbering

__all__ = ["Loop", "Stack", "is_leading", "number_loop", "one_slice", "slice_of"]

Numbers = dict[ShapeIndex, bytes]

_SIZE = 16


def _hash(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=_SIZE).digest()


_NAME, _COUNT, _SYSTEM, _END, _AT, _ASKED, _EFFECT = (
    _hash(n.encode()) for n in "state counter system end turn asked effect".split()
)


@dataclasses.dataclass(eq=False)
class Loop:
    """A counted loop whose elements have their numbers.

    Attributes:
      body: of the loop. start: numbers of the state before it, finals: after it.
      counter: the element that counts, from 0. type: its element type. turns: how many.
      runs: by number of a turn, the numbers of the body's result in it.
      is_followed: whether the body is being numbered for one of its turns.
      tracked: arrays of its state with what another loop's turns began with.
    """

    body: Body
    start: Numbers
    finals: Numbers
    counter: ShapeIndex
    type: int
    turns: int
    runs: dict[bytes, Numbers] = dataclasses.field(default_factory=dict)
    is_followed: bool = False
    tracked: Tracked | None = None

    def state(self, turn: bytes) -> Numbers:
        """Numbers of the state as a turn of this number begins with it."""
        given = {
            i: n if self.finals[i] == n else _hash(_AT, self.finals[i], turn)
            for i, n in self.start.items()
        }
        given[self.counter] = turn
        return given

    def follow(self, numbering: ElementNumbering, turn: bytes, form: Form) -> Numbers | None:
        """What the body makes of the state in a turn; None while that is being found out.

        Args:
          numbering: of the module. turn: number of the turn. form: of that.
        """
        root = self.runs.get(turn)
        if root is None:
            if self.is_followed:
                return None  # it reads what has the number of a stack of its own
            given = self.state(turn)
            if self.tracked is not None:
                given |= self.tracked.at(numbering, turn, form)
            self.is_followed = True
            root = self.runs[turn] = numbering.apart(self.body, given)
            self.is_followed = False
        return root


@dataclasses.dataclass(frozen=True)
class Stack:
    """An element of which each turn writes one slice.

    Attributes:
      loop: the loop. index: of the element.
      axis: dimension that counts slices.
      factor, offset: turn t writes slice factor * t + offset; the factor is 1 or -1.
      cast: the element's shape and the one in which a bitcast lets slices be written, where these
        lie apart in memory: they are slices of that shape only. None: of the element's own, or of
        any in which they lie one after the other.
    """

    loop: Loop
    index: ShapeIndex
    axis: int
    factor: int
    offset: int
    cast: tuple[Shape, Shape] | None = None


def number_loop(
    numbering: ElementNumbering,
    op: Op,
    start: Numbers,
    symbols: Numbers,
    root: Numbers,
    whole: bytes,
) -> tuple[Numbers, list[bytes]]:
    """Numbers of a loop's result, and its effects; none of these may have a state.

    Args:
      numbering: of the module. op: the loop. start: numbers of its state before.
      symbols: different numbers for its state. root: what the body makes of these.
      whole: number of what else the loop says of itself.
    """
    numbering.depth += 1  # a loop inside another one has other names
    level = repr(numbering.depth).encode()
    body, condition = op.called
    shape = body.parameters[0].shape
    fixed = {i for i in start if root[i] == symbols[i]}
    _note_alike(numbering, op, fixed)
    names = {
        i: n if i in fixed else _hash(_NAME, n, numbering.shape(shape.at(i)), level)
        for i, n in start.items()
    }
    steps = [i for i in start if numbering.integers.form(root[i]) == Form(symbols[i], 1, 1)]
    counter, turns = _counter(numbering, condition, start, names, steps)
    arrays = _arrays(numbering, op, start, fixed, names, counter, turns)
    held = {} if arrays is None else arrays.names
    names |= held

    def counted(names: Numbers) -> Numbers:
        """The names, that of the counter with what it counts to."""
        if counter is not None:
            names[counter] = _hash(_COUNT, repr(turns).encode(), names[counter])
            numbering.symbol(names[counter], shape.at(counter), turns)
            if arrays is not None:
                arrays.count(numbering, names[counter])
        return names

    def once_more(names: Numbers) -> tuple[Numbers, Numbers]:
        """What a turn makes of the names, and the next names by that, of what changes."""
        root = numbering.run(body, [names], [])
        changing = {i: n for i, n in root.items() if i not in fixed and i not in held}
        return root, counted({i: _hash(_NAME, start[i], n, level) for i, n in changing.items()})

    rounds, root = _rounds(counted(names), once_more)
    names, new = rounds[-2], start.keys() - fixed - held.keys()
    asked = [_asked(numbering, r, counter, shape) for r in rounds]
    tests = [next(iter(numbering.run(condition, [a], []).values())) for a in asked[:-1]]
    finals = dict(start)
    closures, acting = _closures(op, fixed | held.keys())

    def settled(equations: list[ShapeIndex]) -> tuple[int, list[bytes]]:
        """In which round some elements' names tell them apart, and their equations then.

        It is as many rounds as these take by themselves: others are to leave no trace.
        """
        k = next(
            k
            for k, (a, b) in enumerate(itertools.pairwise(rounds))
            if len({a[e] for e in equations}) == len({b[e] for e in equations})
        )
        return k, sorted({rounds[k][e] + rounds[k + 1][e] for e in equations})

    for i, equations in closures.items():
        k, system = settled(equations)
        finals[i] = _hash(_SYSTEM, whole, tests[k], *system, _END, rounds[k][i])
    k, system = settled(acting)
    effects: list[bytes] = []
    numbering.run(body, [rounds[k]], effects)
    numbering.run(condition, [asked[k]], effects)
    seen = _seen(effects, counter, _hash(_SYSTEM, whole, tests[k], *system, _END))
    # Of arrays of another loop's turns nothing is said but by all of the loop.
    everything = [n for k in sorted(start) for n in (start[k], root[k])]
    finals |= {i: _hash(_SYSTEM, whole, *tests, *everything, repr(i).encode()) for i in held}
    if counter is not None:
        kind = shape.at(counter).element_type
        loop = Loop(body, start, finals, counter, kind, turns, tracked=arrays)
        _note_written(numbering, loop, {i: root[i] for i in start if i in new}, names)
    numbering.depth -= 1
    return finals, seen


def _seen(effects: list[bytes], counter: ShapeIndex | None, system: bytes) -> list[bytes]:
    """A loop's effects as one; groups that meet apart from that, where all turn as often.

    Args:
      effects: of a turn. counter: element that counts to a constant, if one does.
      system: number of what decides all else.
    """
    apart = [e for e in effects if counter is not None and is_exchange(e)]
    others = [e for e in effects if e not in apart]
    return [*([_hash(_EFFECT, system, *ordered(others))] if others else []), *apart]


def _rounds(
    names: Numbers, once_more: Callable[[Numbers], tuple[Numbers, Numbers]]
) -> tuple[list[Numbers], Numbers]:
    """Names of a loop's state until they tell apart whatever equations do; and the last equations.

    Args:
      names: the first. once_more: what a turn makes of names, and the next ones of what changes.
    """
    rounds = [names]
    while True:
        root, new = once_more(rounds[-1])
        names = rounds[-1]
        rounds.append({**names, **new})
        if len(set(new.values())) == len({names[i] for i in new}):
            return rounds, root


def _note_alike(numbering: ElementNumbering, op: Op, fixed: set[ShapeIndex]) -> None:
    """Notes which arrays elements of a loop's state are that no turn changes."""
    (given,) = op.operands
    (state,) = op.called[0].parameters
    for k, operand in enumerate(given.operands if given.opcode == "tuple" else ()):
        if (k,) in fixed:
            numbering.alike[state, k] = array_of(operand, numbering.alike)


def _note_written(numbering: ElementNumbering, loop: Loop, root: Numbers, names: Numbers) -> None:
    """Notes what a loop wrote slice by slice: `root` is what a turn makes of the state `names`.

    Another loop may have written the same before, and this one may read that.
    """
    for i, number in root.items():
        if (stack := _stack(numbering, loop, i, number, names)) is not None:
            numbering.stacks.setdefault(loop.finals[i], stack)
        elif (array := kept(numbering, loop, i, number, names)) is not None:
            numbering.kept.setdefault(loop.finals[i], array)


def _arrays(
    numbering: ElementNumbering,
    op: Op,
    start: Numbers,
    fixed: set[ShapeIndex],
    names: Numbers,
    counter: ShapeIndex | None,
    turns: int,
) -> Tracked | None:
    """The elements of a loop's state that have slices of another loop's, and change."""
    begun = {
        i: numbering.kept[n] for i, n in start.items() if i not in fixed and n in numbering.kept
    }
    if not begun or counter is None:
        return None
    return tracked(numbering, op, begun, names, counter, turns)


def _asked(
    numbering: ElementNumbering, names: Numbers, counter: ShapeIndex | None, shape: Shape
) -> Numbers:
    """The names as the condition reads them, once more than there are turns."""
    if counter is None:
        return names
    number = _hash(_ASKED, names[counter])
    numbering.symbol(number, shape.at(counter))
    return {**names, counter: number}


def _counter(
    numbering: ElementNumbering,
    condition: Body,
    start: Numbers,
    names: Numbers,
    steps: list[ShapeIndex],
) -> tuple[ShapeIndex | None, int]:
    """The element that goes 0, 1, ... while it is less than a constant, and that constant.

    Args:
      numbering: of the module. condition: of the loop. start: numbers of its state before.
      names: those of the state in a turn. steps: elements to which each turn adds one.
    """
    integers, counters = numbering.integers, {}
    for i in steps:
        if integers.form(start[i]) == Form(None, 0, 0):
            numbering.symbol(names[i], condition.parameters[0].shape.at(i))
            counters[names[i]] = i
    if not counters:
        return None, 0
    (test,) = numbering.run(condition, [names], []).values()
    direction, left, right = numbering.comparisons.get(
        test, ("", Form(None, 0, 0), Form(None, 0, 0))
    )
    counter = counters.get(left.symbol or b"")
    if direction != "LT" or counter is None or left[1:] != (1, 0) or right.symbol is not None:
        return None, 0
    return counter, right.offset


def _closures(
    op: Op, fixed: set[ShapeIndex]
) -> tuple[dict[ShapeIndex, list[ShapeIndex]], list[ShapeIndex]]:
    """By element that changes, those whose equations it depends on, itself included.

    And those on whose equations the effects depend.
    """
    body, condition = op.called
    changing = [i for i, _ in leaves(body.parameters[0].shape) if i not in fixed]
    bits = {i: 1 << k for k, i in enumerate(changing)}
    given = {i: bits.get(i, 0) for i, _ in leaves(body.parameters[0].shape)}
    effects: list[int] = []
    direct = reach(body, [given], effects)
    tested = 0
    for found in (*reach(condition, [given], effects).values(), 0):
        tested |= found

    def closure(first: int) -> list[ShapeIndex]:
        found, waiting = 0, [first | tested]
        while waiting:
            more = waiting.pop() & ~found
            found |= more
            waiting += [direct[k] for k in changing if bits[k] & more and direct[k] & ~found]
        return [k for k in changing if bits[k] & found]

    acting = 0
    for found in effects:
        acting |= found
    return {i: closure(bits[i]) for i in changing}, closure(acting)


def _stack(
    numbering: ElementNumbering, loop: Loop, i: ShapeIndex, root: bytes, names: Numbers
) -> Stack | None:
    """Element `i` as a stack, if each turn writes a slice of its own."""
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


def slice_of(
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
        inner = slice_of(numbering, first, at, old, one_slice(old))
        return None if inner is None else numbering.cast(inner, one_slice(old), one_slice(new))
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
    root = loop.follow(numbering, turn, there)
    if root is None:
        return None
    number = root[stack.index]
    first, old, new = numbering.bitcasts.get(number, (number, None, None))
    value = numbering.updates[first].numbers[1]
    if old is None or new is None or stack.cast is not None:
        return value
    return numbering.cast(value, one_slice(old), one_slice(new))


def one_slice(shape: Shape) -> Shape:
    """The shape of one slice."""
    return dataclasses.replace(shape, dimensions=(1, *shape.dimensions[1:]), key=b"")


def _is_stack(shape: Shape, turns: int) -> bool:
    """Whether an array is `turns` slices along dimension 0, of whole bytes."""
    return shape.dimensions[:1] == (turns,) and shape.element_bits >= 8


def is_leading(shape: Shape, turns: int) -> bool:
    """Whether it is that, and they are one after the other in memory."""
    return _is_stack(shape, turns) and shape.minor_to_major[-1] == 0


def sliced_axis(part: Shape, shape: Shape) -> int | None:
    """The dimension along which a part is one slice of an array of whole bytes, if it is one.

    Where more than one could be meant, since there is one slice only, the first.
    """
    if part.minor_to_major != shape.minor_to_major or part.element_type != shape.element_type:
        return None
    if shape.element_bits < 8 or not shape.dimensions:
        return None
    both = zip(part.dimensions, shape.dimensions, strict=True)
    axes = [k for k, (one, all_of_it) in enumerate(both) if one != all_of_it]
    axis = axes[0] if axes else 0
    return axis if len(axes) < 2 and part.dimensions[axis] == 1 else None
