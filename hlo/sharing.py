"""Which value may take over which operand's memory, for every value of a module."""

from __future__ import annotations

from hlo.inplace import can_share
from hlo.module import Instruction
from hlo.values import Dataflow, Value

__all__ = ["Sharing", "sharing"]

Sharing = list[list[tuple[int, int]]]
"""By value id: (operand value id, number of its position at that operand) pairs, operand order."""


def sharing(dataflow: Dataflow, target: str) -> Sharing:
    """The in-place candidates of every value; `target` is "cpu" or "cuda".

    A value may take the memory of an operand that dies at its instruction; a copy never does, nor
    does anything share within its own alias set (that is forced, not chosen).
    """
    return [
        [
            pair
            for operand in dict.fromkeys(v.instruction.operands)
            for pair in _with_operand(dataflow, v, operand, target)
        ]
        for v in dataflow.values
    ]


def _with_operand(
    dataflow: Dataflow, v: Value, operand: Instruction, target: str
) -> list[tuple[int, int]]:
    user = v.instruction
    if user.opcode in ("copy", "parameter") or v.shape.is_tuple or v.shape.bytes == 0:
        return []
    found = []
    for index, shape in operand.shape.indices():
        if shape.bytes != v.shape.bytes or shape.is_tuple:
            continue
        a = dataflow.at[operand, index]
        if a is not v and can_share(operand, index, user, v.index, target):
            found.append((a.id, a.positions.index((operand, index))))
    return found
