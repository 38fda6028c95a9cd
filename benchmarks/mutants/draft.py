"""A scheduled module that is given a fault: its proto, its orders, and who reads what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hlo.module import parse_module_proto
from hlo.shapes import Shape, shape_from_proto

_LOCAL = (1 << 32) - 1
_PASSED_ON = frozenset("bitcast get-tuple-element tuple parameter constant".split())

Source = tuple[int, int]
"""(id of the instruction that defines an array, element of its tuple or -1)."""

Body = Any
Instruction = Any
"""The protos of a computation and of an instruction."""


def passes_on(i: Instruction) -> bool:
    """Whether an instruction only forwards its operand, and reads no array when it runs."""
    return i.opcode in _PASSED_ON


def is_legal(order: Sequence[Instruction]) -> bool:
    """Whether each instruction comes after its operands and control predecessors."""
    done: set[int] = set()
    for i in order:
        if not done.issuperset((*i.operand_ids, *i.control_predecessor_ids)):
            return False
        done.add(i.id)
    return True


class Draft:
    """A module that is being changed.

    Args:
      data: a serialized, scheduled HloModuleProto.

    Attributes:
      proto: the module. bodies: id -> computation.
    """

    def __init__(self, data: bytes) -> None:
        self.load(data)

    def load(self, data: bytes) -> None:
        """Replaces the module by another one."""
        self.proto: Any = parse_module_proto(data)
        self._sources: dict[int, dict[int, Source]] = {}
        self._kinds: dict[int, bytes] = {}
        self.bodies: dict[int, Body] = {c.id: c for c in self.proto.computations}

    @property
    def entry(self) -> Body:
        """The entry computation."""
        return self.bodies[self.proto.entry_computation_id]

    def scheduled(self) -> list[Body]:
        """The computations that run step by step."""
        return [c for c in self.proto.computations if c.id in self.proto.schedule.sequences]

    def fused(self) -> list[Body]:
        """The computations of fusions."""
        called = [
            k
            for c in self.scheduled()
            for i in c.instructions
            if i.opcode == "fusion"
            for k in i.called_computation_ids
        ]
        return [self.bodies[k] for k in dict.fromkeys(called)]

    def order(self, body: Body) -> list[Instruction]:
        """A computation's instructions as they are scheduled."""
        by_id = {i.id & _LOCAL: i for i in body.instructions}
        ids = self.proto.schedule.sequences[body.id].instruction_ids
        return [by_id[k & _LOCAL] for k in ids]

    def set_order(self, body: Body, order: Sequence[Instruction]) -> None:
        """Schedules a computation anew."""
        ids = self.proto.schedule.sequences[body.id].instruction_ids
        known = {k & _LOCAL: k for k in ids}
        ids[:] = [known[i.id & _LOCAL] for i in order]

    def set_order_without(self, body: Body, gone: Instruction) -> None:
        """Removes an instruction that nothing reads."""
        self.set_order(body, [i for i in self.order(body) if i.id != gone.id])
        kept = [type(i).FromString(i.SerializeToString()) for i in body.instructions if i != gone]
        del body.instructions[:]
        body.instructions.extend(kept)
        self.reads_changed()

    def shape(self, i: Instruction) -> Shape:
        """The shape of an instruction's result."""
        return shape_from_proto(i.shape)

    def kind(self, i: Instruction) -> bytes:
        """A key of the result's shape: equal for instructions whose results have the same shape."""
        found = self._kinds.get(i.id)
        if found is None:
            found = self._kinds[i.id] = i.shape.SerializeToString(deterministic=True)
        return found

    def listed(self, body: Body) -> list[Instruction]:
        """A computation's instructions in an order in which they can run."""
        scheduled = body.id in self.proto.schedule.sequences
        return self.order(body) if scheduled else list(body.instructions)

    def sources(self, body: Body) -> dict[int, Source]:
        """By id of an instruction, where its array comes from, behind bitcasts and tuples."""
        found = self._sources.get(body.id)
        if found is None:
            by_id = {i.id: i for i in body.instructions}
            found = self._sources[body.id] = {}
            for i in body.instructions:
                found[i.id] = self._source(i, by_id, found)
        return found

    def _source(
        self, i: Instruction, by_id: dict[int, Instruction], known: dict[int, Source]
    ) -> Source:
        if i.opcode == "bitcast":
            return known[i.operand_ids[0]]
        if i.opcode == "get-tuple-element":
            whole = by_id[i.operand_ids[0]]
            if whole.opcode == "tuple":
                return known[whole.operand_ids[i.tuple_index]]
            return whole.id, i.tuple_index
        return i.id, -1

    def reads_changed(self) -> None:
        """Discards the cached data on who reads what, after operands have changed."""
        self._sources.clear()

    def source(self, body: Body, i: Instruction) -> Source:
        """Where an array comes from, behind bitcasts and elements of tuples."""
        return self.sources(body)[i.id]

    def carriers(self, body: Body, source: Source) -> set[int]:
        """Ids of all instructions whose result is this very array."""
        tuples = {i.id for i in body.instructions if i.shape.tuple_shapes}
        return {k for k, found in self.sources(body).items() if found == source} - tuples

    def readers(self, body: Body, source: Source) -> list[Instruction]:
        """The instructions that read an array when they run."""
        ids = self.carriers(body, source)
        return [
            i for i in body.instructions if not passes_on(i) and not ids.isdisjoint(i.operand_ids)
        ]

    def is_result(self, body: Body, source: Source) -> bool:
        """Whether an array is part of a computation's result."""
        root = next(i for i in body.instructions if i.id == body.root_id)
        ids = self.carriers(body, source)
        return root.id in ids or (root.opcode == "tuple" and not ids.isdisjoint(root.operand_ids))

    def descendants(self, body: Body, i: Instruction) -> set[int]:
        """Ids of an instruction and of all that must come after it."""
        found = {i.id}
        for other in self.order(body):
            if not found.isdisjoint((*other.operand_ids, *other.control_predecessor_ids)):
                found.add(other.id)
        return found

    def finish(self) -> bytes:
        """The module, listed so that operands stand before users and callees before callers."""
        for body in self.scheduled():
            order = self.order(body)
            if is_legal(order) and not is_legal(list(body.instructions)):
                copies = [type(i).FromString(i.SerializeToString()) for i in order]
                del body.instructions[:]
                body.instructions.extend(copies)
        self._list_callees_first()
        return self.proto.SerializeToString(deterministic=True)

    def _list_callees_first(self) -> None:
        """Lists the computations anew where that is needed."""
        listed: dict[int, Body] = {}

        def add(number: int) -> None:
            body = self.bodies[number]
            for i in body.instructions:
                for callee in i.called_computation_ids:
                    if callee not in listed:
                        add(callee)
            listed[number] = body

        for number in self.bodies:
            if number not in listed:
                add(number)
        if list(listed) != list(self.bodies):
            copies = [type(b).FromString(b.SerializeToString()) for b in listed.values()]
            del self.proto.computations[:]
            self.proto.computations.extend(copies)
