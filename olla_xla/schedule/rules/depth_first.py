"""Depth-first orders: an operator runs right after what it needs.

- `post_order`: predecessors in index order.
- `dfs_order`: as XLA's DFS memory scheduler: first the predecessor whose inputs have the most
  extra users, then the one that needs the most bytes.
"""

from __future__ import annotations

import numpy as np

from olla_xla.memory.arrays import GraphArrays, topological_order
from olla_xla.memory.jit import jit

__all__ = ["dfs_order", "post_order"]


def post_order(g: GraphArrays) -> np.ndarray:
    """Predecessors in index order, roots too."""
    return _visit(g.pred_ptr, g.pred_idx, _sinks_first(g))


def dfs_order(g: GraphArrays) -> np.ndarray:
    """Predecessors by extra users, then by bytes, both descending, then by index."""
    made = np.zeros(g.n, np.int64)
    np.add.at(made, g.source, g.bytes)
    extra, total = _needs(topological_order(g), g.pred_ptr, g.pred_idx, g.succ_ptr, made)
    by_need = g.pred_idx.copy()
    rows = np.repeat(np.arange(g.n), np.diff(g.pred_ptr))
    rank = np.lexsort((g.pred_idx, -total[g.pred_idx], -extra[g.pred_idx], rows))
    by_need = g.pred_idx[rank]
    return _visit(g.pred_ptr, by_need, _sinks_first(g))


def _sinks_first(g: GraphArrays) -> np.ndarray:
    """Where the visit starts: operators without successors, then all (none is left by then)."""
    return np.flatnonzero(np.diff(g.succ_ptr) == 0)


@jit
def _needs(
    order: np.ndarray,
    pred_ptr: np.ndarray,
    pred_idx: np.ndarray,
    succ_ptr: np.ndarray,
    made: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Extra users and bytes of all that an operator needs, shared needs counted each time.

    Both are capped, as in XLA, since they would grow exponentially.
    """
    n = len(order)
    limit = np.int64(1) << 40
    extra = np.zeros(n, np.int64)
    total = np.zeros(n, np.int64)
    for v in order:
        extra[v] = max(0, succ_ptr[v + 1] - succ_ptr[v] - 1)
        total[v] = made[v]
        for k in range(pred_ptr[v], pred_ptr[v + 1]):
            extra[v] = min(limit, extra[v] + extra[pred_idx[k]])
            total[v] = min(limit, total[v] + total[pred_idx[k]])
    return extra, total


@jit
def _visit(pred_ptr: np.ndarray, pred_idx: np.ndarray, roots: np.ndarray) -> np.ndarray:
    n = len(pred_ptr) - 1
    order = np.empty(n, np.int64)
    seen = np.zeros(n, np.bool_)
    stack = np.empty(n, np.int64)
    at = np.empty(n, np.int64)
    count = 0
    for root in roots:
        if seen[root]:
            continue
        seen[root] = True
        depth = 0
        stack[0], at[0] = root, pred_ptr[root]
        while depth >= 0:
            v = stack[depth]
            if at[depth] == pred_ptr[v + 1]:
                order[count] = v
                count += 1
                depth -= 1
                continue
            u = pred_idx[at[depth]]
            at[depth] += 1
            if not seen[u]:
                seen[u] = True
                depth += 1
                stack[depth], at[depth] = u, pred_ptr[u]
    return order
