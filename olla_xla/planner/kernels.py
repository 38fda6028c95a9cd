"""Gives kernels the patterns of memory that they have in XLA's own order (memory.kernels).

An order was found in which each kernel is the last to read what it is to write over. Whether it
does so, and whether others leave their operands alone, is XLA's assignment to decide. So results
are bound to the operands that they are to write over, and operands that are not to be written over
are held for one step more. Either moves other values, so this is repeated until all is as it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hlo.module import Computation, Instruction
from hlo.rewrite.aliases import Alias
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.kernels import leaves, pattern, wanted
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.module_state import PlannedModule
from olla_xla.planner.in_place import Buffers

__all__ = ["Kept", "keep_kernels", "peaks"]

_ROUNDS = 12
"""Each round moves fewer values than the one before; most modules take one or two."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """A module whose kernels have the patterns that they are to have.

    Attributes:
      module: with all that this took. aliases: fusion name -> results bound to operands.
      holds: instruction name -> numbers of operands that are held.
    """

    module: PlannedModule
    aliases: Mapping[str, tuple[Alias, ...]]
    holds: Mapping[str, tuple[int, ...]]


def keep_kernels(planned: PlannedModule) -> Kept | None:
    """The module in its orders, with every kernel as it is to be; None if that was not found."""
    aliases: dict[str, tuple[Alias, ...]] = {}
    holds: dict[str, tuple[int, ...]] = {}
    for _ in range(_ROUNDS):
        binds, held = _changes(planned)
        if not binds and not held:
            return Kept(planned, aliases, holds)
        again = any(set(new) & set(aliases.get(name, ())) for name, new in binds.items())
        again |= any(set(new) & set(holds.get(name, ())) for name, new in held.items())
        if again or not _are_safe(planned, binds):
            return None
        planned = planned.rewritten(binds, planned.orders, held)
        for name, new in binds.items():
            aliases[name] = (*aliases.get(name, ()), *new)
        for name, numbers in held.items():
            holds[name] = (*holds.get(name, ()), *numbers)
    return None


def _changes(
    planned: PlannedModule,
) -> tuple[dict[str, tuple[Alias, ...]], dict[str, tuple[int, ...]]]:
    """What is to be bound, and what is to be held, by instruction name."""
    assignment = planned.simulate()
    binds: dict[str, tuple[Alias, ...]] = {}
    held: dict[str, tuple[int, ...]] = {}
    for computation in planned.computations.values():
        for i in computation.instructions:
            own = wanted(i, planned.kept)
            if own is None:
                continue
            now = pattern(i, planned.dataflow, assignment)
            if now != own:
                new, numbers = _difference(i, own, now)
                binds |= {i.name: new} if new else {}
                held |= {i.name: numbers} if numbers else {}
    _bind_chains(planned, binds)
    return binds, held


def _bind_chains(planned: PlannedModule, binds: dict[str, tuple[Alias, ...]]) -> None:
    """Binds what passes memory on to, or takes it from, what is to be bound.

    XLA's heap passes it on only between values that share it with no other by force.
    """
    links: dict[int, list[tuple[Instruction, Alias, int]]] = {}
    for computation in planned.computations.values():
        for i in computation.instructions:
            for (index, number), result, operand in _own_links(planned, i):
                links.setdefault(result, []).append((i, (index, number), operand))
                links.setdefault(operand, []).append((i, (index, number), result))
    by_name = {i.name: i for c in planned.computations.values() for i in c.instructions}
    waiting = []
    for name, new in binds.items():
        i = by_name[name]
        for index, number in new:
            waiting += [planned.dataflow.at[i, index].id]
            waiting += [planned.dataflow.at[i.operands[number], ()].id]
    while waiting:
        for i, alias, other in links.pop(waiting.pop(), ()):
            if alias not in binds.get(i.name, ()):
                binds[i.name] = (*binds.get(i.name, ()), alias)
                waiting.append(other)


def _own_links(planned: PlannedModule, i: Instruction) -> Iterator[tuple[Alias, int, int]]:
    """Results that an instruction writes over operands, and that are not bound to them yet.

    Yields:
      The alias that would bind it, value id of the result, and of the operand.
    """
    own = wanted(i, planned.kept)
    if own is None:
        return
    found = leaves(i)
    first = len(found) - sum(source is i for source, _ in found)
    for k in range(first, len(found)):
        if own[k] < first:
            result, operand = (planned.dataflow.at[found[j]] for j in (k, own[k]))
            if result.buffer != operand.buffer:
                number = i.operands.index(found[own[k]][0])
                yield (found[k][1], number), result.id, operand.id


def _difference(
    i: Instruction, own: Sequence[int], now: Sequence[int]
) -> tuple[tuple[Alias, ...], tuple[int, ...]]:
    """Results to bind, and operands to hold, so that an instruction has the pattern `own`."""
    found = leaves(i)
    first = next(k for k, (source, _) in enumerate(found) if source is i)
    binds: list[Alias] = []
    held: dict[int, None] = {}
    for k in range(first, len(found)):
        if now[k] == own[k]:
            continue
        if now[k] < first and now[k] not in own[first:]:
            held[i.operands.index(found[now[k]][0])] = None
        if own[k] < first:
            binds.append((found[k][1], i.operands.index(found[own[k]][0])))
    return tuple(binds), tuple(held)


def _are_safe(planned: PlannedModule, binds: Mapping[str, Sequence[Alias]]) -> bool:
    """Whether results can be bound so: no two live values would ever be in one buffer."""
    for computation in planned.computations.values():
        named = [i for i in computation.instructions if i.name in binds]
        if not named:
            continue
        lowered = planned.lowered(computation)
        step = {i: k for k, i in enumerate(lowered.instructions)}
        order = np.array([step[i] for i in planned.orders[computation]])
        arrays = GraphArrays.of(lowered.graph)
        tensor = {v: t for t, v in enumerate(lowered.values)}
        buffers = Buffers.under(arrays, order, computation is planned.module.entry)
        for i in named:
            for index, number in binds[i.name]:
                result = planned.dataflow.at[i, index].id
                operand = planned.dataflow.at[i.operands[number], ()].id
                if i.opcode != "fusion" or not buffers.hand_over(tensor[operand], tensor[result]):
                    return False
    return True


def peaks(planned: PlannedModule) -> dict[Computation, int]:
    """Lifetime peaks of the orders that a module comes with, callees first, in bytes."""
    for computation in planned.computations.values():
        graph = planned.lowered(computation).graph
        planned.peaks[computation] = peak_bytes(graph, np.arange(len(graph.operators)))
    return planned.peaks
