"""Offsets for the tensors of a graph under an order, or under another that needs less.

Tensors of one buffer lie at one offset, and their space is free for others while none of them is
live. An output that takes over a dying operand's memory lies exactly where the operand did, since
an output that overlaps its operand otherwise would overwrite bytes before they are read. If this
ties too many tensors together, some outputs get memory of their own where the peak does not need
the operand's.

Where an order leaves a gap, another of no larger live sum may be easier to pack: one under which
fewer steps come near that sum (schedule/search/phases.py), or less memory is reserved for what is
not live (relieved_orders.py). XLA places buffers by a rule of its own, so that no plan of a step
needs this; programs that run operator by operator do.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.papers.relieved_orders import relieved
from benchmarks.placement_blocks import graph_problem, load_of, offsets_by_name
from olla_xla.check.graph import check_placement
from olla_xla.memory.arrays import GraphArrays
from olla_xla.place.exact.restarts import Budget
from olla_xla.place.placer import place
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.search.phases import flattened

_GLANCE = 0.2
"""Part of the time limit that each order gets at first."""

_SEEDS, _SECONDS, _ROUNDS, _WASTED = 4, 4, 18, 2
"""Of flatter orders: how many seeds they are looked for with; how many times the time limit they
may take for each seed; how many are tried for each seed, at most; and after how many in a row whose
bound exceeds their live sum a seed is given up."""


@dataclasses.dataclass(frozen=True, eq=False)
class GraphPlacement:
    """Offsets for one computation; sizes in bytes.

    Attributes:
      arena_bytes: size of the one arena that holds everything.
      offsets: tensor name -> (offset, size); the tensor occupies [offset, offset + size). The
        inside of an operator that calls a computation is named "operator()".
      live_bytes: the largest live sum, tensors rounded up to the alignment.
      packing: how the offsets were found; blocks as in `problem`.
      problem: the blocks.
      order: operator ids in the order for which they are.
      loose: whether hand-overs that the peak does not need were given up.
    """

    arena_bytes: int
    offsets: Mapping[str, tuple[int, int]]
    live_bytes: int
    packing: Packing
    problem: PlacementProblem
    order: tuple[int, ...]
    loose: bool = False

    @property
    def fragmentation(self) -> float:
        """(arena - largest live sum) / largest live sum."""
        return (self.arena_bytes - self.live_bytes) / max(self.live_bytes, 1)


def place_graph(
    graph: TensorGraph,
    order: Sequence[int],
    *,
    alignment: int = 64,
    time_limit: float = 5.0,
    node_limit: int | None = None,
    loose: bool | None = None,
) -> GraphPlacement:
    """Places the tensors of a graph, checked by both referees.

    Args:
      graph: the tensor graph. order: operator ids in execution order.
      alignment: of every offset (bytes).
      time_limit, node_limit: as in `place`.
      loose: whether hand-overs that the peak does not need are given up; None tries to do without.

    Raises:
      CheckError: the referee rejected the offsets (a bug).
    """
    started = time.monotonic()
    tight = graph_problem(graph, order, alignment=alignment)
    problem = graph_problem(graph, order, alignment=alignment, loose=True) if loose else tight
    share = time_limit / 2 if loose is None else time_limit
    best = place(problem, time_limit=share, node_limit=node_limit)
    live = load_of(tight)
    if best.height > live and loose is None:
        freed = graph_problem(graph, order, alignment=alignment, loose=True)
        left = max(time_limit - (time.monotonic() - started), time_limit / 4)
        rival = place(freed, time_limit=left, node_limit=node_limit)
        if rival.height < best.height:
            best, problem = rival, freed
    offsets = offsets_by_name(graph, problem, best)
    check_placement(graph, order, offsets, best.height)
    freed = problem is not tight
    return GraphPlacement(best.height, offsets, live, best, problem, tuple(order), freed)


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
    orders = _Orders(graph, alignment, time_limit, node_limit)
    first = best = orders.placed(order, None)

    def rivals() -> Iterator[GraphPlacement]:
        """What promises most comes first; the last are of the best order so far."""
        yield from orders.flatter(first, 0)
        yield from orders.relieved(best)
        for seed in range(1, _SEEDS):
            yield from orders.flatter(first, seed)
        yield orders.placed(best.order, best.loose, 1 - _GLANCE)

    others = rivals()
    while best.fragmentation > 0 and time.monotonic() < deadline:
        if (rival := next(others, None)) is None:
            break
        best = min(best, rival, key=lambda found: found.arena_bytes)
    return best


@dataclasses.dataclass(frozen=True)
class _Orders:
    """Places a graph under several orders. The fields are arguments of `place_reordered`."""

    graph: TensorGraph
    alignment: int
    time_limit: float
    node_limit: int | None

    def placed(
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

    def flatter(self, first: GraphPlacement, seed: int) -> Iterator[GraphPlacement]:
        """Placements under flatter orders than the first, whose live sum is no larger."""
        budget = Budget(_SECONDS * self.time_limit, self.node_limit)
        g, unit = GraphArrays.of(self.graph), self.alignment
        rounded = g.resized(-(-g.bytes // unit) * unit)
        orders = flattened(
            rounded._replace(transient=-(-g.transient // unit) * unit),
            first.order,
            seed=seed * _ROUNDS,
            spend=lambda moves: budget.charge(moves, 0.0),
        )
        wasted = 0
        for order in itertools.islice(orders, _ROUNDS):
            found = self.placed(order.tolist())
            if found.live_bytes <= first.live_bytes:
                yield found
            wasted = wasted + 1 if found.packing.bound > found.live_bytes else 0
            if wasted == _WASTED or not budget.left():
                return

    def relieved(self, best: GraphPlacement) -> Iterator[GraphPlacement]:
        """The best order, changed so that memory reserved for what is dead can be used."""
        problem_of = functools.partial(graph_problem, self.graph, alignment=self.alignment)
        arrays = GraphArrays.of(self.graph)
        order = relieved(arrays, best.order, problem_of, self.time_limit)
        if tuple(order) != best.order:
            yield self.placed(order)
