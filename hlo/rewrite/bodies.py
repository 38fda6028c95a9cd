"""Computations that run step by step while instructions come and go, their orders kept in step."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Container, Iterable, Mapping

from hlo import xla_pb2
from hlo.exchange import REPEATABLE
from hlo.module import HloError
from hlo.rewrite.trim import without_unread
from hlo.rewrite.walk import after_needs, post_order

_LOCAL = (1 << 32) - 1

_Instruction = xla_pb2.HloInstructionProto
_Computation = xla_pb2.HloComputationProto
_Shape = xla_pb2.ShapeProto


class Names:
    """The names of a module's computations and instructions, in order to give new ones."""

    def __init__(self, proto: xla_pb2.HloModuleProto) -> None:
        self._taken = {c.name for c in proto.computations}
        self._taken.update(i.name for c in proto.computations for i in c.instructions)

    def new(self, name: str) -> str:
        """`name`, with a number added if it is in use; the result counts as in use from now on."""
        found = name
        for k in itertools.count(1):
            if found not in self._taken:
                break
            found = f"{name}.{k}"
        self._taken.add(found)
        return found


def tuple_element(whole: _Instruction, k: int, names: Names) -> _Instruction:
    """A new get-tuple-element of element `k` of `whole`; the caller adds it to a computation."""
    i = _Instruction(
        name=names.new(f"{whole.name}.element"),
        opcode="get-tuple-element",
        operand_ids=[whole.id],
        tuple_index=k,
    )
    i.shape.CopyFrom(whole.shape.tuple_shapes[k])
    return i


class MutableComputation:
    """A scheduled computation that is being edited; `finish` writes the result into the module.

    Args:
      proto: the module. computation: one of its computations. names: of the module.

    Raises:
      HloError: the computation has no schedule.
    """

    def __init__(
        self, proto: xla_pb2.HloModuleProto, computation: _Computation, names: Names
    ) -> None:
        if computation.id not in proto.schedule.sequences:
            raise HloError(f"{computation.name} has no schedule; dump it after scheduling")
        self.computation = computation
        self._proto = proto
        self._names = names
        self._by_id = {i.id: i for i in computation.instructions}
        self._by_name = {i.name: i for i in computation.instructions}
        self._new: list[int] = []
        self._early: set[int] = set()
        self._dead: set[int] = set()
        self._next = max(self._by_id) + 1
        sequence = proto.schedule.sequences[computation.id].instruction_ids
        high = computation.id << 32
        self._is_local = any(k not in self._by_id for k in sequence)
        self._order = [k if k in self._by_id else high | k for k in sequence]
        self._elements: dict[int, _Instruction] = {}

    def named(self, name: str) -> _Instruction:
        """The instruction with this name. Raises HloError if there is none."""
        if name not in self._by_name:
            raise HloError(f"{self.computation.name} has no {name}; plan it again")
        return self._by_name[name]

    def operands(self, i: _Instruction) -> list[_Instruction]:
        """The operands of an instruction, in order."""
        return [self._by_id[k] for k in i.operand_ids]

    def instructions(self) -> list[_Instruction]:
        """All instructions that have not been removed, in no particular order."""
        return [i for i in self._by_id.values() if i.id not in self._dead]

    def parameter(self) -> _Instruction:
        """The parameter of a computation that has only one."""
        return next(i for i in self._by_id.values() if i.opcode == "parameter")

    def root(self) -> _Instruction:
        """The instruction whose value is the computation's result."""
        return self._by_id[self.computation.root_id]

    def readers(self, number: int) -> list[_Instruction]:
        """All instructions that have the instruction with id `number` as an operand."""
        return [i for i in self.instructions() if number in i.operand_ids]

    def add(self, i: _Instruction, *, early: bool = False) -> _Instruction:
        """Adds an instruction with a new id and returns it; `place_new` schedules it.

        With `early` it is scheduled before all older instructions except parameters.
        """
        i.id = self._next
        self._next += 1
        self._by_id[i.id] = i
        self._by_name[i.name] = i
        self._new.append(i.id)
        if early:
            self._early.add(i.id)
        return i

    def element(self, k: int) -> _Instruction:
        """The get-tuple-element of the parameter (a loop's state) at `k`, added if need be."""
        if k not in self._elements:
            parameter = self.parameter()
            found = [
                i
                for i in self.readers(parameter.id)
                if i.opcode == "get-tuple-element" and i.tuple_index == k
            ]
            if not found:
                found = [self.add(tuple_element(parameter, k, self._names))]
            self._elements[k] = found[0]
        return self._elements[k]

    def cast(self, i: _Instruction, shape: _Shape) -> _Instruction:
        """Adds a bitcast of `i` to a shape and returns it; `i` itself if it has that shape."""
        if i.shape == shape:
            return i
        cast = _Instruction(
            name=self._names.new(f"{i.name}.bitcast"), opcode="bitcast", operand_ids=[i.id]
        )
        cast.shape.CopyFrom(shape)
        return self.add(cast)

    def replace(self, old: _Instruction, new: _Instruction) -> None:
        """Makes the readers of `old` read `new`, and makes `new` the root if `old` is the root."""
        for reader in self.readers(old.id):
            reader.operand_ids[:] = [new.id if k == old.id else k for k in reader.operand_ids]
        if self.computation.root_id == old.id:
            self.computation.root_id = new.id

    def alive(self, numbers: Iterable[int]) -> str:
        """The name of the first instruction of these ids that has not been removed, or ""."""
        return next((self._by_id[k].name for k in numbers if k not in self._dead), "")

    def sweep(self, lost: Iterable[int]) -> None:
        """Removes unread instructions without side effects: those of ids `lost`, then operands."""
        count: dict[int, int] = dict.fromkeys(self._by_id, 0)
        for i in self.instructions():
            for k in set(i.operand_ids):
                count[k] += 1
        waiting = list(lost)
        while waiting:
            k = waiting.pop()
            i = self._by_id[k]
            kept = count[k] or k in self._dead or k == self.computation.root_id
            acts = i.custom_call_has_side_effect or (i.channel_id and i.opcode not in REPEATABLE)
            if kept or i.opcode == "parameter" or acts:
                continue
            self._dead.add(k)
            for operand in set(i.operand_ids):
                count[operand] -= 1
                waiting.append(operand)
        self._bridge_control()

    def trim(self, lost: Iterable[int], computations: Mapping[int, _Computation]) -> None:
        """Drops fusion outputs that only removed instructions, of ids `lost`, read, as XLA does."""
        fusions = [
            k
            for number in lost
            if number in self._dead
            for k in self._by_id[number].operand_ids
            if k not in self._dead and self._by_id[k].opcode == "fusion"
        ]
        self._trim(dict.fromkeys(fusions), computations)

    def trim_new(self, computations: Mapping[int, _Computation]) -> None:
        """Drops unread outputs of added fusions, and added fusions that nothing reads."""
        opcodes = ("fusion", "custom-call")
        made = [k for k in self._new if k not in self._dead and self._by_id[k].opcode in opcodes]
        self._trim(made, computations)

    def _trim(self, touched: Collection[int], computations: Mapping[int, _Computation]) -> None:
        if not touched:
            return
        kept, root = without_unread(
            self.instructions(), self.computation.root_id, computations, touched
        )
        self._dead |= self._by_id.keys() - {i.id for i in kept}
        self.computation.root_id = root
        self._bridge_control()

    def _bridge_control(self) -> None:
        """Replaces control predecessors that are gone by their own control predecessors."""
        if not self._dead:
            return
        for i in self.instructions():
            if not any(k in self._dead for k in i.control_predecessor_ids):
                continue
            kept: dict[int, None] = {}
            waiting, seen = list(i.control_predecessor_ids), set()
            while waiting:
                k = waiting.pop()
                if k in seen:
                    continue
                seen.add(k)
                if k in self._dead:
                    waiting += self._by_id[k].control_predecessor_ids
                else:
                    kept[k] = None
            i.control_predecessor_ids[:] = sorted(kept)

    def place_new(self) -> None:
        """Schedules each added instruction right before its first reader; removes unread ones."""
        if not self._new:
            return
        step = {k: n for n, k in enumerate(self._order)}
        readers: dict[int, list[int]] = {k: [] for k in self._new}
        for i in self.instructions():
            for k in i.operand_ids:
                if k in readers:
                    readers[k].append(i.id)
        before: dict[int, list[int]] = {}
        first = next(n for n, k in enumerate(self._order) if self._by_id[k].opcode != "parameter")
        new = self._operands_first(self._new, set(self._new))
        for k in reversed(new):
            if k in self._dead:
                continue
            found = [first] if k in self._early else [step[r] for r in readers[k] if r in step]
            if found:
                found += [step[w] for w in self._overwriting(self._by_id[k]) if w in step]
            if not found:
                self._dead.add(k)  # made for a use that came to nothing
                continue
            step[k] = min(found)
        for k in new:
            if k not in self._dead:
                before.setdefault(self._order[step[k]], []).append(k)
        self._order = [n for k in self._order for n in (*before.get(k, ()), k)]
        self._new = []
        self._put_operands_first()

    def _overwriting(self, i: _Instruction) -> list[int]:
        """Of a loop's body, what may write the next iteration's state over elements that are
        read.
        """
        root = self.root()
        if root.opcode != "tuple":
            return []
        elements = [
            o for o in self.operands(i) if o.opcode == "get-tuple-element" and self._of_state(o)
        ]
        nexts = {e.id: root.operand_ids[e.tuple_index] for e in elements}
        return [n for e, n in nexts.items() if n != e]

    def _of_state(self, element: _Instruction) -> bool:
        return self._by_id[element.operand_ids[0]].opcode == "parameter"

    def _put_operands_first(self) -> None:
        """Moves what is read earlier now to before its first reader."""
        self._order = self._operands_first(self._order, self._by_id)

    def _operands_first(self, order: Iterable[int], among: Container[int]) -> list[int]:
        """The same order with each after what it needs; that of `among` is taken in."""

        def needs(k: int) -> list[int]:
            i = self._by_id[k]
            before = (*i.operand_ids, *i.control_predecessor_ids)
            return [n for n in before if n in among and n not in self._dead and k not in self._dead]

        return after_needs(order, needs, lambda k: HloError(f"{self._by_id[k].name} reads itself"))

    def finish(self) -> None:
        """Writes the instructions, in post-order, and the schedule into the module."""
        kept = post_order(self.instructions())
        if [i.id for i in kept] != [i.id for i in self.computation.instructions]:
            listed = _Computation(instructions=kept)
            del self.computation.instructions[:]
            self.computation.instructions.extend(listed.instructions)
        ids = [k for k in self._order if k not in self._dead]
        sequence = self._proto.schedule.sequences[self.computation.id]
        sequence.instruction_ids[:] = [k & _LOCAL for k in ids] if self._is_local else ids


def list_computations(proto: xla_pb2.HloModuleProto, new: Iterable[_Computation]) -> None:
    """Lists a module's computations, callees first, without those that the entry does not reach.

    Args:
      proto: the module, changed in place. new: computations to add.
    """
    by_id = {c.id: c for c in (*proto.computations, *new)}
    called = {proto.entry_computation_id: None}
    waiting = [proto.entry_computation_id]
    while waiting:
        for i in by_id[waiting.pop()].instructions:
            for k in i.called_computation_ids:
                if k not in called:
                    called[k] = None
                    waiting.append(k)
    done = after_needs(
        (k for k in by_id if k in called),
        lambda k: [n for i in by_id[k].instructions for n in i.called_computation_ids],
    )
    for number in by_id.keys() - called.keys():
        if number in proto.schedule.sequences:
            del proto.schedule.sequences[number]
    listed = xla_pb2.HloModuleProto(computations=[by_id[k] for k in done])
    del proto.computations[:]
    proto.computations.extend(listed.computations)
