"""Fusions into which XLA:TPU has put part of an asynchronous collective besides their own results.

XLA:TPU's async collective fusion lets an existing fusion advance a collective. The fusion gets the
transfer's buffers and semaphores as operands, returns them as results, and has the collective in
its body. Its own results are computed as before.
"""

import dataclasses

from hlo.exchange import REPEATABLE
from hlo.module import Instruction
from hlo.walk import after_needs


@dataclasses.dataclass(frozen=True)
class OwnPart:
    """The results of a TPU fusion that do not belong to the collective which it also advances.

    Attributes:
      results: their numbers in the result tuple. operands: numbers of operands they depend on.
    """

    results: tuple[int, ...]
    operands: tuple[int, ...]


def own_part(fusion: Instruction) -> OwnPart | None:
    """Finds which results of a fusion do not depend on a collective that XLA:TPU has put into it.

    Operands that are handed on as they are count as the collective's. None if the fusion has no
    collective or no result of its own, or if an operand is used for both.
    """
    if fusion.opcode != "fusion" or not fusion.shape.is_tuple:
        return None
    body = fusion.called[0]
    root = body.root
    if root is None or root.opcode != "tuple":
        return None
    if not any(i.opcode in REPEATABLE for i in body.instructions):
        return None
    own: list[int] = []
    mine: set[int] = set()
    others: set[int] = set()
    for number, result in enumerate(root.operands):
        made_of = after_needs([result], lambda i: i.operands)
        parameters = {i.parameter_number for i in made_of if i.opcode == "parameter"}
        carried = result.opcode == "parameter" or any(i.opcode in REPEATABLE for i in made_of)
        if carried:
            others |= parameters
        else:
            own.append(number)
            mine |= parameters
    if not own or mine & others:
        return None
    return OwnPart(tuple(own), tuple(sorted(mine)))
