"""Which operands each value of a module could take the memory of, where one dies as it is made."""

from hlo.inplace import Pair, can_share, in_place_pairs
from hlo.module import Instruction
from hlo.values import Dataflow, Value

Sharing = list[list[tuple[int, int]]]
"""By value id: (operand value id, number of its position at that operand) pairs, operand order."""


def sharing(dataflow: Dataflow, target: str) -> Sharing:
    """For each value, by its id, the operands whose memory it may take; `target`: "cpu" or "cuda".

    A value may take the memory of an operand that dies at its instruction; a copy never does, nor
    does anything share within its own alias set (that is forced, not chosen).
    """
    pairs: dict[Instruction, list[Pair]] = {}
    result: Sharing = []
    for v in dataflow.values:
        user = v.instruction
        if user not in pairs:
            pairs[user] = in_place_pairs(user, target)
        found: list[tuple[int, int]] = []
        if user.opcode not in ("copy", "parameter") and not v.shape.is_tuple and v.shape.bytes:
            for operand in dict.fromkeys(user.operands):
                found += _with_operand(dataflow, v, operand, target, pairs[user])
        result.append(found)
    return result


def _with_operand(
    dataflow: Dataflow, v: Value, operand: Instruction, target: str, pairs: list[Pair]
) -> list[tuple[int, int]]:
    found = []
    for index, shape in operand.shape.indices():
        if shape.bytes != v.shape.bytes or shape.is_tuple:
            continue
        a = dataflow.at[operand, index]
        if a is not v and can_share(operand, index, v.instruction, v.index, target, pairs):
            found.append((a.id, a.positions.index((operand, index))))
    return found
