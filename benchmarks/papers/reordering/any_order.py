"""Offsets for the tensors of a graph under another order, where the given one leaves a gap.

An order of no larger live sum may be easier to pack: one under which fewer steps come near that sum
(schedule/search/flatten.py), tensors live shorter, or less memory is reserved for what is not live
(orders.py). Where no order alone is enough, order and packing are repaired together
(joint_repair.py).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.papers.reordering.joint_repair import repaired_together
from benchmarks.papers.reordering.one_order import GraphPlacement, checked, place_graph
from benchmarks.papers.reordering.orders import delayed, hastened, postponed, relieved
from benchmarks.placement_blocks import graph_problem, load_of
from olla_xla.memory.arrays import GraphArrays
from olla_xla.place.dead_space import waste
from olla_xla.place.exact.restarts import Budget
from olla_xla.place.items import step_items
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.stop_reason import StopReason
from olla_xla.schedule.search.flatten import flattened
from olla_xla.solvers.linear import Status

_GLANCE = 0.2
"""Part of the time limit that each order gets at first."""

_FLAT_SEEDS, _FLAT, _FLAT_ROUNDS, _WASTED = 2, 4, 18, 2
"""Of flatter orders: how many seeds they are looked for with, at first and again at last; how many
times the time limit they may take for each seed; how many are tried for each seed, at most; and
after how many in a row whose bound exceeds their live sum a seed is given up."""

_MANY, _REPAIRS = 2, 7
"""Orders that are repaired together with their packings, and how often: first each, then the one
that is nearest to its live sum."""

_TOGETHER = 0.25
"""Part of the time limit for each of these repairs."""

_LEAST = 500
"""Tensors from which on order and packing are repaired together; the search serves fewer better."""


def place_reordered(
    graph: TensorGraph,
    order: Sequence[int],
    *,
    alignment: int = 64,
    time_limit: float = 5.0,
    node_limit: int | None = None,
    total_limit: float = math.inf,
) -> GraphPlacement:
    """Places the tensors of a graph under an order, or under another that needs less.

    Others are tried where the order leaves a gap to its largest live sum, and the smallest arena
    wins. None of them has a larger live sum.

    Args:
      graph: the tensor graph. order: operator ids in execution order.
      alignment: of every offset (bytes).
      time_limit, node_limit: as in `place`, for one order. Several orders get part of it each:
        where all leave a gap, that may be some twenty times as much in all.
      total_limit: seconds after which no other order is begun.

    Raises:
      CheckError: the referee rejected offsets (a bug).
    """
    deadline = time.monotonic() + total_limit
    return _Search(graph, order, alignment, time_limit, node_limit).run(deadline)


def _arena(placed: GraphPlacement) -> int:
    return placed.placement.total_bytes


class _Search:
    """Looks for an order, no worse than a given one, under which offsets leave no gap.

    Args:
      graph, order, alignment, time_limit, node_limit: as in `place_reordered`.
    """

    def __init__(
        self,
        graph: TensorGraph,
        order: Sequence[int],
        alignment: int,
        time_limit: float,
        node_limit: int | None,
    ) -> None:
        self.graph = graph
        self.arrays = GraphArrays.of(graph)
        self.alignment = alignment
        self.time_limit = time_limit
        self.node_limit = node_limit
        self.first = self.best = self.place(order, None)
        self.tried = [self.first]

    def run(self, deadline: float) -> GraphPlacement:
        """The smallest arena found; the search ends at one without gap, or past the deadline."""
        rivals = self.rivals()
        while self.best.fragmentation > 0 and time.monotonic() < deadline:
            if (placed := next(rivals, None)) is None:
                break
            self.tried.append(placed)
            self.best = min(self.best, placed, key=_arena)
        return self.best

    def rivals(self) -> Iterator[GraphPlacement]:
        """Placements under other orders, what promises most first."""
        for seed in range(_FLAT_SEEDS):
            yield from self.flattened(seed)
            yield from self.together()
        yield from self.others()
        yield self.freed()
        yield from self.together()
        yield from self.longer()
        for seed in range(_FLAT_SEEDS, 2 * _FLAT_SEEDS):
            yield from self.flattened(seed)
            yield from self.together()

    def place(
        self, order: Sequence[int], loose: bool | None = False, share: float = _GLANCE
    ) -> GraphPlacement:
        """Offsets under one order, within a share of the time limit."""
        return place_graph(
            self.graph,
            order,
            alignment=self.alignment,
            time_limit=share * self.time_limit,
            node_limit=self.node_limit,
            loose=loose,
        )

    def problem(self, order: Sequence[int]) -> PlacementProblem:
        """The blocks under an order."""
        return graph_problem(self.graph, order, alignment=self.alignment)

    def flattened(self, seed: int) -> Iterator[GraphPlacement]:
        """Placements under flatter orders whose live sum is no larger."""
        budget = Budget(_FLAT * self.time_limit, self.node_limit)
        orders = flattened(
            self.arrays,
            self.first.order,
            alignment=self.alignment,
            seed=seed * _FLAT_ROUNDS,
            spend=lambda moves: budget.charge(moves, 0.0),
        )
        wasted = 0
        for order in itertools.islice(orders, _FLAT_ROUNDS):
            placed = self.place(order.tolist())
            if placed.live_bytes <= self.first.live_bytes:
                yield placed
            wasted = wasted + 1 if placed.packing.bound > placed.live_bytes else 0
            if wasted == _WASTED or not budget.left():
                return

    def others(self) -> Iterator[GraphPlacement]:
        """Placements under orders by rules that shorten lifetimes or reserve less dead memory."""
        arrays, order, alignment = self.arrays, self.first.order, self.alignment
        late = delayed(arrays, order)
        makers = (
            lambda: hastened(arrays, late),
            lambda: hastened(arrays, postponed(arrays, order, alignment)),
            lambda: list(order),
            lambda: late,
            lambda: postponed(arrays, order, alignment),
            lambda: hastened(arrays, order),
        )
        seen = {tuple(order)}
        for maker in makers:
            other = relieved(arrays, maker(), self.problem, _GLANCE * self.time_limit)
            if tuple(other) in seen:
                continue
            seen.add(tuple(other))
            items = step_items(self.problem(other))
            load = int(items.loads().max(initial=0))
            least = max(load, waste(items, load).bytes)
            if load <= self.first.live_bytes and least < _arena(self.best):
                yield self.place(other)

    def freed(self) -> GraphPlacement:
        """The best placement, with its order changed so that reserved dead memory can be used."""
        order = relieved(self.arrays, self.best.order, self.problem, self.time_limit)
        return self.best if tuple(order) == self.best.order else self.place(order)

    def together(self) -> Iterator[GraphPlacement]:
        """The most promising placements, with order and packing repaired together repeatedly."""
        tried = sorted(self._hopeful(), key=lambda p: p.fragmentation)[:_MANY]
        latest = list(tried)
        for seed in range(_REPAIRS if tried else 0):
            promising = min(range(len(latest)), key=lambda k: latest[k].fragmentation)
            for k in range(len(latest)) if seed == 0 else [promising]:
                again = self._repaired(latest[k], seed)
                yield again
                # Where it is stuck, it begins anew.
                latest[k] = again if _arena(again) < _arena(latest[k]) else tried[k]

    def longer(self) -> Iterator[GraphPlacement]:
        """The most promising placements again, with the whole time limit of an order."""
        for first in sorted(self._hopeful(), key=lambda p: p.fragmentation)[:_MANY]:
            if first.packing.bound < _arena(self.best):
                yield self.place(first.order, first.loose, 1 - _GLANCE)

    def _hopeful(self) -> list[GraphPlacement]:
        """Placements whose order allows a smaller arena than the best."""
        return [p for p in self.tried if p.live_bytes < _arena(self.best)]

    def _repaired(self, first: GraphPlacement, seed: int) -> GraphPlacement:
        """Order and packing repaired together; `first` where that is no help."""
        if len(first.problem) < _LEAST:
            return first
        started = time.monotonic()
        part = _TOGETHER * self.time_limit
        nodes = None if self.node_limit is None else max(1, int(_TOGETHER * self.node_limit))
        budget = Budget(part, nodes)
        found = repaired_together(
            self.graph, first.order, first.placement.offsets, self.alignment, budget, seed
        )
        if found is None:
            return first
        order, offsets, height = found
        problem = graph_problem(self.graph, order, alignment=self.alignment)
        placed = np.array([offsets[name] for name in problem.names], np.int64)
        numbers, group = np.unique(problem.group, return_inverse=True)
        shared = np.zeros(len(numbers), np.int64)
        shared[group] = placed
        # What is tied together under the new order may differ from what was tied before.
        if (shared[group] != placed).any() or height >= _arena(first):
            return first
        live = load_of(problem)
        heights = problem.check(placed)
        met = height <= live
        packing = Packing(
            offsets=placed,
            heights=heights,
            bounds={0: live},
            status=Status.OPTIMAL if met else Status.FEASIBLE,
            stopped_by=StopReason.PROOF if met else budget.stopped_by,
            source="repair",
            nodes=budget.spent,
            seconds=time.monotonic() - started,
        )
        return checked(self.graph, order, problem, packing, live, loose=False)
