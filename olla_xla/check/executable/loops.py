"""Numbers of the results of loops that are not followed, for each element of the state by itself.

An element's number covers all equations that it depends on, and no others: its own and those of
elements it reads, and their initial values. Elements with equal initial values and equal updates
get one name, so that neither their order nor a second copy matters.

Names are found by partition refinement: an element's first name is its initial value's, and each
next one also has what an iteration computes from the names before. Once a round tells no more
elements apart than the one before, none will.
"""

import dataclasses
import itertools
from collections.abc import Iterable

from hlo.shapes import ShapeIndex
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.iterations import fixed_elements, note_alike
from olla_xla.check.executable.numbering import PARAMETER, Numbers, hashed, named, ordered
from olla_xla.check.executable.program import Body, Op, acts, leaves, may_repeat

_NAME, _SYSTEM, _END, _EFFECT = (hashed(n.encode()) for n in "state system end effect".split())


def _hash(*parts: bytes) -> bytes:
    return hashed(b"".join(parts))


def number_loop(numbering: ElementNumbering, op: Op, start: Numbers) -> tuple[Numbers, list[bytes]]:
    """Value numbers of a while's results, and its effects: hashes of how its state is updated.

    `op`: the while, without stateful operations. `start`: numbers of its initial state.
    """
    numbering.depth += 1  # a loop inside another one has other names
    symbols = {i: hashed(PARAMETER + named((0, *i))) for i in start}
    fixed = fixed_elements(start, symbols, numbering.run(op.called[0], [symbols], []))
    note_alike(numbering, op, fixed)
    state = _NamedLoop(op, start, repr(numbering.depth).encode(), fixed)
    rounds = _rounds(numbering, state)
    changing, acting = _closures(op, fixed)
    finals = dict(start)
    for i, equations in changing.items():
        k, system = rounds.settled(equations)
        finals[i] = _hash(system, rounds.names[k][i])
    k, system = rounds.settled(acting)
    effects: list[bytes] = []
    for body in op.called:
        numbering.run(body, [rounds.names[k]], effects)
    numbering.depth -= 1
    return finals, [_hash(_EFFECT, system, *ordered(effects))] if effects else []


@dataclasses.dataclass(frozen=True, eq=False)
class _NamedLoop:
    """A while loop, whose state's elements get names: hashes of what they are computed from.

    Attributes:
      op: the loop. start: numbers of its initial state. level: its nesting depth.
      fixed: elements that no iteration changes.
    """

    op: Op
    start: Numbers
    level: bytes
    fixed: set[ShapeIndex]

    @property
    def body(self) -> Body:
        """The computation that each iteration runs."""
        return self.op.called[0]

    @property
    def condition(self) -> Body:
        """The computation that is run before each iteration."""
        return self.op.called[1]

    def first(self, numbering: ElementNumbering) -> Numbers:
        """The first names of the state's elements: hashes of initial value and shape.

        An element that no iteration changes has its initial value's number as its name.
        """
        shape = self.body.parameters[0].shape
        return {
            i: n if i in self.fixed else _hash(_NAME, n, numbering.shape(shape.at(i)), self.level)
            for i, n in self.start.items()
        }

    def next(self, root: Numbers) -> Numbers:
        """The next names (hashes) of the elements that iterations change: of initial value and
        result.

        `root`: value numbers of the body's results for the names before.
        """
        return {
            i: _hash(_NAME, self.start[i], n, self.level)
            for i, n in root.items()
            if i not in self.fixed
        }


@dataclasses.dataclass(frozen=True, eq=False)
class _Rounds:
    """Names (hashes) of the elements of a loop's state in rounds of partition refinement.

    Attributes:
      names: of each round. tests: the condition's result for each round but the last one.
      whole: hash of the loop's backend_config, which may hold a trip count that XLA uses.
    """

    names: list[Numbers]
    tests: list[bytes]
    whole: bytes

    def settled(self, equations: list[ShapeIndex]) -> tuple[int, bytes]:
        """Finds the first round whose names tell `equations` (elements) apart as the next ones do.

        Returns that round, and these elements' equations in it, joined to bytes: each element's
        name and next name, with the loop's condition.
        """
        k = next(
            k
            for k, (a, b) in enumerate(itertools.pairwise(self.names))
            if len({a[e] for e in equations}) == len({b[e] for e in equations})
        )
        system = sorted({self.names[k][e] + self.names[k + 1][e] for e in equations})
        return k, b"".join((_SYSTEM, self.whole, self.tests[k], *system, _END))


def _rounds(numbering: ElementNumbering, state: _NamedLoop) -> _Rounds:
    """Gives a loop's state new names (hashes) in rounds, until one tells no more elements apart."""
    names, tests = [state.first(numbering)], list[bytes]()
    while True:
        before = names[-1]
        tests += numbering.run(state.condition, [before], []).values()
        new = state.next(numbering.run(state.body, [before], []))
        names.append({**before, **new})
        if len(set(new.values())) == len({before[i] for i in new}):
            break
    return _Rounds(names, tests, hashed(state.op.proto.backend_config))


def _closures(
    op: Op, fixed: set[ShapeIndex]
) -> tuple[dict[ShapeIndex, list[ShapeIndex]], list[ShapeIndex]]:
    """Finds what each changing element of a while's state depends on; `fixed` ones do not change.

    Returns (element -> changing elements it depends on, itself too; those of the side effects).
    """
    body, condition = op.called
    changing = [i for i, _ in leaves(body.parameters[0].shape) if i not in fixed]
    bits = {i: 1 << k for k, i in enumerate(changing)}
    given = {i: bits.get(i, 0) for i, _ in leaves(body.parameters[0].shape)}
    effects: list[int] = []
    direct = reach(body, [given], effects)
    tested = 0
    for reached in (*reach(condition, [given], effects).values(), 0):
        tested |= reached

    def closure(first: int) -> list[ShapeIndex]:
        reached, waiting = 0, [first | tested]
        while waiting:
            more = waiting.pop() & ~reached
            reached |= more
            waiting += [direct[k] for k in changing if bits[k] & more and direct[k] & ~reached]
        return [k for k in changing if bits[k] & reached]

    acting = 0
    for reached in effects:
        acting |= reached
    return {i: closure(bits[i]) for i in changing}, closure(acting)


Reach = dict[ShapeIndex, int]
"""Leaf index -> set of parameter elements, as bits."""


def reach(body: Body, given: list[Reach], effects: list[int]) -> Reach:
    """The parameter elements that each leaf of a computation's result depends on, as bit sets.

    `given`: for each parameter, leaf -> bit set of what it stands for. `effects`: the bits of each
    side effect are appended, except for collectives.
    """
    at: dict[Op, Reach] = dict(zip(body.parameters, given, strict=True))
    for op in body.ops:
        if op.opcode == "parameter":
            continue
        operands = [at[o] for o in op.operands]
        if acts(op) and not may_repeat(op):
            effects.append(_either(bits for operand in operands for bits in operand.values()))
        inner = _CALLING.get(op.opcode)
        if inner is not None:
            at[op] = inner(op, operands, effects)
        else:
            at[op] = _HANDLERS.get(op.opcode, _plain)(op, operands)
    return at[body.result]


def _either(sets: Iterable[int]) -> int:
    result = 0
    for bits in sets:
        result |= bits
    return result


def _plain(op: Op, operands: list[Reach]) -> Reach:
    """Default rule of `reach`: each leaf of the result depends on all leaves of all operands."""
    whole = _either(bits for operand in operands for bits in operand.values())
    return {i: whole for i, _ in leaves(op.shape)}


def _same(op: Op, operands: list[Reach]) -> Reach:
    return operands[0] if len(operands) == 1 else _pack(op, operands)


def _pack(op: Op, operands: list[Reach]) -> Reach:
    return {(k, *i): bits for k, operand in enumerate(operands) for i, bits in operand.items()}


def _element(op: Op, operands: list[Reach]) -> Reach:
    k = op.proto.tuple_index
    if not op.shape.is_tuple:
        return {(): operands[0][(k,)]}
    return {i[1:]: bits for i, bits in operands[0].items() if i[0] == k}


def _call(op: Op, operands: list[Reach], effects: list[int]) -> Reach:
    return reach(op.called[0], operands, effects)


def _begin(op: Op, operands: list[Reach], effects: list[int]) -> Reach:
    """Rule of `reach` for an async-start, whose result is (operands, result, context)."""
    result = _plain(op, operands)
    result |= {(0, k, *i): bits for k, given in enumerate(operands) for i, bits in given.items()}
    return result | {(1, *i): bits for i, bits in _call(op, operands, effects).items()}


def _done(op: Op, operands: list[Reach]) -> Reach:
    result = _plain(op, operands)
    return result | {i[1:]: bits for i, bits in operands[0].items() if i and i[0] == 1}


def _choose(op: Op, operands: list[Reach], effects: list[int]) -> Reach:
    index, inner = _either(operands[0].values()), []
    branches = [
        reach(body, [given], inner) for body, given in zip(op.called, operands[1:], strict=True)
    ]
    effects += [index | bits for bits in inner]
    return {i: index | _either(b[i] for b in branches) for i, _ in leaves(op.shape)}


def _loop(op: Op, operands: list[Reach], effects: list[int]) -> Reach:
    body, condition = op.called
    state = operands[0]
    while True:
        inner: list[int] = []
        again = reach(body, [state], inner)
        iterations = _either(reach(condition, [state], inner).values())
        more = {i: bits | again[i] | iterations for i, bits in state.items()}
        if more == state:
            effects += [iterations | bits for bits in inner]
            return state
        state = more


_HANDLERS = {
    "bitcast": _same,
    "copy": _same,
    "domain": _same,
    "add-dependency": lambda op, operands: operands[0],
    "async-update": _same,
    "opt-barrier": _same,
    "optimization-barrier": _same,
    "tuple": _pack,
    "get-tuple-element": _element,
    "async-done": _done,
}

_CALLING = {
    "fusion": _call,
    "call": _call,
    "async-start": _begin,
    "conditional": _choose,
    "while": _loop,
}
