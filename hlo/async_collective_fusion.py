"""Fusions that run parts of a transfer beside their own work.

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
    """What a TPU fusion computes itself, besides the asynchronous collective that it also advances.

    Attributes:
      results: numbers of these results. operands: numbers of the operands that they depend on.
    """

    results: tuple[int, ...]
    operands: tuple[int, ...]


def own_part(fusion: Instruction) -> OwnPart | None:
    """The computation that a fusion did before XLA:TPU also put an asynchronous collective into it.

    None if there is no collective, or nothing else, or both depend on one operand.
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
