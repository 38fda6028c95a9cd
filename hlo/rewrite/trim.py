"""Drops outputs of fusions that nothing reads, and all that only they needed.

After its scheduler XLA eliminates dead code once more. Of a fusion with several outputs it keeps
those that are read; a fusion that is left with one hands it over as it is, without a tuple. What is
planned is to be what runs, so this is done beforehand, by the same rules: then XLA finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hlo import xla_pb2

FORWARDING = ("bitcast", "get-tuple-element")
"""Opcodes that hand their operand on."""


def without_unread(
    instructions: Sequence[xla_pb2.HloInstructionProto],
    root: int,
    bodies: Mapping[int, xla_pb2.HloComputationProto],
    repeated: Iterable[int],
) -> tuple[list[xla_pb2.HloInstructionProto], int]:
    """Removes clones, and originals of clones, that nothing reads from a list of instructions.

    Only where an instruction is computed more than once can it have lost its readers. So
    only those, and what forwards their results, are removed; they must be without side effects.

    Args:
      instructions: of one computation, operands before readers. Fusions that lose outputs, and
        what reads them, are changed in place. root: id of its root.
      bodies: fused computations by id, each called by one fusion; changed in place.
      repeated: ids of clones and their originals.

    Returns:
      The instructions that are left, in order, and the id of the root.
    """
    trimmer = _Trimmer(instructions, root, bodies, repeated)
    trimmer.run()
    return [i for i in instructions if i.id not in trimmer.dead], trimmer.root


class _Trimmer:
    """Follows what is read no more until nothing changes.

    Attributes:
      root: id of the computation's root. dead: ids of what nothing needs.
    """

    def __init__(
        self,
        instructions: Sequence[xla_pb2.HloInstructionProto],
        root: int,
        bodies: Mapping[int, xla_pb2.HloComputationProto],
        repeated: Iterable[int],
    ) -> None:
        self.root = root
        self.dead: set[int] = set()
        self._by_id = {i.id: i for i in instructions}
        self._bodies = bodies
        self._repeated = set(repeated)
        self._readers: dict[int, set[int]] = {i.id: set() for i in instructions}
        self._controlled: set[int] = set()
        for i in instructions:
            for operand in i.operand_ids:
                self._readers[operand].add(i.id)
            if i.control_predecessor_ids:
                self._controlled.update((i.id, *i.control_predecessor_ids))
        self._unread = sorted(self._repeated)
        fusions = [k for k in self._unread if self._by_id[k].opcode == "fusion"]
        self._fusions = dict.fromkeys(fusions)  # in order, each once

    def run(self) -> None:
        """Removes what nothing reads until all is read."""
        while self._unread or self._fusions:
            if self._unread:
                self._remove(self._by_id[self._unread.pop()])
            else:
                self._trim(self._by_id[self._fusions.popitem()[0]])

    def _remove(self, i: xla_pb2.HloInstructionProto) -> None:
        """Removes an instruction if nothing needs it."""
        kept = self._readers[i.id] or i.id in self._controlled or i.id == self.root
        if kept or i.id in self.dead:
            return
        self.dead.add(i.id)
        for operand in dict.fromkeys(i.operand_ids):
            self._lose(operand, i.id)

    def _lose(self, operand: int, reader: int) -> None:
        """Notes that an instruction is read by one less."""
        self._readers[operand].discard(reader)
        i = self._by_id[operand]
        if operand in self._repeated or i.opcode in FORWARDING:
            self._unread.append(operand)
        if operand in self._repeated and i.opcode == "fusion":
            self._fusions[operand] = None

    def _trim(self, fusion: xla_pb2.HloInstructionProto) -> None:
        """Drops a fusion's outputs that nothing reads, if XLA would."""
        readers = [self._by_id[k] for k in sorted(self._readers[fusion.id])]
        body = self._bodies[fusion.called_computation_ids[0]]
        result = next(i for i in body.instructions if i.id == body.root_id)
        if not readers or not self._may_shrink(fusion, result, readers):
            return
        used = sorted({i.tuple_index for i in readers})
        if len(used) == len(result.operand_ids):
            return
        _keep_outputs(fusion, body, used)
        if len(used) > 1:
            for reader in readers:
                reader.tuple_index = used.index(reader.tuple_index)
        else:
            for reader in readers:
                self._replace(reader, fusion)
        before = dict.fromkeys(fusion.operand_ids)
        _sweep(fusion, body)
        for operand in before:
            if operand not in fusion.operand_ids:
                self._lose(operand, fusion.id)

    def _may_shrink(
        self,
        fusion: xla_pb2.HloInstructionProto,
        result: xla_pb2.HloInstructionProto,
        readers: Sequence[xla_pb2.HloInstructionProto],
    ) -> bool:
        """XLA's conditions; besides, nothing waits for what would disappear."""
        return (
            result.opcode == "tuple"
            and not result.HasField("sharding")
            and not fusion.output_operand_aliasing
            and fusion.fusion_kind != "kCustom"
            and fusion.id != self.root
            and fusion.id not in self._controlled
            and all(i.opcode == "get-tuple-element" for i in readers)
            and not any(i.id in self._controlled for i in readers)
        )

    def _replace(self, old: xla_pb2.HloInstructionProto, new: xla_pb2.HloInstructionProto) -> None:
        """Lets all readers of an instruction read another one instead, and removes it."""
        for k in self._readers[old.id]:
            reader = self._by_id[k]
            reader.operand_ids[:] = [new.id if o == old.id else o for o in reader.operand_ids]
        self._readers[new.id] |= self._readers[old.id]
        self._readers[new.id].discard(old.id)
        self._readers[old.id].clear()
        if self.root == old.id:
            self.root = new.id
        self.dead.add(old.id)


def _copy(shape: xla_pb2.ShapeProto) -> xla_pb2.ShapeProto:
    copy = xla_pb2.ShapeProto()
    copy.CopyFrom(shape)
    return copy


def _keep_outputs(
    fusion: xla_pb2.HloInstructionProto, body: xla_pb2.HloComputationProto, used: Sequence[int]
) -> None:
    """Leaves a fusion with several results with those of some numbers; with one, without a tuple.

    Its body keeps what only the others needed: see `_sweep`.
    """
    result = next(i for i in body.instructions if i.id == body.root_id)
    if len(used) == 1:
        body.root_id = result.operand_ids[used[0]]
        fusion.shape.CopyFrom(_copy(fusion.shape.tuple_shapes[used[0]]))
        return
    result.operand_ids[:] = [result.operand_ids[k] for k in used]
    for i in (fusion, result):
        shapes = [_copy(i.shape.tuple_shapes[k]) for k in used]
        del i.shape.tuple_shapes[:]
        i.shape.tuple_shapes.extend(shapes)


def without_transfer(
    fusion: xla_pb2.HloInstructionProto, body: xla_pb2.HloComputationProto, results: Sequence[int]
) -> list[int]:
    """Removes the collective from a fusion that advances it, as before XLA:TPU added it.

    Args:
      fusion: see `hlo.async_collective_fusion`. body: its own; both are changed in place.
      results: numbers of the results that do not belong to the collective.

    Returns:
      The numbers of the operands that are left; the caller sets the operands themselves.
    """
    fusion.operand_ids[:] = range(len(fusion.operand_ids))
    fusion.backend_config = b""  # it says which results are the transfer's
    _keep_outputs(fusion, body, results)
    _sweep(fusion, body)
    return list(fusion.operand_ids)


def _sweep(fusion: xla_pb2.HloInstructionProto, body: xla_pb2.HloComputationProto) -> None:
    """Removes from a fusion's body what its result does not need, and the operands with it."""
    by_id = {i.id: i for i in body.instructions}
    needed: set[int] = set()
    stack = [body.root_id]
    while stack:
        k = stack.pop()
        if k not in needed:
            needed.add(k)
            stack += [*by_id[k].operand_ids, *by_id[k].control_predecessor_ids]
    kept = [by_id[k] for k in by_id if k in needed]
    parameters = sorted(
        (i for i in kept if i.opcode == "parameter"), key=lambda i: i.parameter_number
    )
    operands = [fusion.operand_ids[i.parameter_number] for i in parameters]
    for number, parameter in enumerate(parameters):
        parameter.parameter_number = number
    fusion.operand_ids[:] = operands
    listed = xla_pb2.HloComputationProto(instructions=kept)
    del body.instructions[:]
    body.instructions.extend(listed.instructions)
    # It describes parameters and result as they were; XLA does not read it here.
    body.ClearField("program_shape")
