"""Gives every computation that control flow runs a single caller, as XLA's own pipeline does.

Modules converted from lowered text call one function from many places. XLA inlines calls and clones
the bodies of loops and branches that are shared (CallInliner, FlattenCallGraph) long before it
schedules; jaxlib offers neither pass, so this is their work on the proto. Fused computations,
reducers and the like are not run step by step and stay as they are.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

from hlo import xla_pb2
from hlo.module import HloError
from hlo.walk import after_needs

_Computation = xla_pb2.HloComputationProto
_Instruction = xla_pb2.HloInstructionProto

_RUNNING = frozenset({"while", "conditional", "call", "async-start"})
"""Opcodes that run the computations they call step by step."""

_EFFECTS = ("infeed", "outfeed", "rng-get-and-update-state")
"""Opcodes that are kept although nothing reads them; besides those with a channel."""

_MARKERS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")
"""Custom calls that say where a value lives, and compute nothing on one device."""


def is_shared(proto: xla_pb2.HloModuleProto) -> bool:
    """Whether a computation run by while, conditional, call or async-start has several callers.
    Raises HloError at an unknown id.
    """
    computations = {c.id: c for c in proto.computations}
    seen = {proto.entry_computation_id}
    waiting = [proto.entry_computation_id]
    while waiting:
        for i in _computation(computations, waiting.pop()).instructions:
            for callee in i.called_computation_ids if i.opcode in _RUNNING else ():
                if callee in seen:
                    return True
                seen.add(callee)
                waiting.append(callee)
    return False


def flatten(proto: xla_pb2.HloModuleProto) -> None:
    """Changes a module so that each computation that control flow runs has one caller.

    In a module with a schedule, computations with several callers are cloned with their schedules.
    In one without, calls are inlined, sharding custom-calls and dead code removed, and instructions
    numbered in program order. Bodies of fusions and reducers stay shared. Raises HloError if the
    module refers to an unknown id, or an instruction depends on itself.
    """
    flattener = _Flattener(proto)
    entry = flattener.copy(proto.entry_computation_id, proto.entry_computation_id)
    proto.entry_computation_id = entry
    proto.entry_computation_name = flattener.done[entry].name
    listed = xla_pb2.HloModuleProto(computations=_reachable(flattener.all(), entry))
    del proto.computations[:]
    proto.computations.extend(listed.computations)
    if flattener.scheduled:
        proto.schedule.sequences.clear()
        for number, order in flattener.orders.items():
            proto.schedule.sequences[number].instruction_ids.extend(order)


def _computation(computations: Mapping[int, _Computation], number: int) -> _Computation:
    if number not in computations:
        raise HloError(f"the HLO module refers to unknown id {number}; dump it again")
    return computations[number]


def _reachable(computations: Sequence[_Computation], entry: int) -> list[_Computation]:
    """Returns the computations that the entry calls, also indirectly; both lists callees first."""
    needed = {entry}
    for c in reversed(computations):
        if c.id in needed:
            needed.update(k for i in c.instructions for k in i.called_computation_ids)
    return [c for c in computations if c.id in needed]


def _embedded(computations: Sequence[_Computation]) -> list[_Computation]:
    """Returns the computations that no control flow runs, such as fused ones, and all they call."""
    called: set[int] = set()
    for c in reversed(computations):
        for i in c.instructions:
            if c.id in called or i.opcode not in _RUNNING:
                called.update(i.called_computation_ids)
    return [c for c in computations if c.id in called]


def _program_order(instructions: Iterable[_Instruction]) -> list[_Instruction]:
    """Sorts instructions by id, but each after those it needs. Raises HloError at a cycle."""
    by_id = {i.id: i for i in instructions}
    done = after_needs(
        sorted(by_id),
        lambda k: (*by_id[k].operand_ids, *by_id[k].control_predecessor_ids),
        lambda k: HloError(f"{by_id[k].name} depends on itself; dump the module again"),
    )
    return [by_id[k] for k in done]


class _Flattener:
    """Copies the computations that control flow runs, once for each place they are called from.

    Attributes:
      scheduled: whether the module has a schedule; if not, calls are inlined.
      done: id of a copy -> the copy, callees first. orders: id of a copy -> its schedule, ids.
    """

    def __init__(self, proto: xla_pb2.HloModuleProto) -> None:
        self.scheduled = proto.entry_computation_id in proto.schedule.sequences
        self.done: dict[int, _Computation] = {}
        self.orders: dict[int, list[int]] = {}
        self._computations = {c.id: c for c in proto.computations}
        self._schedule = proto.schedule
        self._ids = itertools.count(max(self._computations) + 1)
        self._embedded = _embedded(proto.computations)
        self._reserved = {c.name for c in proto.computations}
        self._reserved.update(i.name for c in proto.computations for i in c.instructions)
        self._taken = {c.name for c in self._embedded}
        self._taken.update(i.name for c in self._embedded for i in c.instructions)
        self._effects: set[int] = set()

    def all(self) -> list[_Computation]:
        """Lists the copies of computations made so far, and those that need none, callees first."""
        return [*self._embedded, *self.done.values()]

    def copy(self, original: int, number: int) -> int:
        """Copies a computation to `done` as id `number`, and those it runs; returns `number`."""
        old = _computation(self._computations, original)
        new = _Computation()
        new.CopyFrom(old)
        del new.instructions[:]
        new.id, new.name = number, self._name(old.name)
        body = _Body(self, number)
        new.root_id = body.add(old)
        if self.scheduled:
            new.instructions.extend(body.instructions)
            sequence = self._schedule.sequences[original].instruction_ids
            self.orders[number] = [body.new_id(k, original) for k in sequence]
        else:
            new.instructions.extend(self._without_dead(body.instructions, new.root_id))
        if any(self._has_effect(i) for i in new.instructions):
            self._effects.add(number)
        self.done[number] = new
        return number

    def instruction(self, old: _Instruction, number: int) -> _Instruction:
        """Copies an instruction, under id `number`, and the computations that it runs."""
        new = _Instruction()
        new.CopyFrom(old)
        new.id, new.name = number, self._name(old.name)
        if old.opcode in _RUNNING:
            called = [self.copy(k, next(self._ids)) for k in old.called_computation_ids]
            new.called_computation_ids[:] = called
        return new

    def callee(self, call: _Instruction) -> _Computation:
        """Returns the first computation that an instruction of the original module calls."""
        return _computation(self._computations, call.called_computation_ids[0])

    def _name(self, name: str) -> str:
        """Returns `name`, made unique by ".clone1" and so on, and marks it as used."""
        unused = name
        for k in itertools.count(1):
            if unused not in self._taken and (unused == name or unused not in self._reserved):
                break
            unused = f"{name}.clone{k}"
        self._taken.add(unused)
        return unused

    def _has_effect(self, i: _Instruction) -> bool:
        runs = i.opcode in _RUNNING and not self._effects.isdisjoint(i.called_computation_ids)
        return runs or i.opcode in _EFFECTS or bool(i.channel_id) or i.custom_call_has_side_effect

    def _without_dead(self, instructions: Sequence[_Instruction], root: int) -> list[_Instruction]:
        """Drops instructions that nothing reads, but for the root, parameters and side effects."""
        read = {root}
        kept: list[_Instruction] = []
        for i in reversed(instructions):
            if i.id in read or i.opcode == "parameter" or self._has_effect(i):
                read.update((*i.operand_ids, *i.control_predecessor_ids))
                kept.append(i)
        return kept[::-1]


class _Body:
    """Collects copies of one computation's instructions and of those of calls inlined into it."""

    def __init__(self, flattener: _Flattener, number: int) -> None:
        self.instructions: list[_Instruction] = []
        self._flattener = flattener
        self._number = number
        self._new: dict[int, int] = {}
        self._made: dict[int, _Instruction] = {}

    def add(
        self, old: _Computation, arguments: Sequence[int] | None = None, after: Sequence[int] = ()
    ) -> int:
        """Copies a computation's instructions; returns the id of its root's copy.

        Args:
          old: the computation.
          arguments: ids that stand for its parameters where it is inlined; None: it is not.
          after: ids of control predecessors of all copies.
        """
        own: dict[int, int] = {}
        scheduled = self._flattener.scheduled
        for i in old.instructions if scheduled else _program_order(old.instructions):
            operands = [own[k] for k in i.operand_ids]
            before = [*after, *(own[k] for k in i.control_predecessor_ids if k in own)]
            if i.opcode == "parameter" and arguments is not None:
                own[i.id] = arguments[i.parameter_number]
            elif i.opcode == "call" and not scheduled:
                own[i.id] = self.add(self._flattener.callee(i), operands, before)
            else:
                own[i.id] = self._copy(i, operands, before)
        self._new = own
        if scheduled:
            for i in old.instructions:
                control = [own[k] for k in i.control_predecessor_ids]
                self._made[own[i.id]].control_predecessor_ids[:] = control
        return own[old.root_id]

    def new_id(self, old: int, computation: int) -> int:
        """Returns the id of an instruction's copy, in the computation that was added last.
        `old` is its id, or the low half of it alone; `computation` has the original.
        """
        return self._new[old] if old in self._new else self._new[computation << 32 | old]

    def _copy(self, i: _Instruction, operands: list[int], before: list[int]) -> int:
        """Copies an instruction; returns the copy's id, or that of what has the same value already.

        Args:
          operands, before: ids of the copy's operands and control predecessors.
        """
        if not self._flattener.scheduled and not before:
            if i.opcode == "get-tuple-element" and self._made[operands[0]].opcode == "tuple":
                return self._made[operands[0]].operand_ids[i.tuple_index]
            if i.opcode == "custom-call" and i.custom_call_target in _MARKERS:
                if len(operands) == 1 and i.shape == self._made[operands[0]].shape:
                    return operands[0]
        new = self._flattener.instruction(i, self._number << 32 | len(self.instructions))
        new.operand_ids[:] = operands
        new.control_predecessor_ids[:] = before
        self.instructions.append(new)
        self._made[new.id] = new
        return new.id
