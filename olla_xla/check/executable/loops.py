"""Numbers of the results of loops, for each element of the state by itself.

An element's number covers all equations that it depends on, and no others: its own and those of
elements it reads, their initial values, and the trip count. Elements with equal initial values and
equal updates get one name, so that neither their order nor a second copy matters.

Names are found by partition refinement: an element's first name is its initial value's, and each
next one also has what an iteration computes from the names before. Once a round tells no more
elements apart than the one before, none will.
"""

from __future__ import annotations

import dataclasses
import itertools

from hlo.shapes import Shape, ShapeIndex
from olla_xla.check.executable.arrays import array_of
from olla_xla.check.executable.checkpoints import kept, tracked
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.integers import Form
from olla_xla.check.executable.loop_iterations import note_counter
from olla_xla.check.executable.numbering import Numbers, hashed, is_exchange, ordered
from olla_xla.check.executable.program import Body, Op, leaves
from olla_xla.check.executable.reach import reach
from olla_xla.check.executable.records import Loop, Tracked
from olla_xla.check.executable.scan_residuals import residual_of

_NAME, _COUNT, _SYSTEM, _END, _ASKED, _EFFECT = (
    hashed(n.encode()) for n in "state counter system end asked effect".split()
)


def _hash(*parts: bytes) -> bytes:
    return hashed(b"".join(parts))


def number_loop(
    numbering: ElementNumbering,
    op: Op,
    start: Numbers,
    symbols: Numbers,
    root: Numbers,
    whole: bytes,
) -> tuple[Numbers, list[bytes]]:
    """Numbers of a loop's results, and its effects, none of which may be stateful.

    Args:
      numbering: of the module. op: the loop. start: numbers of its initial state.
      symbols: distinct numbers for its state. root: the body's results for these.
      whole: number of the loop's backend_config.
    """
    numbering.depth += 1  # a loop inside another one has other names
    state, names = _begun(numbering, op, start, symbols, root)
    rounds = _rounds(numbering, state, names, whole)
    changing, acting = _closures(op, state.fixed | state.held.keys())
    finals = dict(start)
    for i, equations in changing.items():
        k, system = rounds.settled(equations)
        finals[i] = _hash(system, rounds.names[k][i])
    k, system = rounds.settled(acting)
    effects: list[bytes] = []
    numbering.run(state.body, [rounds.names[k]], effects)
    numbering.run(state.condition, [rounds.asked[k]], effects)
    seen = _seen(effects, state.counter, _hash(system))
    finals |= _finals_of_arrays(state, rounds)
    _note_written(numbering, state, rounds, finals)
    numbering.depth -= 1
    return finals, seen


@dataclasses.dataclass(frozen=True, eq=False)
class _State:
    """What the names of a loop's state follow from.

    Attributes:
      op: the loop. start: numbers of its initial state. level: its nesting depth.
      fixed: elements that no iteration changes.
      counter: the element that counts from 0, if one does. iterations: the trip count, if so.
      arrays: its checkpoint arrays of another loop, if it changes any.
    """

    op: Op
    start: Numbers
    level: bytes
    fixed: set[ShapeIndex]
    counter: ShapeIndex | None
    iterations: int
    arrays: Tracked | None

    @property
    def body(self) -> Body:
        """The computation that each iteration runs."""
        return self.op.called[0]

    @property
    def condition(self) -> Body:
        """The computation that is run before each iteration."""
        return self.op.called[1]

    @property
    def shape(self) -> Shape:
        """Of the state."""
        return self.body.parameters[0].shape

    @property
    def held(self) -> Numbers:
        """Names of the checkpoint arrays, the same in all rounds."""
        return {} if self.arrays is None else self.arrays.names

    def counted(self, numbering: ElementNumbering, names: Numbers) -> Numbers:
        """The names, the counter's hashed with the trip count."""
        if self.counter is None:
            return names
        number = _hash(_COUNT, repr(self.iterations).encode(), names[self.counter])
        numbering.symbol(number, self.shape.at(self.counter), self.iterations)
        if self.arrays is not None:
            note_counter(numbering, self.arrays, number)
        return {**names, self.counter: number}


def _begun(
    numbering: ElementNumbering, op: Op, start: Numbers, symbols: Numbers, root: Numbers
) -> tuple[_State, Numbers]:
    """A loop's state and its first names; arguments as for `number_loop`."""
    level = repr(numbering.depth).encode()
    body, condition = op.called
    shape = body.parameters[0].shape
    fixed = _fixed(start, symbols, root)
    _note_alike(numbering, op, fixed)
    names = {
        i: n if i in fixed else _hash(_NAME, n, numbering.shape(shape.at(i)), level)
        for i, n in start.items()
    }
    steps = [i for i in start if numbering.integers.form(root[i]) == Form(symbols[i], 1, 1)]
    counter, iterations = _counter(numbering, condition, start, names, steps)
    arrays = _arrays(numbering, op, start, fixed, names, counter, iterations)
    state = _State(op, start, level, fixed, counter, iterations, arrays)
    return state, state.counted(numbering, {**names, **state.held})


def _fixed(start: Numbers, symbols: Numbers, root: Numbers) -> set[ShapeIndex]:
    """Elements of a loop's state that are the same in all iterations.

    The body returns each one itself, or another such element with the same initial value: XLA:TPU
    copies loop-invariant values from HBM to VMEM again for each next iteration.
    """
    fixed = {i for i in start if root[i] == symbols[i]}
    while True:
        known = {(symbols[i], start[i]) for i in fixed}
        more = {i for i in start if i not in fixed and (root[i], start[i]) in known}
        if not more:
            return fixed
        fixed |= more


@dataclasses.dataclass(frozen=True, eq=False)
class _Rounds:
    """Names of a loop's state, round by round, until no round tells more elements apart.

    Attributes:
      names: of each round. asked: the same as the condition reads them.
      root: the body's results for the last names but one.
      tests: the condition's result for each round but the last one.
      whole: as in `number_loop`.
    """

    names: list[Numbers]
    asked: list[Numbers]
    root: Numbers
    tests: list[bytes]
    whole: bytes

    def settled(self, equations: list[ShapeIndex]) -> tuple[int, bytes]:
        """The round from which the names of some elements are settled, and their equations in it.

        Other elements do not affect the round, so that they do not change the equations.
        """
        k = next(
            k
            for k, (a, b) in enumerate(itertools.pairwise(self.names))
            if len({a[e] for e in equations}) == len({b[e] for e in equations})
        )
        system = sorted({self.names[k][e] + self.names[k + 1][e] for e in equations})
        return k, b"".join((_SYSTEM, self.whole, self.tests[k], *system, _END))


def _rounds(numbering: ElementNumbering, state: _State, first: Numbers, whole: bytes) -> _Rounds:
    """Names of a loop's state, round by round, from the first ones; `whole` as in `number_loop`."""
    names = [first]
    while True:
        before = names[-1]
        root, new = _once_more(numbering, state, before)
        names.append({**before, **new})
        if len(set(new.values())) == len({before[i] for i in new}):
            break
    asked = [_asked(numbering, state, given) for given in names]
    tests = [next(iter(numbering.run(state.condition, [a], []).values())) for a in asked[:-1]]
    return _Rounds(names, asked, root, tests, whole)


def _once_more(
    numbering: ElementNumbering, state: _State, names: Numbers
) -> tuple[Numbers, Numbers]:
    """The body's results for the names, and the next names, of elements that change."""
    root = numbering.run(state.body, [names], [])
    changing = {i: n for i, n in root.items() if i not in state.fixed and i not in state.held}
    new = {i: _hash(_NAME, state.start[i], n, state.level) for i, n in changing.items()}
    return root, state.counted(numbering, new)


def _finals_of_arrays(state: _State, rounds: _Rounds) -> Numbers:
    """Numbers of checkpoint arrays after the loop: each depends on the whole loop."""
    start, root = state.start, rounds.root
    everything = [n for k in sorted(start) for n in (start[k], root[k])]
    return {
        i: _hash(_SYSTEM, rounds.whole, *rounds.tests, *everything, repr(i).encode())
        for i in state.held
    }


def _note_written(
    numbering: ElementNumbering, state: _State, rounds: _Rounds, finals: Numbers
) -> None:
    """Records scan residuals and checkpoint arrays that a loop wrote; `finals`: its results.

    Earlier records stay: another loop may have written the same, and this one may read it.
    """
    if state.counter is None:
        return
    kind = state.shape.at(state.counter).element_type
    loop = Loop(
        state.body, state.start, finals, state.counter, kind, state.iterations, tracked=state.arrays
    )
    names = rounds.names[-2]
    for i in state.start:
        if i in state.fixed or i in state.held:
            continue
        number = rounds.root[i]
        if (residual := residual_of(numbering, loop, i, number, names)) is not None:
            numbering.residuals.setdefault(finals[i], residual)
        elif (array := kept(numbering, loop, i, number, names)) is not None:
            numbering.kept.setdefault(finals[i], array)


def _seen(effects: list[bytes], counter: ShapeIndex | None, system: bytes) -> list[bytes]:
    """A loop's effects as one; collectives by themselves if the trip count is constant.

    Args:
      effects: of an iteration. counter: element that counts to a constant, if one does.
      system: number of the equations that the other effects depend on.
    """
    apart = [e for e in effects if counter is not None and is_exchange(e)]
    others = [e for e in effects if e not in apart]
    return [*([_hash(_EFFECT, system, *ordered(others))] if others else []), *apart]


def _note_alike(numbering: ElementNumbering, op: Op, fixed: set[ShapeIndex]) -> None:
    """Records which arrays the state elements are that no iteration changes."""
    (given,) = op.operands
    (state,) = op.called[0].parameters
    for k, operand in enumerate(given.operands if given.opcode == "tuple" else ()):
        if (k,) in fixed:
            numbering.alike[state, k] = array_of(operand, numbering.alike)


def _arrays(
    numbering: ElementNumbering,
    op: Op,
    start: Numbers,
    fixed: set[ShapeIndex],
    names: Numbers,
    counter: ShapeIndex | None,
    iterations: int,
) -> Tracked | None:
    """The checkpoint arrays that a loop changes; None if there are none, or as `tracked`."""
    begun = {
        i: numbering.kept[n] for i, n in start.items() if i not in fixed and n in numbering.kept
    }
    if not begun or counter is None:
        return None
    return tracked(numbering, op, begun, names, counter, iterations)


def _asked(numbering: ElementNumbering, state: _State, names: Numbers) -> Numbers:
    """The names as the condition reads them: also after the last iteration, so the counter is
    not bounded by the trip count.
    """
    if state.counter is None:
        return names
    number = _hash(_ASKED, names[state.counter])
    numbering.symbol(number, state.shape.at(state.counter))
    return {**names, state.counter: number}


def _counter(
    numbering: ElementNumbering,
    condition: Body,
    start: Numbers,
    names: Numbers,
    steps: list[ShapeIndex],
) -> tuple[ShapeIndex | None, int]:
    """The element that goes 0, 1, ... while it is less than a constant, and that constant.

    Args:
      numbering: of the module. condition: of the loop. start: numbers of its initial state.
      names: those of the state in an iteration. steps: elements to which each iteration adds one.
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
    """For each element that changes, the elements that it depends on, itself included; and those
    that the effects depend on.
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
