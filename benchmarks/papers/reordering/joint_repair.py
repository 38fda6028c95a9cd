"""Repairs a packing and the order of operators together.

An item that exceeds the target height of a packing by little often fits if some tensor lives a few
steps less. So attempts at local repair (relocate.py) alternate with moves of single operators. An
operator is moved that begins or ends a tensor that exceeds the target height, or a tensor that is
live together with it; it moves to another step between its predecessors and successors. A move is
kept if three things hold: the largest live sum does not change, the same outputs take over the
memory of the same operands, and no more bytes exceed the target height after the tensors that
overlap others have been repacked. Most moves change none of this and are kept; they lead away from
packings where the repair is stuck. All randomness is seeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.papers.reordering.item_parts import ItemParts, item_parts
from benchmarks.papers.reordering.operator_moves import Order, move
from benchmarks.placement_blocks import inside_name
from olla_xla.memory.arrays import GraphArrays
from olla_xla.place.exact.restarts import Budget
from olla_xla.place.placed_parts import LOWEST, fit, put
from olla_xla.place.relocate import relocate
from olla_xla.problem.graph import TensorGraph

_TRIES = 2000
"""Of local repair, between moves of operators."""


def repaired_together(
    graph: TensorGraph,
    order: Sequence[int],
    offsets: Mapping[str, tuple[int, int]],
    alignment: int,
    budget: Budget,
    seed: int = 0,
) -> tuple[list[int], dict[str, int], int] | None:
    """Looks for an order of the same largest live sum and a packing without fragmentation.

    Args:
      graph, order, alignment: as in `place_graph`. offsets: a placement under that order, name ->
        (offset, size). budget: is charged one node for each item placed. seed: other tries.

    Returns:
      (order, offset of each tensor and of each operator's inside by name, bytes needed), the best
      found; None if a tensor passes its memory on at its own first step, or tensors of one buffer
      are live together: such graphs are not supported.
    """
    arrays = GraphArrays.of(graph)
    found = item_parts(arrays, order, alignment)
    if found is None:
        return None
    parts, fixed = found
    count = parts.movable
    tensors = [graph.tensors[t].name if t >= 0 else "" for t in parts.tensor.tolist()]
    names = [
        name or inside_name(graph.operators[-1 - t].name)
        for name, t in zip(tensors, parts.tensor.tolist(), strict=True)
    ]
    loads = np.zeros(arrays.n + 1, np.int64)
    np.add.at(loads, parts.first, parts.height)
    np.subtract.at(loads, parts.last + 1, parts.height)
    peak = int(np.cumsum(loads).max(initial=0))
    below = parts.size[count:]
    floor, always = int(below.sum()), np.cumsum(below) - below
    target_height = peak - floor
    owner = np.repeat(np.arange(len(parts.size)), np.diff(parts.ptr))
    start = np.zeros(len(parts.size), np.int64)
    start[owner] = [offsets[name][0] for name in names]
    offset = _settled(parts, start, target_height)
    steps = Order(np.array(order, np.int64), arrays.positions(order))
    best, top = (
        (steps.operator.copy(), offset.copy()),
        int(np.max(offset + parts.size[:count], initial=0)),
    )
    seed *= 1000
    while top > target_height and budget.left() > 0:
        seed += 1
        offset, placed = relocate(offset, parts.shapes(), target_height, _TRIES, seed)
        placed += move(steps, offset, parts, arrays, fixed, target_height, peak, seed)
        budget.charge(int(placed), 0.0)
        height = int(np.max(offset + parts.size[:count]))
        if height < top:
            best, top = (steps.operator.copy(), offset.copy()), height
    steps, offset = best
    whole = np.concatenate([floor + offset, always])
    return steps.tolist(), dict(zip(names, whole[owner].tolist(), strict=True)), floor + top


def _settled(parts: ItemParts, start: np.ndarray, target_height: int) -> np.ndarray:
    """Offsets of what is movable, above nothing else: first fit in the order of `start`."""
    shapes = parts.shapes()
    placed = np.empty((5, len(shapes.first)), np.int64)
    offset = np.zeros(parts.movable, np.int64)
    done = 0
    for i in np.argsort(start[: parts.movable], kind="stable").tolist():
        offset[i] = fit(i, shapes, target_height, LOWEST, placed, done)
        done = put(i, offset[i], shapes, placed, done)
    return offset
