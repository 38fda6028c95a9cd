"""Finds operands whose memory a value may take, if they die at the instruction that defines it."""

from hlo.inplace import Pair, can_share, in_place_pairs
from hlo.module import Instruction
from hlo.values import Dataflow, Value

Sharing = list[list[tuple[int, int]]]
"""By value id: (operand value id, number of its position at that operand) pairs, operand order."""


def sharing(dataflow: Dataflow, target: str) -> Sharing:
    """Finds for each value, by its id, the operands whose memory XLA may give it if they die there.

    Each is (id of the operand's value, index of the operand in its `positions`). Copies, tuples,
    parameters and what takes no memory get none.
    Those that must share the value's buffer, so have its memory in any case, are listed too.
    """
    pairs: dict[Instruction, list[Pair]] = {}
    result: Sharing = []
    for v in dataflow.values:
        user = v.instruction
        if user not in pairs:
            pairs[user] = in_place_pairs(user, target)
        operands: list[tuple[int, int]] = []
        if user.opcode not in ("copy", "parameter") and not v.shape.is_tuple and v.shape.bytes:
            for operand in dict.fromkeys(user.operands):
                operands += _with_operand(dataflow, v, operand, target, pairs[user])
        result.append(operands)
    return result


def _with_operand(
    dataflow: Dataflow, v: Value, operand: Instruction, target: str, pairs: list[Pair]
) -> list[tuple[int, int]]:
    positions = []
    for index, shape in operand.shape.indices():
        if shape.bytes != v.shape.bytes or shape.is_tuple:
            continue
        a = dataflow.at[operand, index]
        if a is not v and can_share(operand, index, v.instruction, v.index, target, pairs):
            positions.append((a.id, a.positions.index((operand, index))))
    return positions
