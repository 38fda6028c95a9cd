"""The blocks to place for a graph under an order: which tensors share an offset, and when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import intervals, spans_and_passes
from olla_xla.place.items import items_of
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.problem.graph import TensorGraph


def graph_problem(
    graph: TensorGraph,
    order: Sequence[int],
    *,
    alignment: int = 64,
    loose: bool = False,
) -> PlacementProblem:
    """The blocks of a graph under an order; times are steps, sizes rounded up to `alignment`.

    Args:
      loose: whether a tensor may be kept from taking over a dying operand's memory where the peak
        does not need that; operand and output are then both live at the operator's step.
      graph: the tensor graph. order: operator ids in execution order.
      alignment: of every offset (bytes).
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
    names += [inside_name(graph.operators[k].name) for k in calls]
    first = max(int(group.max(initial=-1)) + 1, 0)
    groups = np.concatenate([group[keep], group[lone], first + np.arange(len(calls))])
    return PlacementProblem.of(
        np.concatenate([spans[keep, 0], spans[lone, 0], position[calls]]),
        np.concatenate([spans[keep, 1], spans[lone, 0] + 1, position[calls] + 1]),
        np.concatenate([sizes[keep], sizes[lone], inside[calls]]),
        names=names,
        alignment=alignment,
        group=groups,
    )


def inside_name(name: str) -> str:
    """The name of the block for the bytes that an operator needs while it runs."""
    return f"{name}()"


def load_of(problem: PlacementProblem) -> int:
    """The largest live sum of a problem, blocks of one group that meet counted once."""
    best = 0
    for space in np.unique(problem.space):
        items, _ = items_of(problem, int(space))
        best += int(items.loads().max(initial=0))
    return best


def _groups(
    arrays: GraphArrays,
    spans: np.ndarray,
    position: np.ndarray,
    sizes: np.ndarray,
    live: np.ndarray,
    loose: bool,
) -> np.ndarray:
    """int64 [m]: the group of each tensor; tensors of one group get the same offset.

    An operand and the output that takes over its memory are one group. Where that is given up, the
    operand's interval in `spans` is extended by the step at which both are live.

    Args:
      arrays: the graph. spans: int64 [m, 2], live intervals; changed in place.
      position: int64 [n], the step of each operator. sizes: int64 [m], bytes, aligned.
      live: int64 [n], live bytes at each step; changed in place.
      loose: whether hand-overs that the peak does not need are given up.
    """
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
    passes = spans_and_passes(arrays, position)[1]
    outputs = arrays.pair_b[passes]
    steps = position[arrays.source[outputs]]
    rows = (outputs, arrays.pair_a[passes], steps, arrays.pair_must[passes])
    return list(zip(*(row.tolist() for row in rows), strict=True))


def _meet(spans: np.ndarray, some: list[int], others: list[int]) -> bool:
    """Whether any tensor of one group is live together with one of another."""
    a, b = spans[some], spans[others]
    return bool(
        ((a[:, None, 0] < b[None, :, 1]) & (b[None, :, 0] < a[:, None, 1])).any() and some != others
    )


def offsets_by_name(
    graph: TensorGraph, problem: PlacementProblem, packing: Packing
) -> dict[str, tuple[int, int]]:
    """Name -> (offset, bytes) for every block of a packing that has offsets.

    The inside of an operator that calls a computation is named "operator()".
    """
    assert packing.offsets is not None
    sizes = {t.name: t.bytes for t in graph.tensors}
    sizes |= {inside_name(op.name): op.transient_bytes for op in graph.operators}
    return {
        name: (int(offset), sizes[name])
        for name, offset in zip(problem.names, packing.offsets, strict=True)
    }
