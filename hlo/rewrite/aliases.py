"""Makes fusions write their results in place: output_to_operand_aliasing.

XLA lets a fusion's result take a dying operand's memory, but its heap does so for some values only
(not for one that shares its buffer with others already). Stated on the instruction, the result and
the operand are one buffer for certain. XLA wants both to have the same dimensions; where they
differ, the operand goes through a bitcast, and a second one inside the fusion undoes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo import xla_pb2
from hlo.graph import MutableComputation, MutableModule, instruction
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
    if aliases:
        module = MutableModule(proto)
        for home, fusion in module.find(aliases):
            for index, operand in aliases[fusion.name]:
                if _alias(module, home, fusion, index, operand):
                    reshaped.add(fusion.called_computation_ids[0])
        module.finish()
    return reshaped


def _alias(
    module: MutableModule,
    home: MutableComputation,
    fusion: xla_pb2.HloInstructionProto,
    index: ShapeIndex,
    operand: int,
) -> bool:
    """Binds a fusion's result at `index` to an operand; whether that had to be reshaped."""
    name = fusion.name
    if fusion.opcode != "fusion" or not 0 <= operand < len(fusion.operand_ids):
        raise HloError(f"{name} is not a fusion with an operand {operand}; plan it again")
    result = fusion.shape
    for k in index:
        if k >= len(result.tuple_shapes):
            raise HloError(f"{name} has no result {index}; plan it again")
        result = result.tuple_shapes[k]
    fusion.output_operand_aliasing.add(output_shape_index=index, operand_index=operand)
    given = home.operands(fusion)[operand]
    if list(given.shape.dimensions) == list(result.dimensions):
        return False
    outer = instruction("bitcast", f"{name}.operand_{operand}", result, [given])
    fusion.operand_ids[operand] = home.add(outer, before=fusion).id
    body = module.called(fusion)
    parameter = body.parameter(operand)
    inner = instruction("bitcast", f"{parameter.name}.as_given", given.shape, [parameter])
    body.replace(parameter, body.add(inner, after=parameter), but=inner)
    parameter.shape.CopyFrom(result)
    return True
