"""Which results of fusions are bound to operands that they may overwrite, to share one buffer.

Where an operand dies at a fusion that may write over it, the lifetime model counts operand and
result as one. XLA's heap often gives them separate memory: it reuses an operand's for the result
only if neither shares its buffer with another value. A binding (hlo.rewrite.aliases) makes both one
buffer for certain. Bindings change what else fits where, so they are chosen by the simulated total,
and only those that lower it are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

import olla_xla.schedule as schedule
from hlo.rewrite.aliases import Alias
from hlo.values import Dataflow
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.kernels import Pattern, overwritten
from olla_xla.memory.lifetimes import intervals
from olla_xla.memory.lower import LoweredComputation
from olla_xla.planner.work import Candidates

_TRIALS = 8  # most bindings that are tried one by one, the largest first
_TRIAL_WORK = 240_000  # operators simulated for that; large graphs have fewer trials
_SHARE = 1e-4  # bindings smaller than this part of all bytes are not worth their trial


@dataclasses.dataclass(frozen=True)
class Binding:
    """A fusion's result that a plan writes over one of the fusion's operands.

    Attributes:
      fusion: instruction name. index: tuple index of the result. operand: number of the operand.
      values: ids of the result's value and of the operand's. bytes: size of either.
    """

    fusion: str
    index: tuple[int, ...]
    operand: int
    values: tuple[int, int]
    bytes: int


def bindings(work: Candidates, order: Sequence[int] | NDArray[np.int64]) -> list[Binding]:
    """Returns the results of fusions that may safely be bound to operands (written over them, in
    one buffer) under an order, largest first. An operand must die at the fusion under this order,
    the fusion be allowed to overwrite it, and the buffers of both, once joined, never hold two live
    tensors. Arguments are not overwritten, and very small results are left out. A kernel in
    `PlannedModule.kept` gets only bindings between arrays that must share memory by that.
    """
    g, planned = work.arrays, work.planned
    spans = intervals(g, order)
    starts = g.positions(order)[g.source]
    joined = Buffers(g, spans, g.buffer[g.live_in].tolist())
    least = int(g.bytes.sum() * _SHARE)
    safe_bindings = []
    for k in sorted(range(len(g.pair_b)), key=lambda k: (-int(g.bytes[g.pair_b[k]]), k)):
        b, a = int(g.pair_b[k]), int(g.pair_a[k])
        handed = not g.pair_must[k] and spans[a, 1] == starts[b]
        if not handed or g.bytes[b] <= least:
            continue
        binding = _binding(planned.dataflow, work.lowered, b, a)
        if binding is not None and not _keeps(planned.dataflow, binding, planned.kept):
            binding = None
        if binding is not None and joined.join(a, b):
            safe_bindings.append(binding)
    return safe_bindings


def _binding(dataflow: Dataflow, lowered: LoweredComputation, b: int, a: int) -> Binding | None:
    result, operand = (dataflow.values[lowered.values[t]] for t in (b, a))
    fusion = result.instruction
    if fusion.opcode != "fusion" or fusion.computation is not lowered.computation:
        return None
    whole = {i for i, index in operand.positions if not index}
    numbers = [k for k, o in enumerate(fusion.operands) if o in whole]
    taken = any(index == result.index or k in numbers for index, k, _ in fusion.aliasing)
    if len(numbers) != 1 or taken:
        return None
    return Binding(fusion.name, result.index, numbers[0], (result.id, operand.id), result.bytes)


def _keeps(dataflow: Dataflow, binding: Binding, kept: Mapping[str, Pattern]) -> bool:
    """Whether a binding agrees with `kept` (kernel -> which arrays share memory), if that has its
    kernel.
    """
    fusion = dataflow.values[binding.values[0]].instruction
    if fusion.name not in kept:
        return True
    return dataflow.values[binding.values[1]] in [
        dataflow.at[where] for where in overwritten(fusion, kept, binding.index)
    ]


class Buffers:
    """Which tensors of a graph share a buffer; joins two buffers if no two tensors live at once."""

    @classmethod
    def under(
        cls, g: GraphArrays, order: Sequence[int] | NDArray[np.int64], is_entry: bool
    ) -> Buffers:
        """The buffers of a graph, with the tensors' lifetimes under an order. Buffers of arguments
        may be joined only in the entry computation: nothing outside reads those that die early.
        """
        return cls(g, intervals(g, order), () if is_entry else g.buffer[g.live_in].tolist())

    def __init__(self, g: GraphArrays, spans: NDArray[np.int64], pinned: Iterable[int]) -> None:
        self._owner = g.buffer.copy()
        self._pinned = set(pinned)
        self._members: dict[int, list[int]] = {}
        for t, buffer in enumerate(g.buffer.tolist()):
            self._members.setdefault(buffer, []).append(t)
        self._spans = spans

    def hand_over(self, a: int, b: int) -> bool:
        """Joins the buffers of tensors `a` and `b` as `join` does, but the operator that makes `b`
        may be the last to read `a`; returns whether it did.
        """
        start = self._spans[b, 0]
        if self._spans[a, 1] == start + 1:
            self._spans[a, 1] = start
        return self.join(a, b)

    def join(self, a: int, b: int) -> bool:
        """Joins the buffers of tensors `a` and `b`, unless they are one, two tensors in them live
        at once, or one is an argument's that must stay as it is; returns whether it did.
        """
        x, y = int(self._owner[a]), int(self._owner[b])
        if x == y or x in self._pinned or y in self._pinned:
            return False
        both = self._members[x] + self._members[y]
        live = self._spans[both]
        live = live[np.argsort(live[:, 0], kind="stable")]
        if (live[:-1, 1] > live[1:, 0]).any():
            return False
        self._members[x] = both
        self._owner[self._members.pop(y)] = x
        return True


def choose(
    found: Sequence[Binding],
    total: Callable[[Sequence[tuple[int, int]]], int],
    operators: int = 0,
) -> tuple[list[Binding], int]:
    """Chooses bindings (results written over operands) that lower the predicted total. If all of
    them together do, large ones without which it is no higher are left out; else large ones are
    added one by one while they lower it. Returns (chosen, total bytes with them).

    Args:
      found: safe bindings, the largest first.
      total: gives the module's total in bytes if these pairs of value ids share buffers.
      operators: number of the graph's operators; the more, the fewer trials.
    """
    trials = max(1, min(_TRIALS, _TRIAL_WORK // max(operators, 1)))
    least = total([])
    everything = total([b.values for b in found]) if found else least
    kept: list[Binding] = []
    if everything < least:
        kept, least = list(found), everything
        for binding in found[:trials]:
            fewer = [b for b in kept if b is not binding]
            value = total([b.values for b in fewer])
            if value <= least:
                kept, least = fewer, value
        return kept, least
    for binding in found[:trials]:
        value = total([b.values for b in (*kept, binding)])
        if value < least:
            kept, least = [*kept, binding], value
    return kept, least


def aliases(chosen: Sequence[Binding]) -> Mapping[str, tuple[Alias, ...]]:
    """Groups bindings by fusion name: (result index, operand number) of each result to be bound."""
    result: dict[str, tuple[Alias, ...]] = {}
    for binding in chosen:
        result[binding.fusion] = (
            *result.get(binding.fusion, ()),
            (binding.index, binding.operand),
        )
    return result


def with_chains(
    work: Candidates, tolerance: float, own: str
) -> tuple[Candidates, Mapping[str, tuple[Alias, ...]]]:
    """Binds results of fusions to operands (writes them over these) where that lowers the predicted
    total. Bindings are safe under one order only: that of least total, the best that is not the
    search's, and the search's own are tried.

    Args:
      work: the computation with its candidate orders and their scores.
      tolerance: the least saving of all bindings, as a fraction of the least total.
      own: the prefix of the names of the search's own orders.

    Returns:
      The computation, rewritten if anything was bound; and fusion name -> its bound results.
    """
    model = work.planned.model
    best, *_ = ranked = sorted(work.scores, key=lambda name: work.scores[name])
    by_rule = next(name for name in ranked if not name.startswith(own))
    limit = work.scores[best][0] * (1 - tolerance)
    chosen: list[tuple[int, str, list[Binding]]] = []
    for name in dict.fromkeys((best, by_rule, own)):
        orders = work.whole(work.starts[name])
        safe_bindings = bindings(work, work.starts[name])
        kept, total = choose(
            safe_bindings,
            lambda pairs, o=orders: model.merged(pairs).simulate(o).total_bytes,
            work.arrays.n,
        )
        if kept and total < limit:
            chosen.append((total, name, kept))
    if not chosen:
        return work, {}
    # Choices about as good as the best are compared by the orders that they lead to.
    least = min(total for total, *_ in chosen)
    ways = [
        _with_bindings(work, name, kept, own)
        for total, name, kept in chosen
        if total <= least * (1 + tolerance)
    ]
    return min(ways, key=lambda way: min(way[0].scores.values()))


def with_all(
    work: Candidates, tolerance: float, own: str
) -> tuple[Candidates, Mapping[str, tuple[Alias, ...]]]:
    """Binds (writes over operands) all results for which that is safe under the order called `own`,
    whether or not the total falls; `tolerance` does not matter. Returns the computation, rewritten
    if anything was bound, and fusion name -> the results that were bound.
    """
    safe_bindings = bindings(work, work.starts[own])
    return _with_bindings(work, own, safe_bindings, own) if safe_bindings else (work, {})


def _with_bindings(
    work: Candidates, name: str, kept: list[Binding], own: str
) -> tuple[Candidates, Mapping[str, tuple[Alias, ...]]]:
    """Rewrites the module with bindings that are safe under the order `name` of `work`. Returns
    (the computation there, with candidate orders: that one, those of heuristic rules, the search's,
    whose names begin with `own`; fusion name -> its bound results).
    """
    bound = aliases(kept)
    planned = work.planned.rewritten(bound, work.whole(work.starts[name]))
    computation = planned.computations[work.lowered.computation.name]
    other = Candidates(planned, planned.lowered(computation))
    other.add({name: np.arange(other.arrays.n)})
    other.add({f"{n}+": o for n, o in schedule.candidates(other.arrays).items()})
    other.add({f"{n}+": o for n, o in _orders_for(work, other, own).items()})
    return other, bound


def _orders_for(work: Candidates, other: Candidates, own: str) -> dict[str, NDArray[np.int64]]:
    """Translates orders whose names begin with `own` from `work` to `other`, the same computation
    in a rewritten module; {} if the instructions there are not the same.
    """
    step = {i.name: k for k, i in enumerate(other.lowered.instructions)}
    names = [i.name for i in work.lowered.instructions]
    if step.keys() != set(names):
        return {}
    moved = np.array([step[name] for name in names])
    return {name: moved[o] for name, o in work.starts.items() if name.startswith(own)}
