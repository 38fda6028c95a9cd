"""Makes fusions write their results in place: output_to_operand_aliasing.

XLA lets a fusion's result take a dying operand's memory, but its heap does so for some values only
(not for one that shares its buffer with others already). Stated on the instruction, the result and
the operand are one buffer for certain. XLA wants both to have the same dimensions; where they
differ, the operand goes through a bitcast, and a second one inside the fusion undoes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo import xla_pb2
from hlo.module import HloError
from hlo.shapes import ShapeIndex

Alias = tuple[ShapeIndex, int]
"""(index of the result, operand number): that result of a fusion overwrites that operand."""


def add_aliases(proto: xla_pb2.HloModuleProto, aliases: Mapping[str, Sequence[Alias]]) -> set[int]:
    """Makes results of fusions overwrite operands (output_to_operand_aliasing).

    Args:
      proto: a scheduled module, changed in place.
      aliases: fusion name -> which results overwrite which operands. The caller ensures that
        each operand dies at the fusion, under every order that is to run, and may be overwritten.

    Returns:
      Ids of fused computations that changed.

    Raises:
      HloError: an instruction is unknown, not a fusion, or has no such result or operand.
    """
    reshaped: set[int] = set()
    if not aliases:
        return reshaped
    missing = dict(aliases)
    fused = {c.id: c for c in proto.computations}
    for computation in proto.computations:
        names = [i.name for i in computation.instructions if i.name in missing]
        writer = _Writer(proto, computation, fused) if names else None
        for name in names:
            for index, operand in missing.pop(name):
                assert writer is not None
                writer.alias(name, index, operand)
        reshaped |= writer.reshaped if writer is not None else set()
    if missing:
        raise HloError(f"the module has no instruction {next(iter(missing))}; plan it again")
    return reshaped


class _Writer:
    """Writes aliases into one computation.

    Attributes:
      reshaped: ids of the fused computations that it changed.
    """

    def __init__(
        self,
        proto: xla_pb2.HloModuleProto,
        computation: xla_pb2.HloComputationProto,
        computations: Mapping[int, xla_pb2.HloComputationProto],
    ) -> None:
        self._proto = proto
        self._computation = computation
        self._computations = computations
        self.reshaped: set[int] = set()
        self._look_up()

    def _look_up(self) -> None:
        self._by_name = {i.name: i for i in self._computation.instructions}
        self._by_id = {i.id: i for i in self._computation.instructions}

    def alias(self, name: str, index: ShapeIndex, operand: int) -> None:
        """Binds the result of fusion `name` at `index` to its operand number `operand`."""
        fusion = self._by_name[name]
        if fusion.opcode != "fusion" or not 0 <= operand < len(fusion.operand_ids):
            raise HloError(f"{name} is not a fusion with an operand {operand}; plan it again")
        result = fusion.shape
        for k in index:
            if k >= len(result.tuple_shapes):
                raise HloError(f"{name} has no result {index}; plan it again")
            result = result.tuple_shapes[k]
        entry = fusion.output_operand_aliasing.add()
        entry.output_shape_index.extend(index)
        entry.operand_index = operand
        given = self._by_id[fusion.operand_ids[operand]].shape
        if list(given.dimensions) != list(result.dimensions):
            self._reshape(fusion, operand, given, result)

    def _reshape(
        self,
        fusion: xla_pb2.HloInstructionProto,
        operand: int,
        old: xla_pb2.ShapeProto,
        new: xla_pb2.ShapeProto,
    ) -> None:
        """Puts a bitcast to shape `new` before the operand, and one back to `old` inside."""
        outer = make_bitcast(self._computation, f"{fusion.name}.operand_{operand}", new)
        outer.operand_ids.append(fusion.operand_ids[operand])
        fusion.operand_ids[operand] = outer.id
        self._schedule(outer, fusion)
        body = self._computations[fusion.called_computation_ids[0]]
        self.reshaped.add(body.id)
        parameter = next(
            i
            for i in body.instructions
            if i.opcode == "parameter" and i.parameter_number == operand
        )
        inner = make_bitcast(body, f"{parameter.name}.as_given", old)
        inner.operand_ids.append(parameter.id)
        for instruction in body.instructions:
            for k, used in enumerate(instruction.operand_ids):
                if used == parameter.id:
                    instruction.operand_ids[k] = inner.id
        parameter.shape.CopyFrom(new)
        body.instructions.insert(list(body.instructions).index(parameter) + 1, inner)
        at = list(self._computation.instructions).index(fusion)
        self._computation.instructions.insert(at, outer)
        self._look_up()

    def _schedule(
        self, added: xla_pb2.HloInstructionProto, before: xla_pb2.HloInstructionProto
    ) -> None:
        """Schedules an instruction right before another."""
        if self._computation.id not in self._proto.schedule.sequences:
            raise HloError("the module has no schedule; dump it after scheduling")
        ids = self._proto.schedule.sequences[self._computation.id].instruction_ids
        local = before.id not in ids  # schedules carry module-wide ids, or those within
        mask = (1 << 32) - 1
        place = list(ids).index(before.id & mask if local else before.id)
        ids.insert(place, added.id & mask if local else added.id)


def make_bitcast(
    computation: xla_pb2.HloComputationProto, name: str, shape: xla_pb2.ShapeProto
) -> xla_pb2.HloInstructionProto:
    """A new bitcast to `shape`, with a free id of `computation`; the caller sets its operand."""
    bitcast = xla_pb2.HloInstructionProto(name=name, opcode="bitcast")
    bitcast.id = max(i.id for i in computation.instructions) + 1
    bitcast.shape.CopyFrom(shape)
    return bitcast
