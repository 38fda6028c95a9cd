"""Inserts copies where values that must have one buffer are alive together.

A loop overwrites the state that it starts from, an output its donated argument, an update in place
its operand. Before XLA's copy insertion one value may be all of these and be read later as well.
XLA copies wherever that might be and then removes what it can; here values join one buffer by one,
and where two of them would be alive at once in program order, one is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hlo import xla_pb2
from hlo.module import HloError, module_from_proto
from hlo.rewrite.conflicts import CopySite, conflicts
from hlo.shapes import TUPLE, ShapeIndex
from hlo.values import Dataflow, Value, analyse

_ROUNDS = 16
"""Copies can be in each other's way at first (two loop states that change places)."""


def insert_copies(proto: xla_pb2.HloModuleProto, target: str) -> None:
    """Adds a copy wherever two values that must share a buffer are live at the same time.

    Args:
      proto: a module without a schedule, changed in place; instructions run as they are listed.
        Each computation that control flow runs must have one caller (`hlo.rewrite.calls.flatten`).
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
        computations = {c.id: c for c in proto.computations}
        names = {i.name for c in proto.computations for i in c.instructions}
        wanted: dict[int, dict[tuple[int, int], list[ShapeIndex]]] = {}
        for site in found:
            where = (-1 if site.user is None else site.user.id, site.operand)
            wanted.setdefault(site.computation.id, {}).setdefault(where, []).append(site.index)
        for number, places in wanted.items():
            _Writer(computations[number], names).write(places)
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


class _Writer:
    """Adds copies to one computation."""

    def __init__(self, computation: xla_pb2.HloComputationProto, names: set[str]) -> None:
        self._computation = computation
        self._names = names
        self._by_id = {i.id: i for i in computation.instructions}
        self._next = max(self._by_id) + 1
        self._listed: list[xla_pb2.HloInstructionProto] = []

    def write(self, places: dict[tuple[int, int], list[ShapeIndex]]) -> None:
        """Copies parts of operands: (user's id, operand number) -> indices; user -1 is the root."""
        computation = self._computation
        for i in list(self._by_id.values()):
            for number, operand in enumerate(i.operand_ids):
                if (i.id, number) in places:
                    i.operand_ids[number] = self._copied(operand, places[i.id, number])
            self._listed.append(i)
        if (-1, 0) in places:
            computation.root_id = self._copied(computation.root_id, places[-1, 0])
        listed = self._numbered(self._without_unread())
        copies = xla_pb2.HloComputationProto(instructions=listed).instructions
        del computation.instructions[:]
        computation.instructions.extend(copies)

    def _copied(self, number: int, indices: Sequence[ShapeIndex]) -> int:
        """A value with parts of it copied; the rest is handed on."""
        old = self._by_id[number]
        if old.shape.element_type != TUPLE:
            return self._add("copy", old.shape, [number], old)
        elements = []
        for k, shape in enumerate(old.shape.tuple_shapes):
            inner = [index[1:] for index in indices if index[0] == k]
            element = old.operand_ids[k] if old.opcode == "tuple" else None
            if element is None:
                element = self._add("get-tuple-element", shape, [number], old, k)
            elements.append(self._copied(element, inner) if inner else element)
        return self._add("tuple", old.shape, elements, old)

    def _add(
        self,
        opcode: str,
        shape: xla_pb2.ShapeProto,
        operands: Sequence[int],
        origin: xla_pb2.HloInstructionProto,
        element: int = 0,
    ) -> int:
        stem = origin.name if origin.opcode == opcode else f"{opcode}.{origin.name}"
        name, k = stem, 0
        while name in self._names:
            name, k = f"{stem}.{k + 1}", k + 1
        self._names.add(name)
        new = xla_pb2.HloInstructionProto(
            name=name, opcode=opcode, shape=shape, id=self._next, operand_ids=operands
        )
        new.metadata.CopyFrom(origin.metadata)
        new.tuple_index = element
        self._next += 1
        self._by_id[new.id] = new
        self._listed.append(new)
        return new.id

    def _without_unread(self) -> list[xla_pb2.HloInstructionProto]:
        """Less the tuples and their elements that nothing needs any more."""
        read = {self._computation.root_id}
        kept = []
        for i in reversed(self._listed):
            if i.id in read or i.opcode not in ("tuple", "get-tuple-element"):
                read.update((*i.operand_ids, *i.control_predecessor_ids))
                kept.append(i)
        return kept[::-1]

    def _numbered(
        self, listed: Sequence[xla_pb2.HloInstructionProto]
    ) -> Sequence[xla_pb2.HloInstructionProto]:
        """The same with ids in the order in which they are listed."""
        computation = self._computation
        new = {i.id: computation.id << 32 | k for k, i in enumerate(listed)}
        for i in listed:
            i.id = new[i.id]
            i.operand_ids[:] = [new[k] for k in i.operand_ids]
            i.control_predecessor_ids[:] = [new[k] for k in i.control_predecessor_ids]
        computation.root_id = new[computation.root_id]
        return listed
