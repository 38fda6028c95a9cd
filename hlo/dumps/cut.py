"""A scheduled module cut down to what some of its instructions need.

The results are no programs that compute what they did, but what is left of them runs as before: in
the same order, with the same names and ids, and so at the same places of a buffer assignment.
"""

from collections.abc import Collection, Iterator

from hlo import xla_pb2
from hlo.graph import MutableComputation, MutableModule
from hlo.instructions import instruction
from hlo.module import parse_module_proto
from hlo.shapes import TUPLE, shape_from_proto
from hlo.walk import after_needs
from hlo.wire import Message

_HOST_PROGRAM_SHAPE = 4  # of HloModuleProto: what the caller gives and gets


class CutModule:
    """Cuts a copy of a scheduled module down to what some of its instructions need.

    Args:
      module: serialized, scheduled HloModuleProto. needed: names of instructions that stay.

    Attributes:
      needed: those, callers of computations with them, and what waits for asynchronous ones.
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
        self._module = MutableModule(self.proto)
        bodies = (self._module.body(c.id) for c in self.proto.computations)
        self._scheduled = [body for body in bodies if body.is_scheduled]
        self._entry = self._module.body(self.proto.entry_computation_id)

    def inputs(self) -> list[str]:
        """Lists names of instructions of the entry that are not needed and compute something."""
        kept = ("parameter", "tuple", "get-tuple-element", "bitcast", "constant")
        computing = (i for i in self._entry.instructions() if i.opcode not in kept)
        return [i.name for i in computing if i.name not in self.needed]

    def states(self) -> list[tuple[int, int]]:
        """Lists (loop body's id, state element) that the body does not just take from a tuple."""
        return [
            (body.computation.id, k)
            for body in self._loops()
            for k, i in enumerate(body.operands(body.root))
            if i.opcode != "get-tuple-element"
        ]

    def _loops(self) -> Iterator[MutableComputation]:
        bodies = {
            i.called_computation_ids[0]
            for body in self._scheduled
            for i in body.instructions()
            if i.opcode == "while"
        }
        loop_bodies = (body for body in self._scheduled if body.computation.id in bodies)
        return (body for body in loop_bodies if body.root.opcode == "tuple")

    def ended(self) -> None:
        """Removes what the entry runs after its last needed instruction, and all its results.
        Arguments that were donated for a result are donated for any use.
        """
        entry = self._entry
        needed = {i.id for i in entry.instructions() if i.name in self.needed}
        last = max((n for n, k in enumerate(entry.order) if k in needed), default=-1)
        given = {i.id for i in entry.instructions() if i.opcode == "parameter"}
        behind = set(entry.order[last + 1 :]) - given
        root = entry.make("tuple", "cut", xla_pb2.ShapeProto(element_type=TUPLE))
        entry.computation.root_id = root.id
        entry.computation.ClearField("program_shape")
        entry.remove(behind)
        entry.place([*entry.order, root.id])
        for alias in self.proto.input_output_alias.entries:
            self.proto.buffer_donor.entries.add(
                parameter_number=alias.parameter_number,
                parameter_shape_index=alias.parameter_shape_index,
            )
        del self.proto.input_output_alias.entries[:]

    def opaque(self, names: Collection[str]) -> None:
        """Replaces entry instructions of these names by donated parameters."""
        number = sum(i.opcode == "parameter" for i in self._entry.instructions())
        for i in self._entry.instructions():
            if i.name not in names:
                continue
            new = instruction("parameter", i.name, i.shape, id=i.id, parameter_number=number)
            i.CopyFrom(new)
            for index, _ in shape_from_proto(i.shape).indices():
                self.proto.buffer_donor.entries.add(
                    parameter_number=number, parameter_shape_index=index
                )
            number += 1

    def passed_on(self, elements: Collection[tuple[int, int]]) -> None:
        """Makes loops' bodies return elements of their state unchanged, given as by `states`."""
        for body in self._loops():
            state, root = body.parameter(), body.root
            for k in (k for number, k in elements if number == body.computation.id):
                name, shape = body.names.new(f"cut.{k}"), state.shape.tuple_shapes[k]
                new = instruction("get-tuple-element", name, shape, [state], tuple_index=k)
                root.operand_ids[k] = body.add(new, before=root).id

    def finish(self) -> bytes:
        """Removes what no needed instruction and no root reads; returns the serialized module."""
        for body in self._scheduled:
            by_id = {i.id: i for i in body.instructions()}
            operands = {k: i.operand_ids for k, i in by_id.items()}
            needed = [k for k, i in by_id.items() if i.name in self.needed]
            needed += [body.root.id, *(k for k, i in by_id.items() if i.opcode == "parameter")]
            body.remove(by_id.keys() - after_needs(needed, operands.__getitem__))
        self._module.finish(prune=True)
        data = self.proto.SerializeToString(deterministic=True)
        return Message(data).without({_HOST_PROGRAM_SHAPE}).encode()
