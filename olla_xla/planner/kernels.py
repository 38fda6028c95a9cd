"""Makes each kernel's arrays share memory as in XLA's own order: its pattern (memory.kernels).

In the orders that were found, each kernel is the last to read what it should overwrite. Whether it
overwrites that, and whether other kernels leave their operands alone, XLA's buffer assignment
decides. So results are bound to the operands that they should overwrite, and operands that must not
be overwritten are held for one more step. Both move other values, so this is repeated until every
kernel has its pattern.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hlo.module import Computation, Instruction
from hlo.rewrite.aliases import Alias
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.kernels import leaves, pattern, wanted
from olla_xla.memory.module_state import PlannedModule
from olla_xla.planner.in_place import Buffers

_ROUNDS = 16  # each round moves fewer values than the one before; most modules take one or two
_ONE_BY_ONE = 2
"""Operands of a kernel that are held singly, before all others of their size are held too."""
_WRITTEN = 3
"""Times that the module is simulated: after one rewrite nothing should be left to change."""


@dataclasses.dataclass(frozen=True)
class PatternedModule:
    """A module changed so that each kernel's arrays share memory as the kernel's rounding requires.

    Attributes:
      module: with bound results and held operands. given: the same with the control edges (guards)
        that keep its order, as XLA will get it.
      aliases: fusion name -> results bound to operands (written over them).
      holds: instruction name -> numbers of operands that stay live one more step.
    """

    module: PlannedModule
    given: PlannedModule
    aliases: Mapping[str, tuple[Alias, ...]]
    holds: Mapping[str, tuple[int, ...]]


def keep_kernels(planned: PlannedModule, *, is_own: bool = False) -> PatternedModule | None:
    """Makes each kernel's operands and results share memory by its pattern in `planned.kept`: the
    module with the results bound (written over operands) and operands held (live one more step)
    that this takes; None if it fails. `is_own`: it is XLA's own, whose order takes no guards.
    """
    aliases: dict[str, tuple[Alias, ...]] = {}
    holds: dict[str, tuple[int, ...]] = {}
    for _ in range(_WRITTEN):
        work, given = _KernelMemory(planned), planned
        settled = work.settle()
        if settled and not work.aliases and not work.holds and not (is_own and in_order(planned)):
            given = planned.guarded()
            work = _KernelMemory(given)
            settled = work.settle()
        if not settled:
            return None
        if not work.aliases and not work.holds:
            return PatternedModule(planned, given, aliases, holds)
        planned, is_own = planned.rewritten(work.aliases, planned.orders, work.holds), False
        for name, new in work.aliases.items():
            aliases[name] = (*aliases.get(name, ()), *new)
        for name, numbers in work.holds.items():
            holds[name] = (*holds.get(name, ()), *numbers)
    return None


def in_order(planned: PlannedModule) -> bool:
    """Whether all computations are in the order that the module came with."""
    return all(order == c.schedule for c, order in planned.orders.items())


class _KernelMemory:
    """Finds results to bind to (write over) operands and operands to hold (one step longer) so that
    kernels' arrays share memory as they must, by simulation; no module is written.

    Attributes:
      aliases, holds: as in `PatternedModule`.
    """

    def __init__(self, planned: PlannedModule) -> None:
        self.aliases: dict[str, tuple[Alias, ...]] = {}
        self.holds: dict[str, tuple[int, ...]] = {}
        self._planned = planned
        self._model = planned.model
        listed = (i for c in planned.computations.values() for i in c.instructions)
        self._kernels = [i for i in listed if wanted(i, planned.kept) is not None]
        self._buffers: dict[Computation, tuple[dict[int, int], Buffers]] = {}

    def settle(self) -> bool:
        """Binds results to operands and holds operands (extends `aliases`, `holds`) until each
        kernel's arrays share memory as they must; returns False if that fails.
        """
        for _ in range(_ROUNDS):
            binds, held = self._changes()
            if not binds and not held:
                return True
            values = self._planned.dataflow.at
            pairs, kept = [], []
            for i, new in binds.items():
                if not self._is_safe(i, new):
                    return False
                self.aliases[i.name] = (*self.aliases.get(i.name, ()), *new)
                pairs += [(values[i, a].id, values[i.operands[k], ()].id) for a, k in new]
            for i, numbers in held.items():
                if set(numbers) & set(self.holds.get(i.name, ())):
                    return False
                self.holds[i.name] = (*self.holds.get(i.name, ()), *numbers)
                kept += [(values[i.operands[k], ()].id, i) for k in numbers]
            self._model = self._model.merged(pairs).held(kept)
        return False

    def _changes(
        self,
    ) -> tuple[dict[Instruction, tuple[Alias, ...]], dict[Instruction, tuple[int, ...]]]:
        """Simulates buffer assignment; finds what lets kernels' arrays share memory as they must.

        Returns:
          kernel -> results to be bound to operands (written over them), and kernel -> numbers of
          operands that must stay in memory until the kernel has run.
        """
        planned, assignment = self._planned, self._model.simulate(self._planned.orders)
        binds: dict[Instruction, tuple[Alias, ...]] = {}
        held: dict[Instruction, tuple[int, ...]] = {}
        for i in self._kernels:
            own = planned.kept[i.name]
            now = pattern(i, planned.dataflow, assignment)
            if now != own:
                new, numbers = _difference(i, own, now)
                if numbers and len(self.holds.get(i.name, ())) >= _ONE_BY_ONE:
                    numbers = self._all_like(i, own, numbers)
                binds |= {i: new} if new else {}
                held |= {i: numbers} if numbers else {}
        self._bind_chains(binds)
        return binds, held

    def _all_like(
        self, i: Instruction, own: Sequence[int], numbers: Sequence[int]
    ) -> tuple[int, ...]:
        """Numbers of the operands of `i` as large as one of `numbers`: if only those were held in
        memory, the next would be overwritten. Left out are those held already, or whose memory the
        pattern `own` gives to a result.
        """
        arrays, held = leaves(i), self.holds.get(i.name, ())
        first = len(arrays) - sum(source is i for source, _ in arrays)
        bound = {arrays[k][0] for k in own[first:] if k < first}
        sizes = {i.operands[k].shape.bytes for k in numbers}
        return tuple(
            k
            for k, o in enumerate(i.operands)
            if o not in i.operands[:k] and o not in bound and k not in held
            if not o.shape.is_tuple and o.shape.bytes in sizes
        )

    def _bind_chains(self, binds: dict[Instruction, tuple[Alias, ...]]) -> None:
        """Adds to `binds` (kernel -> results to be written over operands) what kernels' patterns
        write over, or with, a value that is bound in it: XLA's heap reuses an operand's memory for
        a result only if neither is bound to another value.
        """
        at = self._planned.dataflow.at
        waiting = [
            value.id
            for i, new in binds.items()
            for index, k in new
            for value in (at[i, index], at[i.operands[k], ()])
        ]
        links: dict[int, list[tuple[Instruction, Alias, int]]] = {}
        for i in self._kernels if waiting else ():
            for alias, result, operand in self._own_links(i):
                links.setdefault(result, []).append((i, alias, operand))
                links.setdefault(operand, []).append((i, alias, result))
        while waiting:
            for i, alias, other in links.pop(waiting.pop(), ()):
                if alias not in binds.get(i, ()):
                    binds[i] = (*binds.get(i, ()), alias)
                    waiting.append(other)

    def _own_links(self, i: Instruction) -> Iterator[tuple[Alias, int, int]]:
        """Yields results that `i` must write over operands, by its pattern (which of its arrays
        share memory), and that are not bound to these yet: each as (the alias that would bind it,
        value id of the result, of the operand).
        """
        own, arrays = self._planned.kept[i.name], leaves(i)
        first = len(arrays) - sum(source is i for source, _ in arrays)
        for k in range(first, len(arrays)):
            if own[k] < first:
                result, operand = (self._planned.dataflow.at[arrays[j]] for j in (k, own[k]))
                alias = arrays[k][1], i.operands.index(arrays[own[k]][0])
                if result.buffer != operand.buffer and alias not in self.aliases.get(i.name, ()):
                    yield alias, result.id, operand.id

    def _is_safe(self, i: Instruction, new: Sequence[Alias]) -> bool:
        """Whether a fusion's results can be written over operands so that no buffer ever has two
        live values; False if `i` is no fusion. Joins the buffers, by which later calls are judged.
        """
        planned, computation = self._planned, i.computation
        if computation not in self._buffers:
            lowered = planned.lowered(computation)
            step = {k: number for number, k in enumerate(lowered.instructions)}
            order = np.array([step[k] for k in planned.orders[computation]])
            is_entry = computation is planned.module.entry
            buffers = Buffers.under(GraphArrays.of(lowered.graph), order, is_entry)
            self._buffers[computation] = ({v: t for t, v in enumerate(lowered.values)}, buffers)
        tensor, buffers = self._buffers[computation]
        at = planned.dataflow.at
        return i.opcode == "fusion" and all(
            not i.operands[number].shape.is_tuple
            and buffers.hand_over(tensor[at[i.operands[number], ()].id], tensor[at[i, index].id])
            for index, number in new
        )


def _difference(
    i: Instruction, own: Sequence[int], now: Sequence[int]
) -> tuple[tuple[Alias, ...], tuple[int, ...]]:
    """Compares two patterns of a kernel, for each array the first one in the same memory: returns
    what turns `now` into `own`, (results to bind to operands, numbers of operands to hold).
    """
    arrays = leaves(i)
    first = len(arrays) - sum(source is i for source, _ in arrays)
    binds: list[Alias] = []
    held: dict[int, None] = {}
    for k in range(first, len(arrays)):
        if now[k] == own[k]:
            continue
        if now[k] < first and now[k] not in own[first:]:
            held[i.operands.index(arrays[now[k]][0])] = None
        if own[k] < first:
            binds.append((arrays[k][1], i.operands.index(arrays[own[k]][0])))
    return tuple(binds), tuple(held)
