"""A scheduled module cut down to what some of its instructions need.

The results are no programs that compute what they did, but what is left of them runs as before: in
the same order, with the same names and ids, and so at the same places of a buffer assignment.
"""

from collections.abc import Collection, Iterable
from typing import Any

from hlo import xla_pb2
from hlo.module import parse_module_proto
from hlo.shapes import shape_from_proto
from hlo.wire import Message

_LOCAL = (1 << 32) - 1
_TUPLE = 13  # xla.PrimitiveType
_HOST_PROGRAM_SHAPE = 4  # of HloModuleProto: what the caller gives and gets


class CutModule:
    """A module that is being cut.

    Args:
      module: serialized, scheduled HloModuleProto. needed: names of instructions that stay.

    Attributes:
      needed: those, what calls computations with them, and what waits for them.
    """

    def __init__(self, module: bytes, needed: Collection[str]) -> None:
        self.proto = parse_module_proto(module)
        self.needed = set(needed)
        around = set[int]()
        for c in self.proto.computations:  # callees first
            begun = set[int]()
            for i in c.instructions:
                ends = i.opcode.endswith(("-done", "-update")) and i.operand_ids[0] in begun
                if ends or around.intersection(i.called_computation_ids):
                    self.needed.add(i.name)
                if i.name in self.needed:
                    around.add(c.id)
                    begun.add(i.id)
        self._sequences: Any = self.proto.schedule.sequences
        self._scheduled = [c for c in self.proto.computations if c.id in self._sequences]
        (self._entry,) = (c for c in self._scheduled if c.id == self.proto.entry_computation_id)

    def inputs(self) -> list[str]:
        """Instructions of the entry computation that `opaque` can make arguments."""
        kept = ("parameter", "tuple", "get-tuple-element", "bitcast", "constant")
        found = (i for i in self._entry.instructions if i.opcode not in kept)
        return [i.name for i in found if i.name not in self.needed]

    def states(self) -> list[tuple[int, int]]:
        """(loop's body, element of its state) that `passed_on` can leave unchanged."""
        return [
            (c.id, k)
            for c, root in self._loops()
            for k, number in enumerate(root.operand_ids)
            if not any(i.id == number and i.opcode == "get-tuple-element" for i in c.instructions)
        ]

    def _loops(self) -> Iterable[tuple[Any, Any]]:
        bodies = {
            i.called_computation_ids[0]
            for c in self._scheduled
            for i in c.instructions
            if i.opcode == "while"
        }
        for c in self._scheduled:
            root = next(i for i in c.instructions if i.id == c.root_id)
            if c.id in bodies and root.opcode == "tuple":
                yield c, root

    def ended(self) -> None:
        """The module ends behind the last instruction that is needed, and has no results."""
        entry, order = self._entry, self._sequences[self._entry.id].instruction_ids
        needed = {i.id & _LOCAL for i in entry.instructions if i.name in self.needed}
        last = max((n for n, k in enumerate(order) if k & _LOCAL in needed), default=-1)
        behind = {k & _LOCAL for k in order[last + 1 :]}
        kept = [i for i in entry.instructions if i.id & _LOCAL not in behind]
        kept += [i for i in entry.instructions if i not in kept and i.opcode == "parameter"]
        root = xla_pb2.HloInstructionProto(name="cut", opcode="tuple", id=self._new_id(entry))
        root.shape.element_type = _TUPLE
        self._set(entry, [*kept, root])
        entry.root_id = root.id
        entry.ClearField("program_shape")
        for alias in self.proto.input_output_alias.entries:
            self.proto.buffer_donor.entries.add(
                parameter_number=alias.parameter_number,
                parameter_shape_index=alias.parameter_shape_index,
            )
        del self.proto.input_output_alias.entries[:]

    def opaque(self, names: Collection[str]) -> None:
        """Instructions of the entry computation become arguments, which are given away."""
        number = sum(i.opcode == "parameter" for i in self._entry.instructions)
        for i in self._entry.instructions:
            if i.name not in names:
                continue
            new = xla_pb2.HloInstructionProto(name=i.name, opcode="parameter", id=i.id)
            new.shape.CopyFrom(i.shape)
            new.parameter_number = number
            i.CopyFrom(new)
            for index, _ in shape_from_proto(i.shape).indices():
                self.proto.buffer_donor.entries.add(
                    parameter_number=number, parameter_shape_index=index
                )
            number += 1

    def passed_on(self, elements: Collection[tuple[int, int]]) -> None:
        """Loops' bodies pass elements of their state on, instead of computing new ones."""
        for c, root in self._loops():
            (state,) = (i for i in c.instructions if i.opcode == "parameter")
            for k in (k for number, k in elements if number == c.id):
                new = xla_pb2.HloInstructionProto(
                    name=f"cut.{c.id}.{k}", opcode="get-tuple-element", id=self._new_id(c),
                    tuple_index=k, operand_ids=[state.id],
                )  # fmt: skip
                new.shape.CopyFrom(state.shape.tuple_shapes[k])
                root.operand_ids[k] = new.id
                at = next(n for n, i in enumerate(c.instructions) if i.id == c.root_id)
                self._set(c, [*c.instructions[:at], new, *c.instructions[at:]])
                root = next(i for i in c.instructions if i.id == c.root_id)

    def _new_id(self, computation: Any) -> int:
        first = computation.instructions[0].id
        return (first & ~_LOCAL) | max(i.id & _LOCAL for i in computation.instructions) + 1

    def _set(self, computation: Any, kept: Collection[Any]) -> None:
        """Gives a computation other instructions; new ones run before its root."""
        copies = [type(i).FromString(i.SerializeToString()) for i in kept]
        order = self._sequences[computation.id].instruction_ids
        ids = {i.id & _LOCAL: i.id for i in copies}
        listed = [ids[k & _LOCAL] for k in order if k & _LOCAL in ids]
        new = [i.id for i in copies if i.id not in listed]
        at = listed.index(computation.root_id) if computation.root_id in listed else len(listed)
        order[:] = [*listed[:at], *new, *listed[at:]]
        del computation.instructions[:]
        computation.instructions.extend(copies)

    def finish(self) -> bytes:
        """The module, serialized, without what nothing needs any more."""
        for c in self._scheduled:
            live = {c.root_id, *(i.id for i in c.instructions if i.name in self.needed)}
            for i in reversed(list(c.instructions)):
                if i.id in live or i.opcode == "parameter":
                    live.update((i.id, *i.operand_ids))
            self._set(c, [i for i in c.instructions if i.id in live])
            for i in c.instructions:
                i.control_predecessor_ids[:] = [k for k in i.control_predecessor_ids if k in live]
        called, more = set[int](), {self.proto.entry_computation_id}
        while more:
            called |= more
            found = [c for c in self.proto.computations if c.id in more]
            more = {k for c in found for i in c.instructions for k in i.called_computation_ids}
            more -= called
        for number in [k for k in self._sequences if k not in called]:
            del self._sequences[number]
        kept = [
            xla_pb2.HloComputationProto.FromString(c.SerializeToString())
            for c in self.proto.computations
            if c.id in called
        ]
        del self.proto.computations[:]
        self.proto.computations.extend(kept)
        data = self.proto.SerializeToString(deterministic=True)
        return Message(data).without({_HOST_PROGRAM_SHAPE}).encode()
