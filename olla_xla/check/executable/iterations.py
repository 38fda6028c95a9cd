"""Loops iteration by iteration: what each computes, from the counter's own value.

Where a loop's condition follows from constants, its iterations are numbered one after the other, as
if they were written out. Then a slice of an array is what was written there, by whichever loop and
iteration, and nothing is assumed about indices. An iteration is not numbered operation by
operation: the body is numbered once for unknown values, with a note of how each number is made of
others (`Term`), and these steps alone are repeated.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

from hlo.shapes import ShapeIndex
from olla_xla.check.executable.arrays import array_of
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.numbering import SIZE, Numbers, hashed, named
from olla_xla.check.executable.program import Body, Op, acts, has_state, leaves
from olla_xla.check.executable.records import Term
from olla_xla.errors import CheckError

MOST_STEPS = 1 << 22
"""Limit for the steps of all iterations of a module's loops; each follows from an instruction."""
_STEPS_AN_OPERATION = 8  # that take as long as one in a loop that is not followed

_STATE = hashed(b"iteration")

_Run = tuple[Numbers, list[bytes]]
"""A loop's results and effects."""


class Loops:
    """Finds the value numbers of one module's loops by following their iterations."""

    def __init__(self) -> None:
        self._programs: dict[Op, tuple[_LoopProgram, _LoopProgram] | None] = {}
        self._stateful: dict[Op, bool] = {}
        self._sizes: dict[Op, int] = {}
        self._steps = 0
        self._marks: set[bytes] = set()

    def marks(self) -> list[bytes]:
        """Sorted hashes of claims in loops' backend_configs that following them did not check."""
        return sorted(self._marks)

    def is_stateful(self, op: Op) -> bool:
        """Whether a loop runs stateful operations such as rng, whose results change at each run."""
        if op not in self._stateful:
            self._stateful[op] = _any(op, has_state)
        return self._stateful[op]

    def followed(self, numbering: ElementNumbering, op: Op, start: Numbers) -> _Run | None:
        """(value numbers of a loop's results, its effects), by running its iterations on numbers,
        first those of its initial state, `start`.

        None if the body cannot be numbered for unknown values, the condition is not known,
        backend_config is wrong, or there are too many steps.
        """
        made = self._made(numbering, op, start)
        run = None if made is None else self._iterated(numbering, op, start, *made)
        if run is None:
            if op not in self._sizes:
                self._sizes[op] = _size(op)
            self._steps += _STEPS_AN_OPERATION * self._sizes[op]
        return run

    def _iterated(
        self,
        numbering: ElementNumbering,
        op: Op,
        start: Numbers,
        condition: _LoopProgram,
        body: _LoopProgram,
    ) -> _Run | None:
        claims = _Claims(op)
        elements = sorted(start)
        state, effects, count = [start[i] for i in elements], list[bytes](), 0
        expected = (claims.iterations or 1) * (len(body) + len(condition))
        if self._steps + expected > MOST_STEPS:
            return None
        while True:
            (test,) = condition.run(numbering, state, effects)
            goes_on = numbering.integers.value(test)
            if goes_on is None or self._steps > MOST_STEPS:
                return None
            if not goes_on:
                break
            if not claims.hold(numbering, dict(zip(elements, state, strict=True)), count):
                return None
            state = body.run(numbering, state, effects)
            count += 1
            self._steps += len(body) + len(condition)
        if claims.iterations not in (None, count):
            return None
        self._marks |= claims.others
        return dict(zip(elements, state, strict=True)), effects

    def later(
        self, numbering: ElementNumbering, op: Op, start: Numbers, effects: list[bytes]
    ) -> Numbers:
        """Placeholder value numbers of an inner loop's results, while an outer body is numbered.

        `start`: numbers of its initial state. A placeholder is appended to `effects` if it has any.
        """
        elements = sorted(start)
        given = [start[i] for i in elements]
        number = numbering.later(_run_now, op, *given)
        numbers = {i: numbering.later(_result, i, number) for i in elements}
        if _any(op, acts):
            effects.append(number)
        return numbers

    def _made(
        self, numbering: ElementNumbering, op: Op, start: Numbers
    ) -> tuple[_LoopProgram, _LoopProgram] | None:
        """A loop's (condition, body) as steps on numbers, cached; or None. Records `alike`, too."""
        if op not in self._programs:
            body, condition = op.called
            own = _STATE + hashed(repr(id(op)).encode())
            symbols = {i: hashed(own + named(i)) for i in sorted(start)}
            numbering.terms = {}
            root = numbering.run(body, [symbols], [])
            note_alike(numbering, op, fixed_elements(start, symbols, root))
            try:
                self._programs[op] = (
                    _LoopProgram(numbering, condition, symbols),
                    _LoopProgram(numbering, body, symbols),
                )
            except _Unfollowed:
                self._programs[op] = None
            numbering.terms = None
        return self._programs[op]


def _any(op: Op, holds: Callable[[Op], bool]) -> bool:
    """Whether `holds` is true of an operation, or of any in the computations that it calls."""
    return holds(op) or any(_any(inner, holds) for body in op.called for inner in body.ops)


def _size(op: Op) -> int:
    """How many operations `op` runs, itself included; those of a loop's body count once."""
    return 1 + sum(_size(inner) for body in op.called for inner in body.ops)


def _run_now(numbering: Any, op: Op, *given: bytes) -> _Run:
    """Recomputes (results, effects) of a while for an initial state of value numbers `given`."""
    effects: list[bytes] = []
    elements = sorted(index for index, _ in leaves(op.shape))
    return numbering.loop(op, [dict(zip(elements, given, strict=True))], effects), effects


def _result(numbering: ElementNumbering, i: ShapeIndex, run: _Run) -> bytes:
    """Value number of the element at shape index `i` of a loop's results; `run`: of `_run_now`."""
    return run[0][i]


class _Unfollowed(Exception):
    """Raised where a loop's body cannot be numbered for unknown values of its state."""


class _LoopProgram:
    """A loop's condition or body as steps that compute its results' value numbers from the state's.

    The steps work on a list of numbers: the state's, then constants; each step appends one.
    `symbols`: distinct numbers for the state.
    """

    def __init__(self, numbering: ElementNumbering, body: Body, symbols: Numbers) -> None:
        effects: list[bytes] = []
        numbering.terms = terms = {}
        root = numbering.run(body, [symbols], effects)
        given, roots = ([numbers[i] for i in sorted(numbers)] for numbers in (symbols, root))
        order = _dependent(terms, given, [*roots, *effects])
        dependent = {*given, *order}
        parts = {number: _parts(terms[number], dependent) for number in order}
        used = (part for group in (*parts.values(), roots, effects) for part in group)
        constants = dict.fromkeys(part for part in used if part not in dependent)
        self._constants = [b"", *constants]
        every = [*given, *self._constants, *order]
        slots = {number: slot for slot, number in enumerate(every)}
        self._steps: list[_Step] = []
        for number in order:
            again, details = terms[number][:2]
            read = [slots[part] for part in parts[number]]
            if again is None:
                read.append(slots[b""])  # so that there are two of them
                if any(n in terms and terms[n].again is _run_now for n in parts[number]):
                    raise _Unfollowed
            self._steps.append((again, details, _getter(read)))
        self._roots = [slots[number] for number in roots]
        self._effects = [slots[number] for number in effects]

    def __len__(self) -> int:
        return len(self._steps) + 1

    def run(
        self, numbering: ElementNumbering, state: list[bytes], effects: list[bytes]
    ) -> list[bytes]:
        """Runs the steps: value numbers of the results for those of `state`; extends `effects`."""
        numbers: list[Any] = [*state, *self._constants]
        add = numbers.append
        for again, given, read in self._steps:
            if again is None:
                add(hashed(b"".join(read(numbers))))
            else:
                add(again(numbering, given, *read(numbers)))
        for slot in self._effects:
            effect = numbers[slot]
            new = [effect] if isinstance(effect, bytes) else effect[1]
            effects += [e for e in new if len(e) == SIZE or e not in effects]
        return [numbers[slot] for slot in self._roots]


_Step = tuple[Callable[..., Any] | None, Any, Callable[[list[Any]], tuple[Any, ...]]]


def _getter(read: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function of a list that returns its elements at the indices `read`, as a tuple."""
    if len(read) > 1:
        return operator.itemgetter(*read)
    (one,) = read
    return lambda found: (found[one],)


def _operands(term: Term) -> list[bytes]:
    """The value numbers that a number was made from; CheckError if its data is no list of them."""
    if term.again is not None:
        return list(term.operands)
    (data,) = term.operands
    if len(data) % SIZE:
        raise CheckError("the data of a value number is not a list of value numbers")
    return [data[k : k + SIZE] for k in range(0, len(data), SIZE)]


def _parts(term: Term, dependent: set[bytes]) -> list[bytes]:
    """The value numbers that a number was made from (`term`).

    If it is a hash of them, adjacent ones that are constant (not in `dependent`) are joined.
    """
    operands: list[bytes] = []
    joined = False
    for number in _operands(term):
        constant = term.again is None and number not in dependent
        if constant and joined:
            operands[-1] += number
        else:
            operands.append(number)
        joined = constant
    return operands


def _dependent(
    terms: dict[bytes, Term], given: Sequence[bytes], roots: Sequence[bytes]
) -> list[bytes]:
    """The value numbers that `roots` are made of and that change with `given`, operands first.

    Placeholders always count as changing. `terms`: number -> how it is made of others.
    """
    known, order = dict.fromkeys(given, True), list[bytes]()
    waiting = [(number, False) for number in reversed(roots)]
    while waiting:
        number, is_seen = waiting.pop()
        if number in known:
            continue
        if number not in terms:
            known[number] = False
            continue
        operands = _operands(terms[number])
        if not is_seen:
            waiting.append((number, True))
            waiting += [(n, False) for n in operands if n not in known]
        else:
            known[number] = terms[number].is_later or any(known[n] for n in operands)
            if known[number]:
                order.append(number)
    return order


class _Claims:
    """What a while's backend_config says of it, which XLA takes for true.

    Attributes:
      iterations: the trip count; None if it is not said.
      others: hashes of all else that it says, which `hold` does not check.
    """

    def __init__(self, op: Op) -> None:
        self.iterations: int | None = None
        self.others: set[bytes] = set()
        self._counter: tuple[ShapeIndex, int, int] | None = None
        data = op.proto.backend_config
        if not data:
            return
        try:
            said = json.loads(data)
            self.iterations = int(said.pop("known_trip_count")["n"])
            step = said.pop("known_init_step")
            k = int(said.pop("known_induction_variable")["tuple_index"])
            self._counter = (k,), int(step["init"]), int(step["step"])
        except (ValueError, KeyError, TypeError, AttributeError):
            self.others.add(hashed(data))
            return
        if any(said.values()):
            self.others.add(hashed(repr(sorted(said.items())).encode()))

    def hold(self, numbering: ElementNumbering, state: Numbers, iteration: int) -> bool:
        """Whether the counter before an iteration (from 0) is as backend_config says, if at all."""
        if self._counter is None:
            return True
        element, init, step = self._counter
        return numbering.integers.value(state.get(element, b"")) == init + step * iteration


def fixed_elements(start: Numbers, symbols: Numbers, root: Numbers) -> set[ShapeIndex]:
    """Indices of the elements of a loop's state that no iteration changes.

    The body returns each one itself, or another such element with the same initial value: XLA:TPU
    copies loop-invariant values from HBM to VMEM again for each next iteration. `start`: value
    numbers of the initial state. `symbols`: distinct ones for the body's state. `root`: those of
    the body's results for `symbols`.
    """
    fixed = {i for i in start if root[i] == symbols[i]}
    while True:
        known = {(symbols[i], start[i]) for i in fixed}
        more = {i for i in start if i not in fixed and (root[i], start[i]) in known}
        if not more:
            return fixed
        fixed |= more


def note_alike(numbering: ElementNumbering, op: Op, fixed: set[ShapeIndex]) -> None:
    """Records in `numbering.alike` which array each unchanging (`fixed`) element of the state of
    loop `op` is, if a tuple instruction makes its initial state.
    """
    (given,) = op.operands
    (state,) = op.called[0].parameters
    for k, operand in enumerate(given.operands if given.opcode == "tuple" else ()):
        if (k,) in fixed:
            numbering.alike[state, k] = array_of(operand, numbering.alike)
