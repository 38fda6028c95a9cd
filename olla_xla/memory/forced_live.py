"""Certified lower bounds on the lifetime peak: they hold for every order of the graph.

Forced-live bound: while operator `v` runs, whatever the order, a tensor is live if its source is
`v` or an ancestor of `v` (or it is live from the start) and one of its users is `v` or a descendant
of `v` (or it is live to the end). Their bytes, plus the transient bytes of `v`, less what the
outputs of `v` could at most take over from inputs that may die there, bound the live bytes at `v`.
"""

from __future__ import annotations

import numpy as np

from olla_xla.memory.arrays import GraphArrays, topological_order
from olla_xla.memory.jit import jit
from olla_xla.problem.graph import TensorGraph

__all__ = ["forced_live_bound", "forced_live_bytes"]

_BLOCK_WORDS = 16  # operators are taken in blocks of 64 times this many


def forced_live_bound(graph: TensorGraph | GraphArrays) -> tuple[int, int]:
    """The bound in bytes and the (first) operator at which it is attained; (0, -1) if empty."""
    forced = forced_live_bytes(graph)
    if not len(forced):
        return 0, -1
    v = int(np.argmax(forced))
    return int(forced[v]), v


def forced_live_bytes(graph: TensorGraph | GraphArrays) -> np.ndarray:
    """int64 [n]: for each operator, a lower bound on the live bytes while it runs."""
    g = GraphArrays.of(graph)
    topological = topological_order(g)
    total = g.transient + g.bytes[g.live_in & g.live_out].sum()
    words = min(_BLOCK_WORDS, g.n // 64 + 1)
    before = np.empty((g.n, words), np.uint64)
    after = np.empty((g.n, words), np.uint64)
    for first in range(0, g.n, 64 * words):
        _reach(first, topological, g.pred_ptr, g.pred_idx, before)
        _reach(first, topological[::-1], g.succ_ptr, g.succ_idx, after)
        _add_forced(
            first,
            total,
            before,
            after,
            g.bytes,
            g.source,
            g.live_in,
            g.live_out,
            g.sink_ptr,
            g.sink_idx,
        )
        last = min(first + 64 * words, g.n)
        _subtract_shared(
            first,
            last,
            total,
            before,
            after,
            g.bytes,
            g.source,
            g.sink_ptr,
            g.sink_idx,
            g.pair_ptr,
            g.pair_b,
            g.pair_a,
            g.pair_must,
        )
    return total


@jit
def _reach(
    first: int, order: np.ndarray, ptr: np.ndarray, idx: np.ndarray, reach: np.ndarray
) -> None:
    """reach[v]: bits of the operators first, first + 1, ... from which v is reached, v included.

    `order` runs along the direction of reaching, `ptr`, `idx` list direct neighbours against it.
    """
    words = reach.shape[1]
    for v in order:
        for w in range(words):
            reach[v, w] = 0
        if first <= v < first + 64 * words:
            k = v - first
            reach[v, k >> 6] |= np.uint64(1) << np.uint64(k & 63)
        for e in range(ptr[v], ptr[v + 1]):
            u = idx[e]
            for w in range(words):
                reach[v, w] |= reach[u, w]


@jit
def _add_forced(
    first: int,
    total: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    size: np.ndarray,
    source: np.ndarray,
    live_in: np.ndarray,
    live_out: np.ndarray,
    sink_ptr: np.ndarray,
    sink_idx: np.ndarray,
) -> None:
    """Adds each tensor's bytes to the operators of the block at which it must be live.

    `before[u]` holds the operators of the block that are u or ancestors of u, `after[u]` those
    that are u or descendants of u.
    """
    n, words = before.shape
    full = ~np.uint64(0)
    one = np.uint64(1)
    for i in range(len(size)):
        if size[i] == 0 or (live_in[i] and live_out[i]):
            continue
        for w in range(words):
            bits = full if live_in[i] else after[source[i], w]
            if not live_out[i] and bits:
                needed = before[source[i], w]
                for k in range(sink_ptr[i], sink_ptr[i + 1]):
                    needed |= before[sink_idx[k], w]
                bits &= needed
            v = first + 64 * w
            while bits and v < n:
                while not bits & np.uint64(0xFF):
                    bits >>= np.uint64(8)
                    v += 8
                if bits & one and v < n:
                    total[v] += size[i]
                bits >>= one
                v += 1


@jit
def _subtract_shared(
    first: int,
    last: int,
    total: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    size: np.ndarray,
    source: np.ndarray,
    sink_ptr: np.ndarray,
    sink_idx: np.ndarray,
    pair_ptr: np.ndarray,
    pair_b: np.ndarray,
    pair_a: np.ndarray,
    pair_must: np.ndarray,
) -> None:
    """Subtracts at each operator of the block the most that its outputs can take over.

    Every same-buffer input that may die at v counts. Of the others, at most as many of one size
    as there are outputs for them; an output whose same-buffer input certainly dies at v takes no
    other.
    """
    m = len(size)
    certain = np.full(m, -1, np.int64)  # b: the operator at which it has a certain giver
    counted = np.full(m, -1, np.int64)  # a or b: the group of pairs in which it was counted
    group = 0
    for v in range(first, last):
        begin, end = pair_ptr[v], pair_ptr[v + 1]
        if begin == end:
            continue
        word, bit = (v - first) >> 6, np.uint64(1) << np.uint64((v - first) & 63)
        usable = np.zeros(end - begin, np.bool_)
        group += 1
        for k in range(begin, end):
            a, b = pair_a[k], pair_b[k]
            may_die, must_die = True, True
            for e in range(sink_ptr[a], sink_ptr[a + 1]):
                s = sink_idx[e]
                if s != v and before[s, word] & bit:
                    may_die = False
                elif s != v and not after[s, word] & bit:
                    must_die = False
            usable[k - begin] = may_die
            if may_die and pair_must[k]:
                if must_die:
                    certain[b] = v
                if counted[a] != group:
                    counted[a] = group
                    total[v] -= size[a]
        must_group = group
        by_size = np.argsort(size[pair_a[begin:end]], kind="mergesort")
        givers, takers, current = 0, 0, -1
        for j in by_size:
            k = begin + j
            a, b = pair_a[k], pair_b[k]
            if pair_must[k] or not usable[j] or certain[b] == v or counted[a] == must_group:
                continue
            if size[a] != current:
                total[v] -= min(givers, takers) * max(current, 0)
                givers, takers, current = 0, 0, size[a]
                group += 1
            if counted[a] != group:
                counted[a] = group
                givers += 1
            if counted[b] != group:
                counted[b] = group
                takers += 1
        total[v] -= min(givers, takers) * max(current, 0)
