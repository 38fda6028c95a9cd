"""Runs a program's scalar integers, such as loops' counters and the indices of slices.

Operations run in their order, loops iteration by iteration, and a visitor sees those that it asks
for, with their operands. Everything that is no scalar integer is unknown. `Integers` has the rules,
which are XLA's definitions of the operations, so nothing is taken from XLA's own analysis.
"""

from collections.abc import Callable, Collection, Sequence

from olla_xla.check.executable.integers import Integers
from olla_xla.check.executable.program import CONTROL_FLOW, Body, Op

Known = bytes | tuple["Known", ...]
"""A value number of `Integers`, or one for each element of a tuple."""

UNKNOWN = b""

Visitor = Callable[[Op, Sequence[Known], tuple[int, ...]], None]
"""Gets an operation, its operands, and the iteration of each enclosing loop, outermost first."""

MOST_STEPS = 1 << 20
"""Limit for the operations that are evaluated."""

_BLIND = 16
"""Iterations that are run of a loop whose condition is not known."""

_STILL = frozenset("bitcast copy reshape optimization-barrier opt-barrier async-update".split())


class OutOfStepsError(Exception):
    """A program takes more than `MOST_STEPS` steps to evaluate, or never ends."""


class Scalars:
    """Evaluates the scalar integers of a program, iteration by iteration.

    `visit` gets operations in `wanted`, what is known of their operands, and loops' iterations.
    """

    def __init__(self, wanted: Collection[Op], visit: Visitor) -> None:
        self.integers = Integers()
        self.blind: set[Op] = set()
        """Loops whose condition was not known: only their first iterations were run."""
        self._wanted, self._visit = frozenset(wanted), visit
        self._holds: dict[Op, bool] = {}
        self._plans: dict[Body, list[Op]] = {}
        self._steps = 0

    def run(
        self, body: Body, given: Sequence[Known], iterations: tuple[int, ...] = ()
    ) -> dict[Op, Known]:
        """Evaluates the scalar integers of a computation; returns operation -> what is known of it.

        Calls `visit` for those wanted. Raises OutOfStepsError after `MOST_STEPS` steps, or if a
        loop never ends. `given`: its arguments. `iterations`: of the loops that it is in.
        """
        known: dict[Op, Known] = dict(zip(body.parameters, given, strict=False))
        for op in self._plan(body):
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise OutOfStepsError
            operands = [known.get(operand, UNKNOWN) for operand in op.operands]
            if op in self._wanted:
                self._visit(op, operands, iterations)
            known[op] = self._result(op, operands, iterations)
        return known

    def _result(self, op: Op, operands: list[Known], iterations: tuple[int, ...]) -> Known:
        match op.opcode:
            case "tuple":
                return tuple(operands)
            case "get-tuple-element":
                return _part(operands[0], op.proto.tuple_index)
            case "while":
                return self._loop(op, operands[0], iterations)
            case "conditional":
                return self._branch(op, operands, iterations)
            case "call":
                return self._called(op.called[0], operands, iterations)
            case "fusion" if op.shape.is_tuple or Integers.type_of(op):
                return self._called(op.called[0], operands, iterations)
            case "async-start":
                return tuple(operands), self._called(op.called[0], operands, iterations)
            case "async-done":
                return _part(operands[0], 1)
            case opcode if opcode in _STILL and len(operands) == 1:
                return operands[0]
        kind = Integers.type_of(op)
        if not kind or any(isinstance(operand, tuple) for operand in operands):
            return UNKNOWN
        plain = [operand for operand in operands if isinstance(operand, bytes)]
        return self.integers.result(op, kind, plain) or UNKNOWN

    def _called(self, body: Body, operands: Sequence[Known], iterations: tuple[int, ...]) -> Known:
        return self.run(body, operands, iterations).get(body.result, UNKNOWN)

    def _loop(self, op: Op, state: Known, iterations: tuple[int, ...]) -> Known:
        if not self._needs(op):
            return UNKNOWN
        body, condition = op.called
        count, is_blind = 0, False
        while not is_blind or count < _BLIND:
            test = self._called(condition, [state], (*iterations, count))
            goes_on = self.integers.value(test) if isinstance(test, bytes) else None
            if goes_on == 0:
                return state if not is_blind else UNKNOWN
            if goes_on is None:
                is_blind = True
                self.blind.add(op)
            before, state = state, self._called(body, [state], (*iterations, count))
            if goes_on and state == before:
                raise OutOfStepsError  # it never ends
            count += 1
        return UNKNOWN

    def _branch(self, op: Op, operands: list[Known], iterations: tuple[int, ...]) -> Known:
        chosen = operands[0]
        value = self.integers.value(chosen) if isinstance(chosen, bytes) else None
        if value is None:
            for body, given in zip(op.called, operands[1:], strict=True):
                self._called(body, [given], iterations)
            return UNKNOWN
        last = len(op.called) - 1
        if op.operands[0].shape.dtype == "pred":
            k = 1 - value
        else:
            k = value if 0 <= value <= last else last
        return self._called(op.called[k], [operands[1 + k]], iterations)

    def _needs(self, op: Op) -> bool:
        """Whether an operation is one that `visit` gets, or calls a computation that has one."""
        if op not in self._holds:
            self._holds[op] = op in self._wanted or any(
                self._needs(inner) for body in op.called for inner in body.ops
            )
        return self._holds[op]

    def _plan(self, body: Body) -> list[Op]:
        """The operations to evaluate: of integers or tuples, for `visit`, or that contain such."""
        if body not in self._plans:
            self._plans[body] = [op for op in body.ops if self._is_followed(op)]
        return self._plans[body]

    def _is_followed(self, op: Op) -> bool:
        if op.opcode == "parameter":
            return False
        if op in self._wanted or op.shape.is_tuple:
            return True
        return bool(Integers.type_of(op)) or (op.opcode in CONTROL_FLOW and self._needs(op))


def _part(value: Known, k: int) -> Known:
    return value[k] if isinstance(value, tuple) and k < len(value) else UNKNOWN
