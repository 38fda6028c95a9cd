"""Keeps operands in memory while an instruction runs, so that it writes its results elsewhere.

XLA lets a result take over the memory of an operand that dies where the result is made. A bitcast
of the operand that runs next keeps it alive for one step more; nothing reads the bitcast, and XLA
makes no code of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hlo import xla_pb2
from hlo.module import HloError

_LOCAL = (1 << 32) - 1


def hold_name(name: str, operand: int) -> str:
    """The name of the bitcast that keeps operand number `operand` of instruction `name` live."""
    return f"{name}.holds_{operand}"


def add_holds(proto: xla_pb2.HloModuleProto, holds: Mapping[str, Sequence[int]]) -> None:
    """Keeps operands live past an instruction, by a bitcast of each scheduled right after it.

    Args:
      proto: a scheduled module, changed in place.
      holds: instruction name -> numbers of its operands, arrays each.

    Raises:
      HloError: an instruction is unknown or has no such operand, or the module has no schedule.
    """
    missing = dict(holds)
    for computation in proto.computations if holds else ():
        names = [i.name for i in computation.instructions if i.name in missing]
        if names:
            _hold(proto, computation, {name: missing.pop(name) for name in names})
    if missing:
        raise HloError(f"the module has no instruction {next(iter(missing))}; plan it again")


def _hold(
    proto: xla_pb2.HloModuleProto,
    computation: xla_pb2.HloComputationProto,
    holds: Mapping[str, Sequence[int]],
) -> None:
    """Adds the bitcasts of one computation."""
    if computation.id not in proto.schedule.sequences:
        raise HloError("the module has no schedule; dump it after scheduling")
    by_id = {i.id: i for i in computation.instructions}
    next_id = itertools.count(max(by_id) + 1)
    listed: list[xla_pb2.HloInstructionProto] = []
    after: dict[int, list[int]] = {}
    for i in computation.instructions:
        listed.append(i)
        for operand in holds.get(i.name, ()):
            if not 0 <= operand < len(i.operand_ids):
                raise HloError(f"{i.name} has no operand {operand}; plan it again")
            held = by_id[i.operand_ids[operand]]
            added = xla_pb2.HloInstructionProto(name=hold_name(i.name, operand), opcode="bitcast")
            added.id = next(next_id)
            added.shape.CopyFrom(held.shape)
            added.operand_ids.append(held.id)
            added.control_predecessor_ids.append(i.id)
            listed.append(added)
            after.setdefault(i.id & _LOCAL, []).append(added.id)
    whole = xla_pb2.HloComputationProto(instructions=listed)
    del computation.instructions[:]
    computation.instructions.extend(whole.instructions)
    ids = proto.schedule.sequences[computation.id].instruction_ids
    is_local = any(k not in by_id for k in ids)  # they carry module-wide ids, or those within
    scheduled = []
    for k in ids:
        scheduled.append(k)
        scheduled += [a & _LOCAL if is_local else a for a in after.get(k & _LOCAL, ())]
    del ids[:]
    ids.extend(scheduled)
