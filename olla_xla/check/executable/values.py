"""The value at each shape index of each operation, as in XLA's HloDataflowAnalysis (SSA form).

A value is one array that an operation writes. Tuples, bitcasts and their like only pass values on.
Each element of a loop's state that the body changes is a value of its own; an element that the body
returns unchanged is the initial value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from hlo.shapes import ShapeIndex
from olla_xla.check.executable.program import Body, Op, Program, leaves
from olla_xla.errors import CheckError

At = dict[ShapeIndex, "MemoryValue"]
"""Leaf index -> value, of one operation."""


@dataclasses.dataclass(eq=False, slots=True)
class MemoryValue:
    """One array in memory, as the referee follows it.

    Attributes:
      op, index: where it is defined.
      same: the value that it was found to equal, or None.
      also: other places that stand for it (a loop's condition has a parameter of its own).
      buffer: a number of its own, from which `memory.shared_buffers` joins values that must share
        a buffer; -1 before. It is not the number of the joined buffer.
    """

    op: Op
    index: ShapeIndex
    same: MemoryValue | None = None
    also: tuple[tuple[Op, ShapeIndex], ...] = ()
    buffer: int = -1

    @property
    def name(self) -> str:
        """The value's name for messages: "fusion.3", or "fusion.3{1}" for an element of a tuple."""
        where = ",".join(map(str, self.index))
        return f"{self.op.name}{{{where}}}" if self.index else self.op.name


@dataclasses.dataclass(eq=False)
class Frame:
    """One run of a computation: which value each of its operations gives.

    Attributes:
      body: what runs.
      at: operation -> values at its leaves.
      inner: operation -> the runs of what it calls.
      states: while operation -> (index, value that goes in, state, body's result, result after) of
        each element that the body changes.
      choices: conditional operation -> (result, what each branch gives for it) where they differ.
    """

    body: Body
    at: dict[Op, At] = dataclasses.field(default_factory=dict)
    inner: dict[Op, tuple[Frame, ...]] = dataclasses.field(default_factory=dict)
    states: dict[
        Op, list[tuple[ShapeIndex, MemoryValue, MemoryValue, MemoryValue, MemoryValue]]
    ] = dataclasses.field(default_factory=dict)
    choices: dict[Op, list[tuple[MemoryValue, tuple[MemoryValue, ...]]]] = dataclasses.field(
        default_factory=dict
    )

    def every(self) -> Iterator[Frame]:
        """Yields this run and all those inside it, each before those that it calls."""
        yield self
        for called in self.inner.values():
            for frame in called:
                yield from frame.every()


def resolve(value: MemoryValue) -> MemoryValue:
    """The value that `value` was found to equal (`same`, followed to its end), or itself."""
    while value.same is not None:
        value = value.same
    return value


@dataclasses.dataclass(eq=False)
class Values:
    """All values of a program, as dataflow analysis finds them.

    Attributes:
      frame: the entry computation's `Frame`: operation -> its values, and frames of what it calls.
      defined: every value, in order of definition.
    """

    frame: Frame
    defined: list[MemoryValue]


def follow(program: Program) -> Values:
    """Finds the values of all operations. Raises CheckError where a computation has no schedule, or
    does not fit the operation that calls it.
    """
    follower = _ValueFollower()
    frame = Frame(program.entry)
    for parameter in program.entry.parameters:
        frame.at[parameter] = follower.define(parameter)
    follower.run(frame)
    return Values(frame, follower.defined)


class _ValueFollower:
    def __init__(self) -> None:
        self.defined: list[MemoryValue] = []

    def value(self, op: Op, index: ShapeIndex) -> MemoryValue:
        value = MemoryValue(op, index)
        self.defined.append(value)
        return value

    def define(self, op: Op, passed: At | None = None) -> At:
        """Shape index -> value for each leaf of `op`'s result: that in `passed`, or a new one."""
        passed = passed or {}
        return {
            index: passed[index] if index in passed else self.value(op, index)
            for index, _ in leaves(op.shape)
        }

    def run(self, frame: Frame) -> At:
        if not frame.body.scheduled:
            raise CheckError(f"computation {frame.body.name} has no schedule")
        for op in frame.body.ops:
            if op.opcode != "parameter":
                handler = _HANDLERS.get(op.opcode)
                frame.at[op] = (
                    self.other(frame, op) if handler is None else handler(self, frame, op)
                )
        return frame.at[frame.body.result]

    def other(self, frame: Frame, op: Op) -> At:
        """Values of an operation without a rule: new ones, but where it passes some on, as of
        starts (their operands) and dones (what their starts made).
        """
        if op.opcode.endswith("-done") and op.operands[0].shape.is_tuple:
            return self.done(frame, op)
        prefix = _REPEATED.get(op.opcode)
        passed: At = {}
        if prefix is not None:
            whole = op.shape.at(prefix)
            for k, operand in enumerate(op.operands):
                where = (*prefix, k) if whole.is_tuple else prefix
                passed |= _above(frame.at[operand], where)
        return self.define(op, passed)

    def done(self, frame: Frame, op: Op) -> At:
        source = frame.at[op.operands[0]]
        if op.opcode == "all-reduce-done":
            return dict(source)
        prefix: ShapeIndex = (0,) if op.opcode in ("copy-done", "recv-done") else (1,)
        taken = {} if op.opcode == "send-done" else _below(source, prefix)  # which gives a token
        if op.opcode == "async-done" and set(taken) != {i for i, _ in leaves(op.shape)}:
            raise CheckError(f"{op.name} does not return what {op.operands[0].name} computed")
        if op.opcode == "recv-done":
            taken = _above(taken, (0,))
        return self.define(op, taken)

    def same(self, frame: Frame, op: Op) -> At:
        return dict(frame.at[op.operands[0]])

    def barrier(self, frame: Frame, op: Op) -> At:
        return self.same(frame, op) if len(op.operands) == 1 else self.pack(frame, op)

    def pack(self, frame: Frame, op: Op) -> At:
        return {
            (k, *index): value
            for k, operand in enumerate(op.operands)
            for index, value in frame.at[operand].items()
        }

    def element(self, frame: Frame, op: Op) -> At:
        values, prefix = frame.at[op.operands[0]], (op.proto.tuple_index,)
        return _below(values, prefix) if op.shape.is_tuple else {(): values[prefix]}

    def enter(self, frame: Frame, op: Op, body: Body, given: list[At]) -> At:
        """Follows a callee in a new Frame (added to `frame.inner`), its parameters `given`; returns
        its result's values. CheckError if `given` are too few or too many.
        """
        if len(given) != len(body.parameters):
            raise CheckError(f"{op.name} calls a computation with a wrong number of operands")
        inner = Frame(body)
        for parameter, values in zip(body.parameters, given, strict=True):
            inner.at[parameter] = dict(values)
        frame.inner[op] = (*frame.inner.get(op, ()), inner)
        return self.run(inner)

    def call(self, frame: Frame, op: Op) -> At:
        return dict(self.enter(frame, op, op.called[0], [frame.at[o] for o in op.operands]))

    def begin(self, frame: Frame, op: Op) -> At:
        """Values of an async-start: (operands, result of the computation it wraps, context)."""
        passed: At = {}
        for k, operand in enumerate(op.operands):
            passed |= _above(frame.at[operand], (0, k))
        return self.define(op, passed | _above(self.call(frame, op), (1,)))

    def choose(self, frame: Frame, op: Op) -> At:
        roots = [
            self.enter(frame, op, body, [frame.at[operand]])
            for body, operand in zip(op.called, op.operands[1:], strict=True)
        ]
        values: At = {}
        for index, _ in leaves(op.shape):
            parts = tuple(resolve(root[index]) for root in roots)
            if all(part is parts[0] for part in parts):
                values[index] = parts[0]
                continue
            values[index] = self.value(op, index)
            frame.choices.setdefault(op, []).append((values[index], parts))
        return values

    def loop(self, frame: Frame, op: Op) -> At:
        body, condition = op.called
        start = frame.at[op.operands[0]]
        inside, tested = body.parameters[0], condition.parameters[0]
        state = {index: self.value(inside, index) for index, _ in leaves(inside.shape)}
        for index, value in state.items():
            value.also = ((tested, index),)
        root = self.enter(frame, op, body, [state])
        _find_unchanged(state, start, root)
        values: At = {}
        for index, value in state.items():
            if value.same is not None:
                values[index] = start[index]
                continue
            values[index] = self.value(op, index)
            frame.states.setdefault(op, []).append(
                (index, start[index], value, root[index], values[index])
            )
        self.enter(frame, op, condition, [state])
        return values


def _find_unchanged(state: At, start: At, root: At) -> None:
    """Sets `same` of the elements of a loop's state that always have their initial value.

    The body returns such an element unchanged, or the same initial value in its place.
    """
    more = True
    while more:
        more = False
        for index, value in state.items():
            end = resolve(root[index])
            if value.same is None and (end is value or end is resolve(start[index])):
                value.same, more = start[index], True


_REPEATED: dict[str, ShapeIndex] = {
    "copy-start": (1,),
    "all-gather-start": (0,),
    "collective-permute-start": (0,),
    "send": (0,),
}
"""Opcode -> where in its result a start repeats its operands."""

_HANDLERS = {
    "bitcast": _ValueFollower.same,
    "domain": _ValueFollower.same,
    "add-dependency": _ValueFollower.same,
    "async-update": _ValueFollower.same,
    "opt-barrier": _ValueFollower.barrier,
    "optimization-barrier": _ValueFollower.barrier,
    "tuple": _ValueFollower.pack,
    "get-tuple-element": _ValueFollower.element,
    "call": _ValueFollower.call,
    "async-start": _ValueFollower.begin,
    "conditional": _ValueFollower.choose,
    "while": _ValueFollower.loop,
}


def _below(values: At, prefix: ShapeIndex) -> At:
    k = len(prefix)
    return {index[k:]: value for index, value in values.items() if index[:k] == prefix}


def _above(values: At, prefix: ShapeIndex) -> At:
    return {(*prefix, *index): value for index, value in values.items()}
