"""Offsets for the tensors of a graph under an order.

Tensors of one buffer lie at one offset, and their space is free for others while none of them is
live. An output that takes over a dying operand's memory lies exactly where the operand did: reading
one byte while writing another of the same memory would be an error. Where that ties too many
tensors together, hand-overs that the peak does not need are given up.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from olla_xla.check import check_placement
from olla_xla.errors import InputError
from olla_xla.lifetimes import GraphArrays
from olla_xla.place.blocks import graph_problem, inside_name, load_of
from olla_xla.place.dead import waste
from olla_xla.place.exact import Budget
from olla_xla.place.joint import repaired_together
from olla_xla.place.placer import place
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.place.reorder import delayed, hastened, postponed, relieved
from olla_xla.place.sections import step_items
from olla_xla.problem import Placement, TensorGraph

__all__ = ["GraphPlacement", "graph_problem", "place_graph"]


@dataclasses.dataclass(frozen=True, eq=False)
class GraphPlacement:
    """Offsets for one computation; sizes in bytes.

    Attributes:
      placement: every tensor with bytes -> (offset, size); the inside of an operator that calls a
        computation is named "operator()".
      live_bytes: the largest live sum, tensors rounded up to the alignment.
      packing: how the offsets were found; blocks as in `problem`.
      problem: the blocks.
      order: operator ids in the order for which they are: the given one, unless `reorder`.
      loose: whether hand-overs that the peak does not need were given up.
    """

    placement: Placement
    live_bytes: int
    packing: Packing
    problem: PlacementProblem
    order: tuple[int, ...]
    loose: bool = False

    @property
    def fragmentation(self) -> float:
        """(arena - largest live sum) / largest live sum."""
        return (self.placement.total_bytes - self.live_bytes) / max(self.live_bytes, 1)


def place_graph(
    graph: TensorGraph,
    order: Sequence[int],
    *,
    alignment: int = 64,
    pinned: Mapping[str, int] | None = None,
    time_limit: float = 5.0,
    node_limit: int | None = None,
    reorder: bool = False,
) -> GraphPlacement:
    """Places the tensors of a graph, checked by both referees.

    Args:
      graph: the tensor graph. order: operator ids in execution order.
      alignment: of every offset (bytes).
      pinned: tensor name -> offset that its buffer must have (bytes), as arguments may.
      time_limit, node_limit: as in `place`, for one order. With `reorder`, several orders get part
        of it each: where all leave a gap, that may be six times as much in all.
      reorder: where the order leaves a gap to its largest live sum, others of no larger sum are
        tried: operators move so that tensors live shorter and no donated argument is dead longer
        than pays; then order and packing are repaired together. The smallest arena wins.

    Raises:
      InputError: a pinned tensor is unknown, two pinned ones clash, or one is not aligned.
      CheckError: the referee rejected the offsets (a bug).
    """
    pins = dict(pinned or {})
    if not reorder:
        return _placed(graph, order, alignment, pins, time_limit, node_limit)
    # Little time for each order first, then more for the most promising.
    best = _placed(graph, order, alignment, pins, _GLANCE * time_limit, node_limit)
    if best.fragmentation == 0:
        return best
    tried = [best]
    for other, bound in _others(graph, order, alignment, pins, time_limit, best.live_bytes):
        if bound >= _arena(best):
            continue
        tried.append(
            _placed(graph, other, alignment, pins, _GLANCE * time_limit, node_limit, False)
        )
        best = min(best, tried[-1], key=_arena)
        if best.fragmentation == 0:
            return best
    freed = _freed(graph, best, alignment, pins, time_limit, node_limit)
    best = min(best, freed, key=_arena)
    if best.fragmentation == 0:
        return best
    tried = [p for p in (*tried, freed) if p.live_bytes < _arena(best)]
    tried = sorted(tried, key=lambda p: p.fragmentation)[:_MANY]
    latest = list(tried)
    for turn in range(_TURNS):
        promising = min(range(len(latest)), key=lambda k: latest[k].fragmentation)
        for k in range(len(latest)) if turn == 0 else [promising]:
            again = _together(graph, latest[k], alignment, pins, time_limit, node_limit, turn)
            best = min(best, again, key=_arena)
            if best.fragmentation == 0:
                return best
            # Where it is stuck, it begins anew.
            latest[k] = again if _arena(again) < _arena(latest[k]) else tried[k]
    for first in tried:
        if first.packing.bound >= _arena(best):
            continue
        rest = (1 - _GLANCE) * time_limit
        again = _placed(graph, first.order, alignment, pins, rest, node_limit, first.loose)
        best = min(best, again, key=_arena)
        if best.fragmentation == 0:
            break
    return best


_GLANCE = 0.2
"""Part of the time limit that each order gets at first."""

_MANY, _TURNS = 2, 7
"""Orders that are repaired together with their packings, and how often: first each, then the one
that is nearest to its live sum."""

_TOGETHER = 0.25
"""Part of the time limit for each of these repairs."""

_LEAST = 500
"""Tensors from which on order and packing are repaired together; the search serves fewer better."""


def _arena(placed: GraphPlacement) -> int:
    return placed.placement.total_bytes


def _problems(
    graph: TensorGraph, alignment: int, pins: Mapping[str, int]
) -> Callable[[Sequence[int]], PlacementProblem]:
    """The blocks of a graph, by order."""
    return lambda order: graph_problem(graph, order, alignment=alignment, pinned=pins)


def _others(
    graph: TensorGraph,
    order: Sequence[int],
    alignment: int,
    pins: Mapping[str, int],
    time_limit: float,
    most: int,
) -> Iterator[tuple[list[int], int]]:
    """Orders of a largest live sum no larger than `most`, all different, each with a lower bound.

    Tensors live shorter under them, or less is dead.
    """
    arrays = GraphArrays.of(graph)
    problem_of = _problems(graph, alignment, pins)
    seen = {tuple(order)}
    late = delayed(arrays, order)
    makers = (
        lambda: hastened(arrays, late),
        lambda: hastened(arrays, postponed(arrays, order, alignment)),
        lambda: list(order),
        lambda: late,
        lambda: postponed(arrays, order, alignment),
        lambda: hastened(arrays, order),
    )
    for maker in makers:
        other = relieved(arrays, maker(), problem_of, _GLANCE * time_limit)
        if tuple(other) in seen:
            continue
        seen.add(tuple(other))
        items = step_items(problem_of(other))
        load = int(items.loads().max(initial=0))
        if load <= most:
            yield other, max(load, waste(items, load).bytes)


def _freed(
    graph: TensorGraph,
    first: GraphPlacement,
    alignment: int,
    pins: Mapping[str, int],
    time_limit: float,
    node_limit: int | None,
) -> GraphPlacement:
    """The placement with dead stretches mended in its order; `first` where that is no help."""
    problem_of = _problems(graph, alignment, pins)
    order = relieved(GraphArrays.of(graph), first.order, problem_of, time_limit)
    if tuple(order) == tuple(first.order):
        return first
    return _placed(graph, order, alignment, pins, _GLANCE * time_limit, node_limit, False)


def _together(
    graph: TensorGraph,
    first: GraphPlacement,
    alignment: int,
    pins: Mapping[str, int],
    time_limit: float,
    node_limit: int | None,
    turn: int,
) -> GraphPlacement:
    """Repairs the order and the packing of a placement together; `first` where that is no help."""
    if pins or len(first.problem) < _LEAST:
        return first
    started = time.monotonic()
    part = _TOGETHER * time_limit
    budget = Budget(part, None if node_limit is None else max(1, int(_TOGETHER * node_limit)))
    found = repaired_together(graph, first.order, first.placement.offsets, alignment, budget, turn)
    if found is None:
        return first
    order, offsets, height = found
    problem = graph_problem(graph, order, alignment=alignment)
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
        status="optimal" if met else "feasible",
        stopped_by="proof" if met else budget.stopped_by,
        source="repair",
        nodes=budget.spent,
        seconds=time.monotonic() - started,
    )
    return _checked(graph, order, problem, packing, live, False)


def _placed(
    graph: TensorGraph,
    order: Sequence[int],
    alignment: int,
    pins: Mapping[str, int],
    time_limit: float,
    node_limit: int | None,
    only: bool | None = None,
) -> GraphPlacement:
    """Offsets for one order: all hand-overs kept, or else those that the peak needs.

    only: False or True if just the one or the other is to be tried.
    """
    started = time.monotonic()
    tight = graph_problem(graph, order, alignment=alignment, pinned=pins)
    problem = tight
    if only:
        problem = graph_problem(graph, order, alignment=alignment, pinned=pins, loose=True)
    share = time_limit / 2 if only is None else time_limit
    best = place(problem, time_limit=share, node_limit=node_limit)
    if best.offsets is None:
        raise InputError(f"the pinned tensors of {graph.name} overlap while both live")
    live = load_of(tight)
    if best.height > live and only is None:
        loose = graph_problem(graph, order, alignment=alignment, pinned=pins, loose=True)
        left = max(time_limit - (time.monotonic() - started), time_limit / 4)
        rival = place(loose, time_limit=left, node_limit=node_limit)
        if rival.offsets is not None and rival.height < best.height:
            best, problem = rival, loose
    return _checked(graph, order, problem, best, live, problem is not tight)


def _checked(
    graph: TensorGraph,
    order: Sequence[int],
    problem: PlacementProblem,
    packing: Packing,
    live: int,
    loose: bool,
) -> GraphPlacement:
    """The offsets by name, accepted by the referee."""
    assert packing.offsets is not None
    sizes = {t.name: t.bytes for t in graph.tensors}
    sizes |= {inside_name(op.name): op.transient_bytes for op in graph.operators}
    offsets = {
        name: (int(offset), sizes[name])
        for name, offset in zip(problem.names, packing.offsets, strict=True)
    }
    check_placement(graph, order, offsets, packing.height)
    placement = Placement(packing.height, offsets)
    return GraphPlacement(placement, live, packing, problem, tuple(order), loose)
