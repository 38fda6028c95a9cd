"""Depth-first orders: an operator runs right after what it needs.

- `post_order`: predecessors in index order.
- `dfs_order`: as XLA's DFS memory scheduler: first the predecessor whose inputs have the most
  extra users, then the one that needs the most bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hlo.walk import after_needs
from olla_xla.memory.arrays import GraphArrays, rows, sum_by, topological_order


def post_order(g: GraphArrays) -> NDArray[np.int64]:
    """The depth-first order, int64 [n], that visits predecessors, and roots, by index."""
    return _visit(g.pred_ptr, g.pred_idx, _sinks_first(g))


def dfs_order(g: GraphArrays) -> NDArray[np.int64]:
    """Depth-first order, int64 [n], of the predecessors of each operator.

    First come those below which most results have further users, then most bytes, then by index.
    """
    made = sum_by(g.source, g.bytes, g.n)
    extra, total = _needs(topological_order(g), g.pred_ptr, g.pred_idx, g.succ_ptr, made)
    rows = np.repeat(np.arange(g.n), np.diff(g.pred_ptr))
    rank = np.lexsort((g.pred_idx, -total[g.pred_idx], -extra[g.pred_idx], rows))
    by_need = g.pred_idx[rank]
    return _visit(g.pred_ptr, by_need, _sinks_first(g))


def _sinks_first(g: GraphArrays) -> NDArray[np.int64]:
    """Where the visit starts: operators without successors, from which all others are reached."""
    return np.flatnonzero(np.diff(g.succ_ptr) == 0)


def _needs(
    order: NDArray[np.int64],
    pred_ptr: NDArray[np.int64],
    pred_idx: NDArray[np.int64],
    succ_ptr: NDArray[np.int64],
    made: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Extra users and bytes of all that an operator needs, shared needs counted each time.

    Both are capped, as in XLA, since they would grow exponentially.
    """
    limit = 1 << 40
    before = rows(pred_ptr, pred_idx)
    extra = np.maximum(np.diff(succ_ptr) - 1, 0).tolist()
    total = made.tolist()
    for v in order.tolist():
        for u in before[v]:
            extra[v] = min(limit, extra[v] + extra[u])
            total[v] = min(limit, total[v] + total[u])
    return np.array(extra, np.int64), np.array(total, np.int64)


def _visit(
    pred_ptr: NDArray[np.int64], pred_idx: NDArray[np.int64], roots: NDArray[np.int64]
) -> NDArray[np.int64]:
    before = rows(pred_ptr, pred_idx)
    return np.array(after_needs(roots.tolist(), before.__getitem__), np.int64)
