"""Keeps operands in memory while an instruction runs, so that it writes its results elsewhere.

XLA lets a result take over the memory of an operand that dies where the result is made. A bitcast
of the operand that runs next keeps it alive for one step more; nothing reads the bitcast, and XLA
makes no code of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo import xla_pb2
from hlo.module import HloError

__all__ = ["add_holds", "hold_name"]

_LOCAL = (1 << 32) - 1


def hold_name(name: str, operand: int) -> str:
    """The name of the bitcast that holds an operand of instruction `name`."""
    return f"{name}.holds_{operand}"


def add_holds(proto: xla_pb2.HloModuleProto, holds: Mapping[str, Sequence[int]]) -> None:
    """Adds a bitcast for each operand that is held, scheduled right after its instruction.

    Args:
      proto: a scheduled module, changed in place.
      holds: instruction name -> numbers of its operands, arrays each.

    Raises:
      HloError: an instruction is unknown or has no such operand, or the module has no schedule.
    """
    missing = dict(holds)
    for computation in proto.computations:
        names = [i.name for i in computation.instructions if i.name in missing]
        for name in names:
            for operand in missing.pop(name):
                _hold(proto, computation, name, operand)
    if missing:
        raise HloError(f"the module has no instruction {next(iter(missing))}; plan it again")


def _hold(
    proto: xla_pb2.HloModuleProto, computation: xla_pb2.HloComputationProto, name: str, operand: int
) -> None:
    listed = list(computation.instructions)
    by_id = {i.id: i for i in listed}
    at, holder = next((k, i) for k, i in enumerate(listed) if i.name == name)
    if not 0 <= operand < len(holder.operand_ids):
        raise HloError(f"{name} has no operand {operand}; plan it again")
    if computation.id not in proto.schedule.sequences:
        raise HloError("the module has no schedule; dump it after scheduling")
    held = by_id[holder.operand_ids[operand]]
    added = xla_pb2.HloInstructionProto(name=hold_name(name, operand), opcode="bitcast")
    added.id = max(by_id) + 1
    added.shape.CopyFrom(held.shape)
    added.operand_ids.append(held.id)
    added.control_predecessor_ids.append(holder.id)
    computation.instructions.insert(at + 1, added)
    ids = proto.schedule.sequences[computation.id].instruction_ids
    is_local = holder.id not in ids  # schedules carry module-wide ids, or those within
    place = list(ids).index(holder.id & _LOCAL if is_local else holder.id)
    ids.insert(place + 1, added.id & _LOCAL if is_local else added.id)
