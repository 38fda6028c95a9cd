"""List scheduling: one operator after another, the best of those that are ready.

Three rules, each with ties broken by index:
- `list_order`: the operator that frees the most bytes, net of those it makes, as XLA's list
  scheduler.
- `least_peak_order`: the operator that keeps the peak so far lowest, then frees the most, net
  (the least-peak-memory-first rule of PyTorch Inductor).
- `backward_order`: the list rule on the reversed graph, from the last operator to the first: the
  operator that needs the fewest bytes of inputs not yet needed, net of the outputs it makes.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import jit

__all__ = ["backward_order", "by_priority", "least_peak_order", "list_order"]


def by_priority(g: GraphArrays, priority: np.ndarray) -> np.ndarray:
    """Of the operators that are ready, always the one of least priority; ties by index."""
    waiting = np.diff(g.pred_ptr)
    heap = [(int(priority[v]), int(v)) for v in np.flatnonzero(waiting == 0)]
    heapq.heapify(heap)
    order = np.empty(g.n, np.int64)
    for t in range(g.n):
        _, v = heapq.heappop(heap)
        order[t] = v
        for u in g.succ_idx[g.succ_ptr[v] : g.succ_ptr[v + 1]]:
            waiting[u] -= 1
            if waiting[u] == 0:
                heapq.heappush(heap, (int(priority[u]), int(u)))
    return order


def list_order(g: GraphArrays) -> np.ndarray:
    """Most bytes freed first."""
    return _forward(
        *_forward_state(g),
        g.bytes,
        g.sink_ptr,
        g.sink_idx,
        g.in_ptr,
        g.in_idx,
        g.succ_ptr,
        g.succ_idx,
    )


def least_peak_order(g: GraphArrays) -> np.ndarray:
    """Least peak so far first."""
    start = int(g.bytes[g.live_in].sum())
    return _least_peak(
        *_forward_state(g),
        g.transient,
        start,
        g.bytes,
        g.sink_ptr,
        g.sink_idx,
        g.in_ptr,
        g.in_idx,
        g.succ_ptr,
        g.succ_idx,
    )


def backward_order(g: GraphArrays) -> np.ndarray:
    """Fewest new input bytes first, from the end."""
    waiting = np.diff(g.succ_ptr)
    made = _sum_by(g.source[~g.live_in], g.bytes[~g.live_in], g.n)
    readers = np.repeat(np.arange(g.n), np.diff(g.in_ptr))
    needs = ~g.live_out[g.in_idx]
    new = _sum_by(readers[needs], g.bytes[g.in_idx[needs]], g.n)
    return _backward(
        waiting,
        made - new,
        g.live_out.copy(),
        g.bytes,
        g.sink_ptr,
        g.sink_idx,
        g.in_ptr,
        g.in_idx,
        g.pred_ptr,
        g.pred_idx,
    )


def _sum_by(keys: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    total = np.zeros(n, np.int64)
    np.add.at(total, keys, values)
    return total


def _forward_state(g: GraphArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Predecessors left, uses left (one more if live to the end), bytes made, bytes freed."""
    uses = np.diff(g.sink_ptr) + g.live_out
    made = _sum_by(g.source[~g.live_in], g.bytes[~g.live_in], g.n)
    freed = np.zeros(g.n, np.int64)
    unused = uses == 0
    np.add.at(freed, g.source[unused], g.bytes[unused])
    single = (uses == 1) & ~g.live_out
    np.add.at(freed, g.sink_idx[g.sink_ptr[:-1][single]], g.bytes[single])
    return np.diff(g.pred_ptr), uses, made, freed


@jit
def _forward(
    waiting: np.ndarray,
    uses: np.ndarray,
    made: np.ndarray,
    freed: np.ndarray,
    size: np.ndarray,
    sink_ptr: np.ndarray,
    sink_idx: np.ndarray,
    in_ptr: np.ndarray,
    in_idx: np.ndarray,
    succ_ptr: np.ndarray,
    succ_idx: np.ndarray,
) -> np.ndarray:
    n = len(waiting)
    order = np.empty(n, np.int64)
    done = np.zeros(n, np.bool_)
    heap: list[Any] = [(np.int64(0), np.int64(0))]
    heap.pop()
    for v in range(n):
        if waiting[v] == 0:
            heapq.heappush(heap, (made[v] - freed[v], np.int64(v)))
    count = 0
    while heap:
        key, v = heapq.heappop(heap)
        if done[v] or key != made[v] - freed[v]:
            continue
        done[v] = True
        order[count] = v
        count += 1
        for k in range(in_ptr[v], in_ptr[v + 1]):
            a = in_idx[k]
            uses[a] -= 1
            if uses[a] != 1:
                continue
            for e in range(sink_ptr[a], sink_ptr[a + 1]):  # the one sink left will free it
                u = sink_idx[e]
                if not done[u]:
                    freed[u] += size[a]
                    if waiting[u] == 0:
                        heapq.heappush(heap, (made[u] - freed[u], u))
        for k in range(succ_ptr[v], succ_ptr[v + 1]):
            u = succ_idx[k]
            waiting[u] -= 1
            if waiting[u] == 0:
                heapq.heappush(heap, (made[u] - freed[u], u))
    return order


@jit
def _least_peak(
    waiting: np.ndarray,
    uses: np.ndarray,
    made: np.ndarray,
    freed: np.ndarray,
    transient: np.ndarray,
    live: Any,
    size: np.ndarray,
    sink_ptr: np.ndarray,
    sink_idx: np.ndarray,
    in_ptr: np.ndarray,
    in_idx: np.ndarray,
    succ_ptr: np.ndarray,
    succ_idx: np.ndarray,
) -> np.ndarray:
    n = len(waiting)
    order = np.empty(n, np.int64)
    done = np.zeros(n, np.bool_)
    ready = np.empty(n, np.int64)
    count = 0
    for v in range(n):
        if waiting[v] == 0:
            ready[count] = v
            count += 1
    peak = live
    for t in range(n):
        best = 0
        best_peak, best_net = np.int64(0), np.int64(0)
        for j in range(count):
            v = ready[j]
            high = max(peak, live + made[v] + transient[v])
            net = made[v] - freed[v]
            if j == 0 or (high, net, v) < (best_peak, best_net, ready[best]):
                best, best_peak, best_net = j, high, net
        v = ready[best]
        ready[best] = ready[count - 1]
        count -= 1
        order[t] = v
        done[v] = True
        peak = best_peak
        live += best_net
        for k in range(in_ptr[v], in_ptr[v + 1]):
            a = in_idx[k]
            uses[a] -= 1
            if uses[a] == 1:
                for e in range(sink_ptr[a], sink_ptr[a + 1]):
                    if not done[sink_idx[e]]:
                        freed[sink_idx[e]] += size[a]
        for k in range(succ_ptr[v], succ_ptr[v + 1]):
            u = succ_idx[k]
            waiting[u] -= 1
            if waiting[u] == 0:
                ready[count] = u
                count += 1
    return order


@jit
def _backward(
    waiting: np.ndarray,
    gain: np.ndarray,
    needed: np.ndarray,
    size: np.ndarray,
    sink_ptr: np.ndarray,
    sink_idx: np.ndarray,
    in_ptr: np.ndarray,
    in_idx: np.ndarray,
    pred_ptr: np.ndarray,
    pred_idx: np.ndarray,
) -> np.ndarray:
    """`gain`: bytes that vanish, going backward, when an operator is taken, less those added."""
    n = len(waiting)
    order = np.empty(n, np.int64)
    done = np.zeros(n, np.bool_)
    heap: list[Any] = [(np.int64(0), np.int64(0))]
    heap.pop()
    for v in range(n):
        if waiting[v] == 0:
            heapq.heappush(heap, (-gain[v], np.int64(-v)))
    at = n
    while heap:
        key, negative = heapq.heappop(heap)
        v = -negative
        if done[v] or key != -gain[v]:
            continue
        done[v] = True
        at -= 1
        order[at] = v
        for k in range(in_ptr[v], in_ptr[v + 1]):
            a = in_idx[k]
            if needed[a]:
                continue
            needed[a] = True
            for e in range(sink_ptr[a], sink_ptr[a + 1]):  # free for its other readers now
                u = sink_idx[e]
                if not done[u]:
                    gain[u] += size[a]
                    if waiting[u] == 0:
                        heapq.heappush(heap, (-gain[u], -u))
        for k in range(pred_ptr[v], pred_ptr[v + 1]):
            u = pred_idx[k]
            waiting[u] -= 1
            if waiting[u] == 0:
                heapq.heappush(heap, (-gain[u], -u))
    return order
