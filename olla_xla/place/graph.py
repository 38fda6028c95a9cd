"""Offsets for the tensors of a graph under an order.

Tensors of one buffer lie at one offset, and their space is free for others while none of them is
live. An output that takes over a dying operand's memory lies exactly where the operand did: reading
one byte while writing another of the same memory would be an error. Where that ties too many
tensors together, hand-overs that the peak does not need are given up.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from olla_xla.check import check_placement
from olla_xla.errors import InputError
from olla_xla.lifetimes import GraphArrays, intervals
from olla_xla.place.placer import place
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.place.reorder import delayed, postponed, relieved
from olla_xla.place.sections import items_of
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
      time_limit, node_limit: as in `place`, for each order.
      reorder: where the order leaves a gap to its largest live sum, others of no larger sum are
        tried: operators move so that no donated argument is dead longer than pays.

    Raises:
      InputError: a pinned tensor is unknown, two pinned ones clash, or one is not aligned.
      CheckError: the referee rejected the offsets (a bug).
    """
    pins = dict(pinned or {})
    if not reorder:
        return _placed(graph, order, alignment, pins, time_limit, node_limit)
    # Little time for each order first, then more for the most promising.
    best = _placed(graph, order, alignment, pins, _GLANCE * time_limit, node_limit)
    tried = [best]
    if best.fragmentation > 0:
        for other in _others(graph, order, alignment, pins, time_limit, best.live_bytes):
            tried.append(_placed(graph, other, alignment, pins, _GLANCE * time_limit, node_limit))
            best = min(best, tried[-1], key=_arena)
            if best.fragmentation == 0:
                break
    for first in sorted(tried, key=lambda p: p.fragmentation):
        if best.fragmentation == 0:
            break
        if first.packing.bound >= best.placement.total_bytes:
            continue
        rest = (1 - _GLANCE) * time_limit
        again = _placed(graph, first.order, alignment, pins, rest, node_limit, first.loose)
        best = min(best, again, key=_arena)
    return best


_GLANCE = 0.2
"""Part of the time limit that each order gets at first."""


def _arena(placed: GraphPlacement) -> int:
    return placed.placement.total_bytes


def _others(
    graph: TensorGraph,
    order: Sequence[int],
    alignment: int,
    pins: Mapping[str, int],
    time_limit: float,
    most: int,
) -> Iterator[list[int]]:
    """Orders of a largest live sum no larger than `most`, all different, in which less is dead."""
    arrays = GraphArrays.of(graph)

    def problem_of(order: Sequence[int]) -> PlacementProblem:
        return graph_problem(graph, order, alignment=alignment, pinned=pins)

    seen = {tuple(order)}
    makers = (
        lambda: list(order),
        lambda: delayed(arrays, order),
        lambda: postponed(arrays, order, alignment),
    )
    for maker in makers:
        other = relieved(arrays, maker(), problem_of, time_limit)
        if tuple(other) not in seen and _load(problem_of(other)) <= most:
            seen.add(tuple(other))
            yield other


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
    live = _load(tight)
    if best.height > live and only is None:
        loose = graph_problem(graph, order, alignment=alignment, pinned=pins, loose=True)
        left = max(time_limit - (time.monotonic() - started), time_limit / 4)
        rival = place(loose, time_limit=left, node_limit=node_limit)
        if rival.offsets is not None and rival.height < best.height:
            best, problem = rival, loose
    assert best.offsets is not None
    sizes = {t.name: t.bytes for t in graph.tensors}
    sizes |= {_inside(op.name): op.transient_bytes for op in graph.operators}
    offsets = {
        name: (int(offset), sizes[name])
        for name, offset in zip(problem.names, best.offsets, strict=True)
    }
    check_placement(graph, order, offsets, best.height)
    placement = Placement(best.height, offsets)
    return GraphPlacement(placement, live, best, problem, tuple(order), problem is not tight)


def graph_problem(
    graph: TensorGraph,
    order: Sequence[int],
    *,
    alignment: int = 64,
    pinned: Mapping[str, int] | None = None,
    loose: bool = False,
) -> PlacementProblem:
    """The blocks of a graph under an order; times are steps, sizes rounded up to `alignment`.

    Args:
      loose: hand-overs that the peak does not need are given up, so that operand and output lie
        apart, both live at the operator's step.
      graph, order, alignment, pinned: see `place_graph`.
    """
    arrays = GraphArrays.of(graph)
    spans = intervals(arrays, order)
    position = arrays.positions(order)
    sizes = -(-arrays.bytes // alignment) * alignment
    inside = -(-np.maximum(arrays.transient, 0) // alignment) * alignment
    live = np.zeros(arrays.n + 1, np.int64)
    np.add.at(live, spans[:, 0], sizes)
    np.subtract.at(live, spans[:, 1], sizes)
    live = np.cumsum(live)[:-1] + inside[np.asarray(order, np.int64)]
    group = _groups(arrays, spans, position, sizes, live, loose)
    keep = np.flatnonzero((arrays.bytes > 0) & (spans[:, 0] < spans[:, 1]))
    # A tensor that hands its memory on at its own first step is live at no step of its own.
    lone = np.flatnonzero((arrays.bytes > 0) & (spans[:, 0] >= spans[:, 1]))
    calls = np.flatnonzero(inside > 0)
    names = [graph.tensors[i].name for i in (*keep, *lone)]
    names += [_inside(graph.operators[k].name) for k in calls]
    first = max(int(group.max(initial=-1)) + 1, 0)
    groups = np.concatenate([group[keep], group[lone], first + np.arange(len(calls))])
    return PlacementProblem.of(
        np.concatenate([spans[keep, 0], spans[lone, 0], position[calls]]),
        np.concatenate([spans[keep, 1], spans[lone, 0] + 1, position[calls] + 1]),
        np.concatenate([sizes[keep], sizes[lone], inside[calls]]),
        names=names,
        alignment=alignment,
        group=groups,
        fixed=_pins(names, groups, pinned or {}),
    )


def _inside(name: str) -> str:
    return f"{name}()"


def _load(problem: PlacementProblem) -> int:
    """The largest live sum of a problem, blocks of one group that meet counted once."""
    best = 0
    for space in np.unique(problem.space):
        items, _ = items_of(problem, int(space))
        best += int(items.loads().max(initial=0))
    return best


def _pins(names: Sequence[str], groups: np.ndarray, pinned: Mapping[str, int]) -> np.ndarray:
    """The pinned offset of each block: that of any member of its group."""
    place = {name: k for k, name in enumerate(names)}
    at: dict[int, int] = {}
    for name, offset in pinned.items():
        if name not in place:
            raise InputError(f"cannot pin {name}: the graph has no such tensor with bytes")
        if at.setdefault(int(groups[place[name]]), offset) != offset:
            raise InputError(f"{name} shares a buffer that is pinned to another offset")
    return np.array([at.get(int(g), -1) for g in groups], np.int64)


def _groups(
    arrays: GraphArrays,
    spans: np.ndarray,
    position: np.ndarray,
    sizes: np.ndarray,
    live: np.ndarray,
    loose: bool,
) -> np.ndarray:
    """[m] tensors with one number lie at one offset; spans of hand-overs given up are extended."""
    label = arrays.buffer.copy()
    members: dict[int, list[int]] = {}
    for t, b in enumerate(label.tolist()):
        members.setdefault(b, []).append(t)
    peak = int(live.max(initial=0))
    for b, a, step, must in _hand_overs(arrays, position):
        if sizes[b] < sizes[a]:  # the rest of the operand is still being read
            spans[a, 1] = step + 1
        if must:
            continue
        one, two = int(label[a]), int(label[b])
        spare = loose and live[step] + sizes[a] <= peak
        if spare or _meet(spans, members[one], members[two]):
            spans[a, 1] = step + 1
            live[step] += sizes[a]
            continue
        if one != two:
            members[one] += members.pop(two)
            label[members[one]] = one
    return label


def _hand_overs(arrays: GraphArrays, position: np.ndarray) -> list[tuple[int, int, int, bool]]:
    """(output, operand, step, same buffer) of every hand-over that `intervals` counted."""
    taken: set[int] = set()
    given: set[int] = set()
    found = []
    for b, a, must in zip(
        arrays.pair_b.tolist(), arrays.pair_a.tolist(), arrays.pair_must.tolist(), strict=True
    ):
        step = int(position[arrays.source[b]])
        last = step + 1 if a not in given else -1
        uses = arrays.sink_idx[arrays.sink_ptr[a] : arrays.sink_ptr[a + 1]]
        dies = int(max(position[uses].max(initial=-1), position[arrays.source[a]])) + 1
        if last != dies or (b in taken and not must):
            continue
        given.add(a)
        taken.add(b)
        found.append((b, a, step, must))
    return found


def _meet(spans: np.ndarray, some: list[int], others: list[int]) -> bool:
    """Whether any tensor of one group is live together with one of another."""
    a, b = spans[some], spans[others]
    return bool(
        ((a[:, None, 0] < b[None, :, 1]) & (b[None, :, 0] < a[:, None, 1])).any() and some != others
    )
