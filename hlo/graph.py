"""Modules that can be changed: instructions and computations are added, removed and reordered.

Everything that writes into a module does it here: ids of what is new, the order in which XLA lists
instructions, schedules in the ids in which they came, and what goes with what nothing reads.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from hlo import xla_pb2
from hlo.exchange import REPEATABLE
from hlo.instructions import Names, instruction, relist
from hlo.module import HloError
from hlo.walk import after_needs, post_order

_LOCAL = (1 << 32) - 1
"""An instruction's id within its computation: the low half of its id in the module."""

_Instruction = xla_pb2.HloInstructionProto
_Computation = xla_pb2.HloComputationProto
_Shape = xla_pb2.ShapeProto


class MutableComputation:
    """An HLO computation that can be changed; `MutableModule.finish` writes it into the proto.

    Attributes:
      computation: as its module has it; callers set fields in it other than the instructions.
      early: ids of instructions that were added with `early=True`.
    """

    def __init__(self, module: MutableModule, computation: _Computation) -> None:
        self.computation = computation
        self._module = module
        self._by_id = {i.id: i for i in computation.instructions}
        self._next = max(self._by_id, default=computation.id << 32) + 1
        self._listed = list(self._by_id)
        self._before: dict[int, list[int]] = {}
        self._after: dict[int, list[int]] = {}
        """By instruction, what is inserted there."""
        self._new: list[int] = []
        self.early: set[int] = set()
        self._elements: dict[int, _Instruction] = {}
        self._order: list[int] | None = None
        self._is_local = False
        """Schedules have ids of the module, or those within a computation."""
        if computation.id in module.proto.schedule.sequences:
            sequence = module.proto.schedule.sequences[computation.id].instruction_ids
            high = computation.id << 32
            self._is_local = any(k not in self._by_id for k in sequence)
            self._order = [k if k in self._by_id else high | k for k in sequence]

    @functools.cached_property
    def _by_name(self) -> dict[str, _Instruction]:
        return {i.name: i for i in self._by_id.values()}

    @property
    def names(self) -> Names:
        """The module's names, which choose and reserve names for new instructions."""
        return self._module.names

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def order(self) -> list[int]:
        """The execution order, a list of ids that callers may change. HloError if there is none."""
        if self._order is None:
            raise HloError(f"{self.computation.name} has no schedule; dump it after scheduling")
        return self._order

    def named(self, name: str) -> _Instruction:
        """Returns the instruction with this name. Raises HloError if there is none."""
        if name not in self._by_name:
            raise HloError(f"{self.computation.name} has no {name}; plan it again")
        return self._by_name[name]

    def operands(self, i: _Instruction) -> list[_Instruction]:
        """Returns the operands of an instruction, in order."""
        return [self._by_id[k] for k in i.operand_ids]

    def instructions(self) -> list[_Instruction]:
        """Returns all instructions, in the proto's order; added ones come last until `reorder`."""
        return list(self._by_id.values())

    def parameter(self, number: int = 0) -> _Instruction:
        """Returns the parameter instruction of the computation with this number."""
        return next(
            i
            for i in self._by_id.values()
            if i.opcode == "parameter" and i.parameter_number == number
        )

    @property
    def root(self) -> _Instruction:
        """The instruction whose value is the computation's result."""
        return self._by_id[self.computation.root_id]

    @property
    def is_scheduled(self) -> bool:
        """Whether the module has an execution order for this computation."""
        return self._order is not None

    def added(self) -> list[_Instruction]:
        """Lists instructions added without a place to be scheduled at, until `place` is called."""
        return [self._by_id[k] for k in self._new if k in self._by_id]

    def readers(self, i: _Instruction) -> list[_Instruction]:
        """Returns all instructions of the computation that have `i` as an operand."""
        return [r for r in self._by_id.values() if i.id in r.operand_ids]

    def add(
        self,
        i: _Instruction,
        *,
        before: _Instruction | None = None,
        after: _Instruction | None = None,
        early: bool = False,
    ) -> _Instruction:
        """Adds an instruction with a new id and returns it.

        Args:
          before, after: next to which it is listed and scheduled; else `place` is to schedule it.
          early: whether that is to be before all older instructions except parameters.
        """
        i.id = self._next
        self._next += 1
        self._by_id[i.id] = i
        self._by_name[i.name] = i
        if before is not None:
            self._before.setdefault(before.id, []).append(i.id)
        elif after is not None:
            self._after.setdefault(after.id, []).append(i.id)
        else:
            self._new.append(i.id)
        if early:
            self.early.add(i.id)
        return i

    def make(
        self, opcode: str, name: str, shape: _Shape, *operands: _Instruction, **fields: Any
    ) -> _Instruction:
        """Makes an instruction and adds it; a number is added to `name` if that is in use."""
        return self.add(instruction(opcode, self.names.new(name), shape, operands, **fields))

    def tuple_element(self, whole: _Instruction, k: int) -> _Instruction:
        """Adds a get-tuple-element instruction that takes element `k` of the tuple `whole`."""
        name, shape = f"{whole.name}.element", whole.shape.tuple_shapes[k]
        return self.make("get-tuple-element", name, shape, whole, tuple_index=k)

    def element(self, k: int) -> _Instruction:
        """Returns a get-tuple-element `k` of the parameter, a loop's state; adds one if missing."""
        if k not in self._elements:
            elements = (
                i
                for i in self.readers(self.parameter())
                if i.opcode == "get-tuple-element" and i.tuple_index == k
            )
            self._elements[k] = next(elements, None) or self.tuple_element(self.parameter(), k)
        return self._elements[k]

    def cast(self, i: _Instruction, shape: _Shape) -> _Instruction:
        """Returns `i` if it has that shape, else adds a bitcast of it to the shape."""
        return i if i.shape == shape else self.make("bitcast", f"{i.name}.bitcast", shape, i)

    def copy_from(self, source: MutableComputation, rename: Callable[[str], str]) -> None:
        """Fills this empty computation with renamed copies of another's instructions and order."""
        high = self.computation.id << 32
        moved = {k: high | (k & _LOCAL) for k in source._by_id}
        for i in source.instructions():
            copy = _Instruction()
            copy.CopyFrom(i)
            copy.id, copy.name = moved[i.id], rename(i.name)
            copy.operand_ids[:] = [moved[k] for k in i.operand_ids]
            copy.control_predecessor_ids[:] = [moved[k] for k in i.control_predecessor_ids]
            self._by_id[copy.id] = copy
        self._next = max(self._by_id) + 1
        self.computation.root_id = moved[source.computation.root_id]
        if source._order is not None:
            self._order, self._is_local = [moved[k] for k in source._order], source._is_local

    def replace(
        self, old: _Instruction, new: _Instruction, but: _Instruction | None = None
    ) -> None:
        """Makes all readers of `old`, except `but`, read `new`, and `new` the root if `old` was."""
        for reader in self.readers(old):
            if reader is not but:
                reader.operand_ids[:] = [new.id if k == old.id else k for k in reader.operand_ids]
        if self.computation.root_id == old.id:
            self.computation.root_id = new.id

    def sweep(self, lost: Iterable[_Instruction], opcodes: Collection[str] | None = None) -> None:
        """Removes the instructions of `lost` that nothing reads, then likewise their operands.
        The root and side effects stay, and parameters or, with `opcodes`, all other opcodes.
        """
        count: dict[int, int] = dict.fromkeys(self._by_id, 0)
        for i in self._by_id.values():
            for k in set(i.operand_ids):
                count[k] += 1
        waiting = [i.id for i in lost]
        dead: set[int] = set()
        while waiting:
            k = waiting.pop()
            if k in dead or k not in self._by_id:
                continue
            i = self._by_id[k]
            stays = i.opcode == "parameter" if opcodes is None else i.opcode not in opcodes
            acts = i.custom_call_has_side_effect or (i.channel_id and i.opcode not in REPEATABLE)
            if count[k] or k == self.computation.root_id or stays or acts:
                continue
            dead.add(k)
            for operand in set(i.operand_ids):
                count[operand] -= 1
                waiting.append(operand)
        self.remove(dead)

    def remove(self, gone: Collection[int]) -> None:
        """Removes instructions by id; control edges that lead through them connect the others."""
        if not gone:
            return
        for i in self._by_id.values():
            if i.id in gone or not any(k in gone for k in i.control_predecessor_ids):
                continue
            before = after_needs(
                i.control_predecessor_ids,
                lambda k: self._by_id[k].control_predecessor_ids if k in gone else (),
            )
            i.control_predecessor_ids[:] = sorted(k for k in before if k not in gone)
        for k in gone:
            del self._by_name[self._by_id.pop(k).name]
        if self._order is not None:
            self._order = [k for k in self._order if k not in gone]

    def reorder(self) -> None:
        """Sorts the list of instructions, but not the execution order, into XLA's post-order.
        Both get what was added `before` or `after` something.
        """
        self._insert()
        self._by_id = {i.id: i for i in post_order(self.instructions())}

    def place(self, order: Iterable[int]) -> None:
        """Sets the execution order: the ids of all instructions; none is `added()` after this."""
        self._order, self._new = list(order), []

    def finish(self) -> None:
        """Writes the changed instructions and schedule into the proto; nothing may change after."""
        self._insert()
        if list(self._by_id) != self._listed:
            relist(self.computation.instructions, self._by_id.values())
        if self._order is not None:
            ids = [k & _LOCAL for k in self._order] if self._is_local else self._order
            sequence = self._module.proto.schedule.sequences[self.computation.id]
            sequence.instruction_ids[:] = ids

    def _insert(self) -> None:
        """Moves instructions added `before` or `after` others there, in the list and the order."""

        def inserted(ids: Iterable[int]) -> list[int]:
            return [n for k in ids for n in (*before.get(k, ()), k, *after.get(k, ()))]

        before, after = self._before, self._after
        new = {k for at in (before, after) for ks in at.values() for k in ks}
        if new:
            listed = inserted(k for k in self._by_id if k not in new)
            self._by_id = {k: self._by_id[k] for k in listed}
            if self._order is not None:
                self._order = inserted(self._order)
        self._before, self._after = {}, {}


class MutableModule:
    """An HLO module that can be changed, computation by computation, and written back to its proto.

    Attributes:
      proto: of the module, changed in place. computations: by id, added ones included.
    """

    def __init__(self, proto: xla_pb2.HloModuleProto) -> None:
        self.proto = proto
        self.computations = {c.id: c for c in proto.computations}
        self._bodies: dict[int, MutableComputation] = {}
        self._ids = itertools.count(max(self.computations, default=0) + 1)
        self._beside: dict[int | None, list[_Computation]] = {}

    @functools.cached_property
    def names(self) -> Names:
        """The names in use in the module, which choose and reserve names for what is added."""
        return Names(self.proto)

    def body(self, number: int) -> MutableComputation:
        """Returns the one MutableComputation of the computation with this id; makes it at first."""
        if number not in self._bodies:
            self._bodies[number] = MutableComputation(self, self.computations[number])
        return self._bodies[number]

    def bodies(self) -> list[MutableComputation]:
        """Returns the MutableComputations made so far, as asked for (`body`) or added."""
        return list(self._bodies.values())

    def called(self, i: _Instruction, k: int = 0) -> MutableComputation:
        """Returns the computation that `i` calls; number `k`, from 0, if it calls several."""
        return self.body(i.called_computation_ids[k])

    def find(
        self, names: Collection[str], within: Collection[int] | None = None
    ) -> list[tuple[MutableComputation, _Instruction]]:
        """Finds the instructions with these names: (computation, instruction), in module order.
        `within` has ids of the only computations searched, None: all. HloError if one is missing.
        """
        holders: dict[str, int] = {}
        for c in self.proto.computations if names else ():
            for i in c.instructions if within is None or c.id in within else ():
                if i.name in names:
                    holders.setdefault(i.name, c.id)
        if lost := [name for name in names if name not in holders]:
            raise HloError(f"the module has no instruction {lost[0]}; plan it again")
        return [(home, home.named(name)) for name, k in holders.items() for home in [self.body(k)]]

    def new_computation(
        self, computation: _Computation, after: int | None = None
    ) -> MutableComputation:
        """Adds a computation under a new id and returns it; listed after id `after`, else last."""
        computation.id = next(self._ids)
        self.computations[computation.id] = computation
        self._beside.setdefault(after, []).append(computation)
        return self.body(computation.id)

    def finish(self, *, prune: bool = False) -> None:
        """Writes all changed computations into the module's proto.

        Args:
          prune: lists computations callees first, without those that the entry does not reach.
        """
        for body in self._bodies.values():
            body.finish()
        last = self._beside.pop(None, [])
        listed = [k for c in self.proto.computations for k in (c, *self._beside.get(c.id, ()))]
        listed = [*listed, *last]
        if prune:
            listed = self._called(listed)
        if [c.id for c in listed] != [c.id for c in self.proto.computations]:
            relist(self.proto.computations, listed)

    def _called(self, listed: Sequence[_Computation]) -> list[_Computation]:
        """Lists the computations that the entry reaches, callees first; drops others' schedules."""
        calls = {
            c.id: [k for i in c.instructions for k in i.called_computation_ids] for c in listed
        }
        called = set(after_needs([self.proto.entry_computation_id], calls.__getitem__))
        for number in calls.keys() - called:
            if number in self.proto.schedule.sequences:
                del self.proto.schedule.sequences[number]
        done = after_needs((k for k in calls if k in called), calls.__getitem__)
        return [self.computations[k] for k in done]
