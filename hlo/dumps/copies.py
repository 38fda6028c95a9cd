"""Inserts copies where values that must have one buffer are alive together.

A loop overwrites the state that it starts from, an output its donated argument, an update in place
its operand. Before XLA's copy insertion one value may be all of these and be read later as well.
XLA copies wherever that might be and then removes what it can; here values join one buffer by one,
and where two of them would be alive at once in program order, one is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hlo import xla_pb2
from hlo.graph import MutableComputation, MutableModule
from hlo.instructions import instruction
from hlo.module import HloError, module_from_proto
from hlo.rewrite.conflicts import CopySite, conflicts
from hlo.shapes import TUPLE, ShapeIndex
from hlo.values import Dataflow, Value, analyse

_Instruction = xla_pb2.HloInstructionProto

_ROUNDS = 16
"""Copies can be in each other's way at first (two loop states that change places)."""


def insert_copies(proto: xla_pb2.HloModuleProto, target: str) -> None:
    """Adds a copy wherever two values that must share a buffer are live at the same time.

    Args:
      proto: a module without a schedule, changed in place; instructions run as they are listed.
        Each computation that control flow runs must have one caller (`hlo.dumps.calls.flatten`).
      target: "cpu" or "cuda", whose in-place rules count: on a GPU all-reduces are in place.

    Raises:
      HloError: copies make other copies necessary without end.
    """
    for _ in range(_ROUNDS):
        module = module_from_proto(proto)
        dataflow = analyse(module, target)
        found = [*_doubtful_outputs(dataflow)] or conflicts(dataflow, target)
        if not found:
            return
        wanted: dict[int, dict[tuple[int, int], list[ShapeIndex]]] = {}
        for site in found:
            where = (-1 if site.user is None else site.user.id, site.operand)
            wanted.setdefault(site.computation.id, {}).setdefault(where, []).append(site.index)
        changed = MutableModule(proto)
        for number, places in wanted.items():
            _Copier(changed, changed.body(number)).write(places)
        changed.finish()
        for number in wanted:
            _renumber(changed.computations[number])
    raise HloError("it is not known which values share a buffer; pass the compiled module instead")


def _doubtful_outputs(dataflow: Dataflow) -> Iterator[CopySite]:
    """Outputs that are arguments, constants or other outputs too; each must have its own buffer."""
    module = dataflow.module
    root = module.entry.root
    assert root is not None
    seen: set[Value] = set()
    for index, shape in root.shape.indices():
        value = dataflow.at[root, index]
        if shape.is_tuple:
            continue
        i = value.instruction
        own = module.aliases.get(index) == (i.parameter_number, value.index)
        argument = i.opcode == "parameter" and i.computation is module.entry
        if value in seen or i.opcode == "constant" or (argument and not own):
            yield CopySite(value, value, module.entry, None, 0, index)
        seen.add(value)


class _Copier:
    """Adds copies to one computation."""

    def __init__(self, module: MutableModule, computation: MutableComputation) -> None:
        self._names = module.names
        self._computation = computation

    def write(self, places: dict[tuple[int, int], list[ShapeIndex]]) -> None:
        """Copies parts of operands: (user's id, operand number) -> indices; user -1 is the root."""
        computation = self._computation
        for i in computation.instructions():
            for number, operand in enumerate(computation.operands(i)):
                if (i.id, number) in places:
                    i.operand_ids[number] = self._copied(operand, places[i.id, number], i).id
        if (-1, 0) in places:
            root = self._copied(computation.root, places[-1, 0], None)
            computation.computation.root_id = root.id
        handing = ("tuple", "get-tuple-element")
        computation.sweep(computation.instructions(), handing)

    def _copied(
        self, old: _Instruction, indices: Sequence[ShapeIndex], before: _Instruction | None
    ) -> _Instruction:
        """A value with parts of it copied, listed before an instruction; the rest is handed on."""
        if old.shape.element_type != TUPLE:
            return self._add("copy", old.shape, [old], old, before)
        elements = []
        for k, shape in enumerate(old.shape.tuple_shapes):
            inner = [index[1:] for index in indices if index[0] == k]
            if old.opcode == "tuple":
                element = self._computation.operands(old)[k]
            else:
                element = self._add("get-tuple-element", shape, [old], old, before, k)
            elements.append(self._copied(element, inner, before) if inner else element)
        return self._add("tuple", old.shape, elements, old, before)

    def _add(
        self,
        opcode: str,
        shape: xla_pb2.ShapeProto,
        operands: Sequence[_Instruction],
        origin: _Instruction,
        before: _Instruction | None,
        element: int = 0,
    ) -> _Instruction:
        stem = origin.name if origin.opcode == opcode else f"{opcode}.{origin.name}"
        new = instruction(opcode, self._names.new(stem), shape, operands, tuple_index=element)
        new.metadata.CopyFrom(origin.metadata)
        return self._computation.add(new, before=before)


def _renumber(computation: xla_pb2.HloComputationProto) -> None:
    """Gives ids in the order in which instructions are listed."""
    new = {i.id: computation.id << 32 | k for k, i in enumerate(computation.instructions)}
    for i in computation.instructions:
        i.id = new[i.id]
        i.operand_ids[:] = [new[k] for k in i.operand_ids]
        i.control_predecessor_ids[:] = [new[k] for k in i.control_predecessor_ids]
    computation.root_id = new[computation.root_id]
