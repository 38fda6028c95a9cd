"""Keeps operands in memory while an instruction runs, so that it writes its results elsewhere.

XLA lets a result take over the memory of an operand that dies where the result is made. A bitcast
of the operand that runs next keeps it alive for one step more; nothing reads the bitcast, and XLA
makes no code of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo import xla_pb2
from hlo.graph import MutableModule, instruction
from hlo.module import HloError


def hold_name(name: str, operand: int) -> str:
    """The name of the bitcast that keeps operand number `operand` of instruction `name` live."""
    return f"{name}.holds_{operand}"


def add_holds(proto: xla_pb2.HloModuleProto, holds: Mapping[str, Sequence[int]]) -> None:
    """Keeps operands live past an instruction, by a bitcast of each scheduled right after it.

    Args:
      proto: a scheduled module, changed in place.
      holds: instruction name -> numbers of its operands, arrays each.

    Raises:
      HloError: an instruction is unknown or has no such operand, or its computation no schedule.
    """
    if not holds:
        return
    module = MutableModule(proto)
    for home, i in module.find(holds):
        for operand in holds[i.name]:
            if not 0 <= operand < len(i.operand_ids):
                raise HloError(f"{i.name} has no operand {operand}; plan it again")
            held = home.operands(i)[operand]
            added = instruction("bitcast", hold_name(i.name, operand), held.shape, [held])
            added.control_predecessor_ids.append(i.id)
            home.add(added, after=i)
    module.finish()
