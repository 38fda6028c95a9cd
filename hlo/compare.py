"""Compares instructions of two modules: the same operation, whatever their names and ids."""

from __future__ import annotations

from hlo import xla_pb2
from hlo.module import Instruction, module_from_proto, parse_module_proto

__all__ = ["Comparison"]

_OWN = (
    "name id operand_ids called_computation_ids control_predecessor_ids metadata "
    "frontend_attributes"
).split()
"""Fields that do not say what an instruction computes from given operands."""


class Comparison:
    """Two modules side by side.

    Args:
      before, after: serialized HloModuleProtos.

    Attributes:
      before, after: their views.
    """

    def __init__(self, before: bytes, after: bytes) -> None:
        protos = [parse_module_proto(before), parse_module_proto(after)]
        self.before, self.after = (module_from_proto(p) for p in protos)
        self._instructions = [
            {i.id: i for c in p.computations for i in c.instructions} for p in protos
        ]
        self._computations = [{c.id: c for c in p.computations} for p in protos]

    def same(self, old: Instruction, new: Instruction) -> bool:
        """Whether one of `before` and one of `after` give equal results from equal operands.

        Their operands are not compared, nor what they must run after.
        """
        a, b = self._instructions[0][old.id], self._instructions[1][new.id]
        return _bare(a) == _bare(b) and self._same_called(a, b)

    def alike(self, old: Instruction, new: Instruction, but: str) -> bool:
        """Whether two instructions have the same fields of their own but for the field `but`.

        Their operands are not compared, nor what they call.
        """
        a, b = self._instructions[0][old.id], self._instructions[1][new.id]
        return _bare(a, but) == _bare(b, but)

    def _same_called(self, a: xla_pb2.HloInstructionProto, b: xla_pb2.HloInstructionProto) -> bool:
        if len(a.called_computation_ids) != len(b.called_computation_ids):
            return False
        pairs = zip(a.called_computation_ids, b.called_computation_ids, strict=True)
        return all(self._same_body(x, y) for x, y in pairs)

    def _same_body(self, old: int, new: int) -> bool:
        first, second = self._computations[0][old], self._computations[1][new]
        if first == second:
            return True
        if len(first.instructions) != len(second.instructions):
            return False
        numbers = [{i.id: k for k, i in enumerate(c.instructions)} for c in (first, second)]
        if numbers[0][first.root_id] != numbers[1][second.root_id]:
            return False
        for a, b in zip(first.instructions, second.instructions, strict=True):
            if [numbers[0][k] for k in a.operand_ids] != [numbers[1][k] for k in b.operand_ids]:
                return False
            if _bare(a) != _bare(b) or not self._same_called(a, b):
                return False
        return True


def _bare(i: xla_pb2.HloInstructionProto, *without: str) -> bytes:
    """An instruction without its own names, ids and notes, and without some more fields."""
    copy = xla_pb2.HloInstructionProto()
    copy.CopyFrom(i)
    for field in (*_OWN, *without):
        copy.ClearField(field)  # pyright: ignore[reportArgumentType]
    return copy.SerializeToString(deterministic=True)
