"""Value and alias analysis: what every instruction defines, forwards, reads and updates in place.

A value is one buffer-sized result: an instruction and a shape index. Values that XLA must keep in
one buffer (loop state, donation, in-place updates, conditional results) form one alias set; others
may take over the buffer of an operand that dies (`sharing`). The rules follow XLA's
HloDataflowAnalysis (SSA form) and HloAliasAnalysis.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hlo.backend import platform
from hlo.inplace import in_place_pairs
from hlo.module import Computation, HloError, Instruction, Module
from hlo.shapes import Shape, ShapeIndex

ValueMap = dict[ShapeIndex, "Value"]


class Use(NamedTuple):
    """One read of a value: the reading instruction, its operand's number and the index in that."""

    instruction: Instruction
    operand: int
    index: ShapeIndex


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """What an instruction defines at one shape index: the content of one buffer.

    Attributes:
      id: dense, ordered as XLA orders values (computation, instruction, shape index).
      instruction, index: the defining position.
      positions: every (instruction, index) at which it appears, the defining one first.
      uses: reads, through all positions; tuple and get-tuple-element only forward.
      live_out: it appears in the entry computation's result.
      buffer: id of its alias set, the values that must share its buffer.
      counts: whether it lies in the device's main memory, which totals count.
      table_bytes: of a tuple's index table on this platform; 0 of an array.
      forward: while values are found, the value that turned out to be the same; else None.
    """

    instruction: Instruction
    index: ShapeIndex
    shape: Shape
    id: int = -1
    positions: list[tuple[Instruction, ShapeIndex]] = dataclasses.field(default_factory=list)
    uses: list[Use] = dataclasses.field(default_factory=list)
    live_out: bool = False
    buffer: int = -1
    counts: bool = True
    table_bytes: int = 0
    forward: Value | None = None

    def __repr__(self) -> str:
        return f"Value({self.name})"

    @property
    def name(self) -> str:
        """The defining instruction's name, "fusion.3", with the index in a tuple: "fusion.3{1}"."""
        if not self.index:
            return self.instruction.name
        return f"{self.instruction.name}{{{','.join(map(str, self.index))}}}"

    @property
    def bytes(self) -> int:
        """Bytes that the value takes in the device's main memory; 0 if it lies elsewhere."""
        if not self.counts:
            return 0
        return self.table_bytes or self.shape.bytes

    @property
    def color(self) -> int:
        """XLA's number of its memory space: 0 the device's main memory, 5 the host's."""
        return self.shape.memory_space


@dataclasses.dataclass(eq=False)
class Dataflow:
    """The values of a module, where they appear, and which of them must share a buffer.

    Attributes:
      module: the module analysed.
      values: by id.
      at: value at every position (instruction, index) of computations that control flow runs.
      buffers: alias sets (values that must share a buffer), each in id order.
    """

    module: Module
    values: list[Value]
    at: dict[tuple[Instruction, ShapeIndex], Value]
    buffers: list[list[Value]]

    @functools.cached_property
    def seen_in(self) -> dict[Computation, list[Value]]:
        """Maps computations to the values that appear in them, wherever defined, ordered by id."""
        by_computation: dict[Computation, list[Value]] = collections.defaultdict(list)
        for value in self.values:
            for computation in dict.fromkeys(i.computation for i, _ in value.positions):
                by_computation[computation].append(value)
        return by_computation


def analyse(module: Module, target: str = "cpu") -> Dataflow:
    """Finds the values of a module, and which of them must share a buffer under rules for `target`.
    Raises HloError if an instruction that forwards its operands has another shape than they have.
    """
    return _Analysis(module, target).run()


class _Analysis:
    def __init__(self, module: Module, target: str) -> None:
        self.module = module
        self.target = target
        self.platform = platform(target)
        self.maps: dict[Instruction, ValueMap] = {}
        self.values: list[Value] = []
        self.merges: list[tuple[Value, Value]] = []
        """What a loop or a branch gives, and each value that lies where it does."""
        self.states: list[Value] = []
        """Parameters of loops."""

    def run(self) -> Dataflow:
        entry = self.module.entry
        for parameter in entry.parameters:
            self.maps[parameter] = self._define_all(parameter)
        self._computation(entry)
        at = self._positions()
        values = self._number(at)
        self._uses(values)
        buffers = self._buffers(values, at)
        return Dataflow(self.module, values, at, buffers)

    def _define(self, instruction: Instruction, index: ShapeIndex) -> Value:
        shape = instruction.shape.at(index) if index else instruction.shape
        table = self.platform.table_bytes(len(shape.elements)) if shape.is_tuple else 0
        counts = self.platform.counts(shape.memory_space)
        value = Value(instruction, index, shape, counts=counts, table_bytes=table)
        self.values.append(value)
        return value

    def _define_all(self, instruction: Instruction) -> ValueMap:
        return {index: self._define(instruction, index) for index, _ in instruction.shape.indices()}

    def _computation(self, computation: Computation) -> ValueMap:
        for instruction in computation.instructions:
            if instruction.opcode != "parameter":
                self.maps[instruction] = self._instruction(instruction)
        assert computation.root is not None
        return self.maps[computation.root]

    def _instruction(self, i: Instruction) -> ValueMap:
        handler = _FORWARDING.get(i.opcode)
        if handler is not None:
            values = handler(self, i)
            if any([index not in values for index, _ in i.shape.indices()]):
                raise HloError(f"{i.name} does not have its operands' shape; dump the module again")
            return values
        if i.opcode.endswith("-done") and i.operands and i.operands[0].shape.is_tuple:
            return self._done(i)
        values = self._define_all(i)
        if i.opcode in ("copy-start", "all-gather-start", "collective-permute-start", "send"):
            # The start's tuple forwards its operand beside the result.
            where: ShapeIndex = (1,) if i.opcode == "copy-start" else (0,)
            if i.shape.at(where).is_tuple:
                for k, operand in enumerate(i.operands):
                    self._overlay(values, (*where, k), self.maps[operand])
            else:
                self._overlay(values, where, self.maps[i.operands[0]])
        return values

    @staticmethod
    def _overlay(target: ValueMap, prefix: ShapeIndex, source: ValueMap) -> None:
        for index, value in source.items():
            if (*prefix, *index) in target:
                target[(*prefix, *index)] = value

    def _same(self, i: Instruction) -> ValueMap:
        return dict(self.maps[i.operands[0]])

    def _bitcast(self, i: Instruction) -> ValueMap:
        return {(): self.maps[i.operands[0]][()]}

    def _tuple(self, i: Instruction) -> ValueMap:
        values: ValueMap = {(): self._define(i, ())}
        for k, operand in enumerate(i.operands):
            for index, value in self.maps[operand].items():
                values[(k, *index)] = value
        return values

    def _element(self, i: Instruction) -> ValueMap:
        return _subtree(self.maps[i.operands[0]], (i.tuple_index,))

    def _barrier(self, i: Instruction) -> ValueMap:
        if len(i.operands) == 1:
            return self._same(i)
        return self._tuple(i)

    def _done(self, i: Instruction) -> ValueMap:
        """Returns, by shape index, the values of a done: those of the result in its start's tuple,
        and new ones for what that does not have, as of a send, and for an async-done's tuples.
        """
        source = self.maps[i.operands[0]]
        if i.opcode == "all-reduce-done":
            return dict(source)
        prefix: ShapeIndex = (0,) if i.opcode in ("copy-done", "recv-done") else (1,)
        values = _subtree(source, prefix)
        if i.opcode in ("recv-done", "send-done") or set(values) != {
            index for index, _ in i.shape.indices()
        }:
            defined = self._define_all(i)
            if i.opcode == "recv-done":
                self._overlay(defined, (0,), values)
            return defined
        if i.opcode == "async-done":
            return {k: self._define(i, k) if v.shape.is_tuple else v for k, v in values.items()}
        return values

    def _async_start(self, i: Instruction) -> ValueMap:
        if not i.operands and i.called[0].parameters:
            return self._define_all(i)  # its context: an async-update brings the operands
        return self._begun(i, i.operands, i.called)

    def _async_update(self, i: Instruction) -> ValueMap:
        start, *operands = i.operands
        if not operands:
            return self._same(i)
        values = self._begun(i, operands, start.called)
        for k, context in self.maps[start].items():
            # A look-up's update on a SparseCore gives operands and result alone, no context.
            if k[:1] == (2,) and k in values and not values[k].shape.is_tuple:
                values[k] = context
        return values

    def _begun(
        self, i: Instruction, operands: Sequence[Instruction], called: Sequence[Computation]
    ) -> ValueMap:
        """Returns values, by shape index, of an async-start or -update whose operands are
        `operands`. Its tuple is (operands, result, context); the result is that of `called`, whose
        values are found here, too.
        """
        values = self._define_all(i)
        for k, operand in enumerate(operands):
            self._overlay(values, (0, k), self.maps[operand])
        for callee in called:
            for parameter, operand in zip(callee.parameters, operands, strict=True):
                self.maps[parameter] = dict(self.maps[operand])
            arrays = self._computation(callee).items()  # tuples' tables are its own
            arrays = {index: v for index, v in arrays if not v.shape.is_tuple}
            self._overlay(values, (1,), arrays)
        return values

    def _call(self, i: Instruction) -> ValueMap:
        (callee,) = i.called
        for parameter, operand in zip(callee.parameters, i.operands, strict=True):
            self.maps[parameter] = dict(self.maps[operand])
        return dict(self._computation(callee))

    def _conditional(self, i: Instruction) -> ValueMap:
        roots = []
        for branch, operand in zip(i.called, i.operands[1:], strict=True):
            self.maps[branch.parameters[0]] = dict(self.maps[operand])
            roots.append(self._computation(branch))
        values: ValueMap = {}
        for index, _ in i.shape.indices():
            incoming = {_resolve(r[index]) for r in roots}
            if len(incoming) == 1:
                values[index] = incoming.pop()
                continue
            values[index] = self._define(i, index)
            self.merges += [(values[index], v) for v in incoming]
        return values

    def _while(self, i: Instruction) -> ValueMap:
        body, condition = i.called
        init = self.maps[i.operands[0]]
        parameter = body.parameters[0]
        phis = self._define_all(parameter)
        self.maps[parameter] = phis
        root = self._computation(body)
        changed = self._changed(init, phis, root)
        values: ValueMap = {}
        state: ValueMap = {}
        for index, phi in phis.items():
            if index not in changed:
                values[index] = state[index] = init[index]
                continue
            values[index] = self._define(i, index)
            state[index] = self._define(condition.parameters[0], index)
            for other in (init[index], root[index], phi, state[index]):
                self.merges.append((values[index], other))
            self.states += [phi, state[index]]
        self.maps[condition.parameters[0]] = state
        self._computation(condition)
        return values

    @staticmethod
    def _changed(init: ValueMap, phis: ValueMap, root: ValueMap) -> set[ShapeIndex]:
        """Finds the indices of a loop's state that iterations may change; makes the other values of
        `phis` forward to those of `init`.

        Args:
          init, phis, root: values of the state before, in the body's parameter, and at its end.
        """
        changed = set(phis)
        while same := {k for k in changed if _resolve(root[k]) in (phis[k], _resolve(init[k]))}:
            for k in same:
                phis[k].forward = init[k]
            changed -= same
        return changed

    def _positions(self) -> dict[tuple[Instruction, ShapeIndex], Value]:
        at: dict[tuple[Instruction, ShapeIndex], Value] = {}
        for computation in self.module.control_computations:
            for instruction in computation.instructions:
                for index, value in self.maps[instruction].items():
                    at[instruction, index] = _resolve(value)
        return at

    def _number(self, at: dict[tuple[Instruction, ShapeIndex], Value]) -> list[Value]:
        values = [v for (i, index), v in at.items() if v.instruction is i and v.index == index]
        for number, value in enumerate(values):
            value.id = number
            value.positions.append((value.instruction, value.index))
        root = self.module.entry.root
        for (instruction, index), value in at.items():
            if (instruction, index) != value.positions[0]:
                value.positions.append((instruction, index))
            if instruction is root:
                value.live_out = True
        return values

    @staticmethod
    def _uses(values: Iterable[Value]) -> None:
        for value in values:
            for instruction, index in value.positions:
                for user in instruction.users:
                    if user.opcode in _PASSING or (index and user.opcode in _OF_TABLES):
                        continue
                    for k, operand in enumerate(user.operands):
                        if operand is instruction:
                            value.uses.append(Use(user, k, index))

    def _buffers(
        self, values: list[Value], at: dict[tuple[Instruction, ShapeIndex], Value]
    ) -> list[list[Value]]:
        """Joins values that must share a buffer into sets, in the order of XLA's buffers, and sets
        each value's `buffer`. It goes over all values, those that loops and branches make last, and
        joins the sets of each and of what it is aliased with to the largest of them
        (HloAliasAnalysis::CreateBuffers).
        """
        joins: dict[int, set[int]] = {}
        made: set[int] = set()
        for center, other in self.merges:
            a, b = _resolve(center), _resolve(other)
            made.add(a.id)
            joins.setdefault(b.id, set()).add(a.id)
        made |= {_resolve(v).id for v in self.states}
        for computation in self.module.control_computations:
            for i in computation.instructions:
                for operand, operand_index, index in in_place_pairs(i, self.target):
                    a, b = at[i, index], at[i.operands[operand], operand_index]
                    joins.setdefault(a.id, set()).add(b.id)
                    joins.setdefault(b.id, set()).add(a.id)
        root = self.module.entry.root
        assert root is not None
        parameters = self.module.entry.parameters
        for index, (number, parameter_index) in self.module.aliases.items():
            a, b = at[root, index], at[parameters[number], parameter_index]
            joins.setdefault(a.id, set()).add(b.id)
        place = {v.id: (v.id in made, v.id) for v in values}
        slots = {v.id: {v.id} for v in sorted(values, key=lambda v: place[v.id])}
        slot = {k: k for k in slots}
        for k in list(slots):
            if k not in joins:
                continue
            aliased = sorted({k, *joins[k]}, key=place.__getitem__)
            kept = max(aliased, key=lambda v: (len(slots[slot[v]]), -aliased.index(v)))
            kept = slot[kept]
            for v in aliased:
                gone = slot[v]
                if gone != kept:
                    slots[kept] |= slots[gone]
                    for member in slots[gone]:
                        slot[member] = kept
                    slots[gone] = set()
        sets = [[values[k] for k in sorted(members)] for members in slots.values() if members]
        for number, members in enumerate(sets):
            for value in members:
                value.buffer = number
        return sets


_FORWARDING = {
    "bitcast": _Analysis._bitcast,
    "tuple": _Analysis._tuple,
    "get-tuple-element": _Analysis._element,
    "optimization-barrier": _Analysis._barrier,
    "opt-barrier": _Analysis._barrier,
    "domain": _Analysis._same,
    "add-dependency": _Analysis._same,
    "call": _Analysis._call,
    "conditional": _Analysis._conditional,
    "while": _Analysis._while,
    "async-start": _Analysis._async_start,
    "async-update": _Analysis._async_update,
}


def _resolve(value: Value) -> Value:
    while value.forward is not None:
        value = value.forward
    return value


def _subtree(values: ValueMap, prefix: ShapeIndex) -> ValueMap:
    k = len(prefix)
    return {index[k:]: v for index, v in values.items() if index[:k] == prefix}


_PASSING, _OF_TABLES = ("tuple", "domain"), ("get-tuple-element", "copy")
"""Opcodes that only pass values on, and those that do so with a tuple's elements."""
