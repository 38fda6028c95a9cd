"""Writes recomputation into a module: clones of instructions, placed before late users.

A clone may read what runs later in the schedule, such as a transfer that gives again what an
earlier one gave: that then runs earlier, with as much between its start and its done as before.

A clone is an instruction of its own with a new name and id, of the same opcode, shape and
configuration as its original, and with its own copy of the computation that a fusion calls. Some
readers of the original read the clone instead; what nothing reads any more is removed, outputs of
fusions included (`hlo.rewrite.trim`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from hlo import xla_pb2
from hlo.module import HloError
from hlo.rewrite.trim import without_unread
from hlo.rewrite.walk import post_order

_LOCAL = (1 << 32) - 1
"""An instruction's id within its computation: the low half of its id."""

_JUST = 2.0**-20
"""Part of a step in the schedule, by which what is read comes before its reader."""


@dataclasses.dataclass(frozen=True)
class Clone:
    """A second copy of an instruction, and the readers that read it instead of the original.

    Attributes:
      name: of the clone, new in the module. original: name of the instruction that it repeats.
      operands: names of its operands, in order: the original's, or clones of them.
      readers: (instruction, operand number) of the module's own instructions that read the clone
        instead. Clones name what they read in their own `operands`.
    """

    name: str
    original: str
    operands: tuple[str, ...]
    readers: tuple[tuple[str, int], ...] = ()


def add_clones(proto: xla_pb2.HloModuleProto, clones: Sequence[Clone]) -> None:
    """Adds clones to a module, each scheduled right before its first reader.

    Args:
      proto: a scheduled module, changed in place; what nothing reads any more is removed.
      clones: in an order in which each comes after the clones that it reads.

    Raises:
      HloError: a name is unknown or taken, or a clone has no reader.
    """
    if not clones:
        return
    holders = {i.name: c for c in proto.computations for i in c.instructions}
    next_id = itertools.count(max(c.id for c in proto.computations) + 1)
    writers: dict[int, _Writer] = {}
    for clone in clones:
        holder = holders.get(clone.original)
        if holder is None:
            raise HloError(f"the module has no instruction {clone.original}; plan it again")
        if holder.id not in writers:
            writers[holder.id] = _Writer(proto, holder, next_id)
        writers[holder.id].add(clone)
    bodies: dict[int, list[xla_pb2.HloComputationProto]] = {}
    for writer in writers.values():
        writer.finish()
        for original, body in writer.bodies:
            bodies.setdefault(original, []).append(body)
    # In the proto a computation stands after all that it calls, and before its callers.
    whole = [copy for c in proto.computations for copy in (c, *bodies.get(c.id, ()))]
    listed = xla_pb2.HloModuleProto(computations=whole)
    del proto.computations[:]
    proto.computations.extend(listed.computations)


class _Writer:
    """Adds clones to one computation.

    Attributes:
      bodies: (id of a fused computation, copy of it for a clone), to be added to the module.
    """

    def __init__(
        self,
        proto: xla_pb2.HloModuleProto,
        computation: xla_pb2.HloComputationProto,
        computation_ids: Iterator[int],
    ) -> None:
        if computation.id not in proto.schedule.sequences:
            raise HloError(f"{computation.name} has no schedule; dump it after scheduling")
        self.bodies: list[tuple[int, xla_pb2.HloComputationProto]] = []
        self._proto = proto
        self._computation = computation
        self._computation_ids = computation_ids
        self._fused = {c.id: c for c in proto.computations}
        self._by_name = {i.name: i for i in computation.instructions}
        self._next = max(i.id for i in computation.instructions) + 1
        self._clones: dict[str, list[xla_pb2.HloInstructionProto]] = {}
        """By original, its clones."""
        self._readers: dict[str, set[str]] = {}
        """By clone, the names of what reads it."""
        self._order: list[str] = []

    def add(self, clone: Clone) -> None:
        """Makes one clone and redirects its readers."""
        if clone.name in self._by_name:
            raise HloError(f"the module has an instruction {clone.name} already; plan it again")
        original = self._look_up(clone.original)
        copy = xla_pb2.HloInstructionProto()
        copy.CopyFrom(original)
        copy.name, copy.id = clone.name, self._next
        self._next += 1
        del copy.control_predecessor_ids[:]
        del copy.operand_ids[:]
        copy.operand_ids.extend(self._look_up(name).id for name in clone.operands)
        if copy.opcode == "fusion":
            copy.called_computation_ids[0] = self._own_body(copy)
        self._by_name[clone.name] = copy
        self._clones.setdefault(clone.original, []).append(copy)
        self._readers[clone.name] = {name for name, _ in clone.readers}
        self._order.append(clone.name)
        for name in clone.operands:
            if name in self._readers:
                self._readers[name].add(clone.name)
        for name, number in clone.readers:
            reader = self._look_up(name)
            if not 0 <= number < len(reader.operand_ids):
                raise HloError(f"{name} has no operand {number}; plan it again")
            reader.operand_ids[number] = copy.id

    def _look_up(self, name: str) -> xla_pb2.HloInstructionProto:
        if name not in self._by_name:
            raise HloError(f"{self._computation.name} has no {name}; plan it again")
        return self._by_name[name]

    def _own_body(self, fusion: xla_pb2.HloInstructionProto) -> int:
        """Copies the computation of a fusion, and those of fusions in it; returns the copy's id.

        XLA lets no two fusions call one computation.
        """
        body = self._fused[fusion.called_computation_ids[0]]
        copy = xla_pb2.HloComputationProto()
        copy.CopyFrom(body)
        copy.id = next(self._computation_ids)
        copy.name = f"{body.name}.{fusion.name}"
        renamed = {i.id: (copy.id << 32) | (i.id & _LOCAL) for i in body.instructions}
        for i in copy.instructions:
            i.id = renamed[i.id]
            i.name = f"{i.name}.{fusion.name}"
            i.operand_ids[:] = [renamed[k] for k in i.operand_ids]
            i.control_predecessor_ids[:] = [renamed[k] for k in i.control_predecessor_ids]
            if i.opcode == "fusion":
                i.called_computation_ids[0] = self._own_body(i)
        copy.root_id = renamed[body.root_id]
        self.bodies.append((body.id, copy))
        return copy.id

    def finish(self) -> None:
        """Lists and schedules the clones, and removes what nothing reads any more."""
        listed: list[xla_pb2.HloInstructionProto] = []
        for i in self._computation.instructions:
            listed += [i, *self._clones.get(i.name, ())]
        scheduled = self._scheduled()
        touched = [self._by_name[name] for name in self._clones]
        touched += [clone for clones in self._clones.values() for clone in clones]
        fused = self._fused | {body.id: body for _, body in self.bodies}
        kept, root = without_unread(
            listed, self._computation.root_id, fused, [i.id for i in touched]
        )
        local = self._schedules_local_ids()
        ids = {i.name: i.id & _LOCAL if local else i.id for i in kept}
        sequence = self._proto.schedule.sequences[self._computation.id]
        sequence.instruction_ids[:] = [ids[name] for name in scheduled if name in ids]
        copies = [
            xla_pb2.HloInstructionProto.FromString(i.SerializeToString()) for i in post_order(kept)
        ]
        del self._computation.instructions[:]
        self._computation.instructions.extend(copies)
        self._computation.root_id = root

    def _schedules_local_ids(self) -> bool:
        sequence = self._proto.schedule.sequences[self._computation.id].instruction_ids
        known = {i.id for i in self._computation.instructions}
        return any(k not in known for k in sequence)

    def _scheduled(self) -> list[str]:
        """All names in execution order, each clone right before its first reader."""
        names = {i.id: i.name for i in self._computation.instructions}
        names |= {i.id & _LOCAL: i.name for i in self._computation.instructions}
        sequence = self._proto.schedule.sequences[self._computation.id].instruction_ids
        before: dict[str, list[str]] = {}
        step = {names[k]: n for n, k in enumerate(sequence)}
        for name in reversed(self._order):  # what reads a clone has its place by now
            if not self._readers[name]:
                raise HloError(f"nothing reads the clone {name}; plan it again")
            step[name] = min(step[reader] for reader in self._readers[name])
        for name in self._order:
            before.setdefault(names[sequence[step[name]]], []).append(name)
        listed = [name for k in sequence for name in (*before.get(names[k], ()), names[k])]
        return self._moved_up(listed)

    def _moved_up(self, listed: list[str]) -> list[str]:
        """The order with what clones read before them, as far as it came later.

        A start stays as far before its done as it was.
        """
        at = {name: float(k) for k, name in enumerate(listed)}
        named = {i.id: i.name for i in self._by_name.values() if i.name in at}
        first = dict(at)
        waiting = [name for name in self._order if name in at]
        moves = 0
        while waiting:
            reader = waiting.pop()
            i = self._by_name[reader]
            for k in (*i.operand_ids, *i.control_predecessor_ids):
                name = named[k]
                done = i.opcode.endswith("-done")
                to = at[reader] - (first[reader] - first[name] if done else _JUST)
                if at[name] > to:
                    at[name] = to
                    moves += 1
                    waiting.append(name)
            if moves > len(listed):
                raise HloError(f"{reader} depends on itself; plan it again")
        return sorted(listed, key=at.__getitem__)
