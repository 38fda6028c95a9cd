"""Transfers between devices that a computation runs twice, with the same result.

Where weights are sharded, as under FSDP, the backward pass gathers weights again that the forward
pass gathered. Clones in the backward pass may read its all-gather, which then runs earlier than it
did. No transfer is added, and what is read has the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

from hlo.exchange import MOVING, asked, reduction, run_by
from hlo.module import Instruction
from hlo.values import Dataflow
from olla_xla.remat.purity import FORWARDING, pure

_LARGEST = 64
"""Most instructions that may make a transfer's operand; a weight's shard takes few."""


@dataclasses.dataclass(frozen=True)
class TransferredArray:
    """One array among the results of a transfer.

    Attributes:
      value: id of its value. transfer: what defines it, the start where that is asynchronous.
      handles: instructions that give the array by itself (the transfer, its done or their
        get-tuple-elements), in execution order.
    """

    value: int
    transfer: Instruction
    handles: tuple[Instruction, ...]


def repeated_results(
    dataflow: Dataflow, instructions: Sequence[Instruction]
) -> list[tuple[TransferredArray, ...]]:
    """Groups of results of transfers that have the same bytes, each group in execution order.

    The transfers compute nothing (`hlo.exchange.MOVING`), and what they move is made of parameters
    and constants alone, without transfers before it, so that they may run at any earlier time.

    Args:
      dataflow: of the module. instructions: of one computation, in execution order.
    """
    groups: dict[Hashable, list[TransferredArray]] = {}
    made = _Expressions()
    for i in instructions:
        made.add(i)
        transfer = run_by(i)
        if transfer is None or transfer.opcode not in MOVING or i.control_predecessors:
            continue
        operands = [made.number(o) for o in i.operands]
        if None in operands:
            continue
        how = asked(transfer), reduction(transfer)
        for k, operand in enumerate(operands):
            result = _result(dataflow, i, k)
            if result is not None:
                groups.setdefault((how, operand, i.operands[k].shape.key), []).append(result)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _result(dataflow: Dataflow, i: Instruction, k: int) -> TransferredArray | None:
    """A transfer's result for operand number `k`; None where nothing gives it by itself."""
    ends = [u for u in i.users if u.opcode.endswith("-done")] if _is_start(i) else [i]
    if len(ends) != 1 or ends[0].control_predecessors or (_is_start(i) and len(i.users) != 1):
        return None
    (end,) = ends
    if end.shape.is_array:
        handles: tuple[Instruction, ...] = (end,)
    else:
        takers = [u for u in end.users if u.opcode == "get-tuple-element" and u.tuple_index == k]
        handles = tuple(u for u in takers if u.shape.is_array and not u.control_predecessors)
    if not handles:
        return None
    value = dataflow.at[handles[0], ()]
    if value.instruction not in (i, run_by(i)) or value.live_out:
        return None
    return TransferredArray(value.id, i, handles)


def _is_start(i: Instruction) -> bool:
    return i.opcode.endswith("-start")


class _Expressions:
    """Value numbers of what is made of parameters and constants: equal numbers mean equal bits."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._at: dict[Instruction, tuple[int, int]] = {}
        """By instruction, its number and how many instructions make it."""

    def number(self, i: Instruction) -> int | None:
        """The number of an instruction; None where it has none, being impure or made by many."""
        found = self._at.get(i)
        return None if found is None else found[0]

    def add(self, i: Instruction) -> None:
        """Numbers an instruction whose operands have been added."""
        if i.control_predecessors or any(o not in self._at for o in i.operands):
            return
        # Purity is checked last: it looks into fusions, and few are made of parameters alone.
        if i.opcode not in FORWARDING and i.opcode not in ("constant", "parameter") and not pure(i):
            return
        size = 1 + sum(self._at[o][1] for o in i.operands)
        if size <= _LARGEST:
            operands = tuple(self._at[o][0] for o in i.operands)
            key = i.attributes, reduction(i), operands
            self._at[i] = self._numbers.setdefault(key, len(self._numbers)), size
