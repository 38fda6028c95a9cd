"""Control edges that make weight updates run early (section 4.3 of the paper).

Nothing reads an updated weight, so its update may run at any step up to the end, and a solver has
to try them all. An edge of zero bytes from the update to an anchor, an operator that runs soon
after in any sensible order, excludes the later steps. Since this excludes orders, the optimum may
rise, and a bound found with such edges holds only with them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays, topological_order
from olla_xla.problem.graph import TensorGraph


def weight_updates(graph: TensorGraph) -> list[int]:
    """The operators whose results overwrite arguments, such as weight updates; ascending."""
    arguments = {t.buffer for t in graph.tensors if t.live_in}
    return sorted(
        {t.source for t in graph.tensors if t.live_out and not t.live_in and t.buffer in arguments}
    )


def control_edges(graph: TensorGraph) -> list[tuple[int, int]]:
    """Edges (update, anchor) that make weight updates run early; none for one without an anchor.

    The search goes from the update's predecessors to theirs, and stops where one has a successor on
    a higher level than the update that is no update itself. Of these the anchor is the one farthest
    from the end (earliest in the reversed levelization); ties by level and number. Levels rise
    along every edge, old and new, so that no cycle closes.

    Raises:
      GraphError: a cycle.
    """
    g = GraphArrays.of(graph)
    level, to_end = _levels(g)
    updates = weight_updates(graph)
    own = set(updates)
    edges = []
    for update in updates:
        anchor = _anchor(g, update, own, level, to_end)
        if anchor is not None:
            edges.append((update, anchor))
    return edges


def _levels(g: GraphArrays) -> tuple[list[int], list[int]]:
    """The longest path to each operator, and from it to the end, in edges."""
    order = topological_order(g).tolist()
    level, to_end = [0] * g.n, [0] * g.n
    for v in order:
        level[v] = max((level[u] + 1 for u in _near(g.pred_ptr, g.pred_idx, v)), default=0)
    for v in reversed(order):
        to_end[v] = max((to_end[u] + 1 for u in _near(g.succ_ptr, g.succ_idx, v)), default=0)
    return level, to_end


def _anchor(
    g: GraphArrays, update: int, updates: set[int], level: list[int], to_end: list[int]
) -> int | None:
    met: set[int] = set()
    wave = set(_near(g.pred_ptr, g.pred_idx, update))
    while wave:
        found = {
            a
            for u in wave
            for a in _near(g.succ_ptr, g.succ_idx, u)
            if level[a] > level[update] and a not in updates
        }
        if found:
            return min(found, key=lambda a: (-to_end[a], level[a], a))
        met |= wave
        wave = {u for v in wave for u in _near(g.pred_ptr, g.pred_idx, v)} - met
    return None


def _near(ptr: NDArray[np.int64], idx: NDArray[np.int64], v: int) -> list[int]:
    return idx[ptr[v] : ptr[v + 1]].tolist()
