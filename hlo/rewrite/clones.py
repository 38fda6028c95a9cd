"""Writes recomputation into a module: clones of instructions, placed before late users.

A clone may read what runs later in the schedule, such as a transfer that gives again what an
earlier one gave: that then runs earlier, with as much between its start and its done as before.

A clone is an instruction of its own with a new name and id, of the same opcode, shape and
configuration as its original, and with its own copy of the computation that a fusion calls. Some
readers of the original read the clone instead; what nothing reads any more is removed, outputs of
fusions included (`hlo.rewrite.trim`).
"""

import dataclasses
from collections.abc import Sequence

from hlo import xla_pb2
from hlo.graph import MutableComputation, MutableModule
from hlo.instructions import copied
from hlo.module import HloError
from hlo.rewrite.trim import drop_unread

_Instruction = xla_pb2.HloInstructionProto

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
    Raises HloError if a name is unknown or taken, or a clone has no reader.

    Args:
      proto: a scheduled module, changed in place; what nothing reads any more is removed.
      clones: in an order in which each comes after the clones that it reads.
    """
    if not clones:
        return
    module = MutableModule(proto)
    holders = {i.name: c.id for c in proto.computations for i in c.instructions}
    cloners: dict[int, _Cloner] = {}
    for clone in clones:
        holder = holders.get(clone.original)
        if holder is None:
            raise HloError(f"the module has no instruction {clone.original}; plan it again")
        if holder not in cloners:
            cloners[holder] = _Cloner(module, module.body(holder))
        cloners[holder].add(clone)
    for cloner in cloners.values():
        cloner.finish()
    module.finish()


class _Cloner:
    """Adds clones to one computation: `add` for each in order, then `finish`."""

    def __init__(self, module: MutableModule, computation: MutableComputation) -> None:
        self._module = module
        self._computation = computation
        self._order = computation.order
        self._touched: list[_Instruction] = []
        """Clones and their originals."""
        self._readers: dict[int, set[int]] = {}
        """By clone, in order, the ids of what reads it."""

    def add(self, clone: Clone) -> None:
        """Adds a clone that is not scheduled yet, and makes its readers read it."""
        computation = self._computation
        if clone.name in computation:
            raise HloError(f"the module has an instruction {clone.name} already; plan it again")
        original = computation.named(clone.original)
        operands = [computation.named(name) for name in clone.operands]
        copy = computation.add(copied(original, clone.name, operands))
        if copy.opcode == "fusion":
            copy.called_computation_ids[0] = self._own_body(copy)
        self._touched += [original, copy]
        self._readers[copy.id] = set()
        for operand in operands:
            if operand.id in self._readers:
                self._readers[operand.id].add(copy.id)
        for name, number in clone.readers:
            reader = computation.named(name)
            if not 0 <= number < len(reader.operand_ids):
                raise HloError(f"{name} has no operand {number}; plan it again")
            reader.operand_ids[number] = copy.id
            self._readers[copy.id].add(reader.id)

    def _own_body(self, fusion: _Instruction) -> int:
        """Copies the computation of a fusion, and those of fusions in it; returns the copy's id.
        XLA lets no two fusions call one computation.
        """
        body = self._module.called(fusion)
        copy = xla_pb2.HloComputationProto()
        copy.CopyFrom(body.computation)
        copy.name = f"{copy.name}.{fusion.name}"
        del copy.instructions[:]
        # In the proto a computation stands after all that it calls, and before its callers.
        own = self._module.new_computation(copy, after=body.computation.id)
        own.copy_from(body, lambda name: f"{name}.{fusion.name}")
        for i in own.instructions():
            if i.opcode == "fusion":
                i.called_computation_ids[0] = self._own_body(i)
        return copy.id

    def finish(self) -> None:
        """Lists and schedules the clones, and removes instructions that nothing reads any more."""
        self._order[:] = self._moved_up(self._scheduled())
        drop_unread(self._module, self._computation, self._touched)
        self._computation.reorder()

    def _scheduled(self) -> list[int]:
        """Lists all ids in execution order, clones before their first readers. HloError if a clone
        has none.
        """
        step = {k: n for n, k in enumerate(self._order)}
        for k in reversed(self._readers):  # what reads a clone has its place by now
            if not self._readers[k]:
                name = next(i.name for i in self._touched if i.id == k)
                raise HloError(f"nothing reads the clone {name}; plan it again")
            step[k] = min(step[reader] for reader in self._readers[k])
        before: dict[int, list[int]] = {}
        for k in self._readers:
            before.setdefault(self._order[step[k]], []).append(k)
        return [k for old in self._order for k in (*before.get(old, ()), old)]

    def _moved_up(self, listed: list[int]) -> list[int]:
        """Returns the order `listed` with what clones read moved to before them, if it was later.
        An asynchronous start stays as many steps before its done as it was. Raises HloError if an
        instruction depends on itself.
        """
        by_id = {i.id: i for i in self._computation.instructions()}
        at = {k: float(n) for n, k in enumerate(listed)}
        first = dict(at)
        waiting = list(self._readers)
        moves = 0
        while waiting:
            reader = waiting.pop()
            i = by_id[reader]
            for k in (*i.operand_ids, *i.control_predecessor_ids):
                done = i.opcode.endswith("-done")
                to = at[reader] - (first[reader] - first[k] if done else _JUST)
                if at[k] > to:
                    at[k] = to
                    moves += 1
                    waiting.append(k)
            if moves > len(listed):
                raise HloError(f"{i.name} depends on itself; plan it again")
        return sorted(listed, key=at.__getitem__)
