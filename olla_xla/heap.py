"""XLA's temp heap: in-place sharing, then global decreasing-size best fit, best of two orders.

A faithful simulation of XLA's HeapSimulator with GlobalDecreasingSizeBestFitHeap (spatial and
temporal packing), over live ranges given as inclusive logical times.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["pack", "share_in_place"]

_INFINITY = np.int64(2**62)


@njit(cache=True)
def share_in_place(ids, start, end, size, buffer, single, share_ptr, share_val):  # pragma: no cover
    """Replays definitions and frees, letting a value take over a dying operand's memory.

    Args:
      ids: values to place, int64 [k].
      start, end: inclusive live ranges by value id.
      size: bytes by value id (that of the value's alias set).
      buffer, single: alias set by value id, and whether it has one value only.
      share_ptr, share_val: CSR by value id: operands whose memory it may take, in operand order.

    Returns:
      (tick of definition, tick of free, root value of the sharing group) by value id; the root is
      -1 for values that are not placed.
    """
    n = len(start)
    k = len(ids)
    tick_start = np.full(n, -1, np.int64)
    tick_end = np.full(n, -1, np.int64)
    root = np.full(n, -1, np.int64)
    in_heap = np.zeros(n, np.bool_)
    freed = np.zeros(n, np.bool_)
    first_of_buffer = np.full(n, -1, np.int64)
    horizon = np.int64(0)
    for v in ids:
        in_heap[v] = True
        horizon = max(horizon, end[v])
    span = horizon + 2
    keys = np.empty(k, np.int64)
    for j in range(k):
        keys[j] = start[ids[j]] * span + end[ids[j]]
    by_start = ids[np.argsort(keys, kind="mergesort")]
    for j in range(k):
        keys[j] = end[ids[j]] * span + start[ids[j]]
    by_end = ids[np.argsort(keys, kind="mergesort")]
    tick = np.int64(0)
    a = 0
    b = 0
    while b < k:
        now = end[by_end[b]]
        if a < k and start[by_start[a]] < now:
            now = start[by_start[a]]
        while a < k and start[by_start[a]] == now:
            v = by_start[a]
            a += 1
            if size[v] == 0:
                continue
            owner = first_of_buffer[buffer[v]]
            if owner < 0 and single[v]:
                for e in range(share_ptr[v], share_ptr[v + 1]):
                    o = share_val[e]
                    if in_heap[o] and single[o] and end[o] == now and not freed[o]:
                        tick_end[o] = tick
                        tick += 1
                        freed[o] = True
                        owner = o
                        break
            if owner >= 0:
                root[v] = root[owner]
            else:
                root[v] = v
                first_of_buffer[buffer[v]] = v
            tick_start[v] = tick
            tick += 1
        while b < k and end[by_end[b]] == now:
            v = by_end[b]
            b += 1
            if size[v] == 0 or freed[v]:
                continue
            freed[v] = True
            tick_end[v] = tick
            tick += 1
    return tick_start, tick_end, root


@njit(cache=True)
def _place(order, group_ptr, group, tick_start, tick_end, size, alignment, offset):
    """Best fit in the given order of group roots; fills `offset`, returns the heap size."""
    total = len(group)
    p_start = np.empty(total, np.int64)
    p_end = np.empty(total, np.int64)
    p_offset = np.empty(total, np.int64)
    p_stop = np.empty(total, np.int64)
    count = 0
    heap = np.int64(0)
    for r in order:
        lo, hi = group_ptr[r], group_ptr[r + 1]
        need = np.int64(0)
        for e in range(lo, hi):
            need = max(need, size[group[e]])
        free = np.int64(0)
        best = np.int64(-1)
        best_size = _INFINITY
        current = np.int64(-1)
        current_end = np.int64(0)
        for j in range(count):
            hit = False
            for e in range(lo, hi):
                m = group[e]
                if p_start[j] <= tick_end[m] and p_end[j] >= tick_start[m]:
                    hit = True
                    break
            if not hit:
                continue
            if current < 0:
                current, current_end = p_offset[j], p_stop[j]
            elif p_offset[j] < current_end:
                current_end = max(current_end, p_stop[j])
            else:
                if current - free >= need and current - free < best_size:
                    best, best_size = free, current - free
                free = max(free, (current_end + alignment - 1) // alignment * alignment)
                current, current_end = p_offset[j], p_stop[j]
        if current >= 0:
            if current - free >= need and current - free < best_size:
                best, best_size = free, current - free
            free = max(free, (current_end + alignment - 1) // alignment * alignment)
        if best < 0:
            best = free
        heap = max(heap, best + need)
        for e in range(lo, hi):
            m = group[e]
            offset[m] = best
        at = np.searchsorted(p_offset[:count], best, side="right")
        members = hi - lo
        for j in range(count - 1, at - 1, -1):
            p_start[j + members] = p_start[j]
            p_end[j + members] = p_end[j]
            p_offset[j + members] = p_offset[j]
            p_stop[j + members] = p_stop[j]
        for e in range(lo, hi):
            j = at + e - lo
            p_start[j] = tick_start[group[e]]
            p_end[j] = tick_end[group[e]]
            p_offset[j] = best
            p_stop[j] = best + need
        count += members
    return heap


@njit(cache=True)
def pack(ids, tick_start, tick_end, root, size, alignment):  # pragma: no cover
    """Offsets of all values in one heap: the better of XLA's spatial and temporal best fit.

    Args:
      ids: values to place, ascending. tick_start, tick_end, root: from share_in_place.
      size: bytes by value id. alignment: bytes.

    Returns:
      (heap size in bytes, offset by value id).
    """
    n = len(root)
    group_ptr = np.zeros(n + 1, np.int64)
    for v in ids:
        if root[v] >= 0:
            group_ptr[root[v] + 1] += 1
    for r in range(n):
        group_ptr[r + 1] += group_ptr[r]
    fill = group_ptr[:-1].copy()
    group = np.empty(group_ptr[n], np.int64)
    roots = np.empty(len(ids), np.int64)
    first = np.empty(n, np.int64)
    last = np.empty(n, np.int64)
    k = 0
    for v in ids:
        r = root[v]
        if r < 0:
            continue
        group[fill[r]] = v
        fill[r] += 1
        if r == v:
            roots[k] = v
            k += 1
    for j in range(k):
        r = roots[j]
        first[r], last[r] = tick_start[r], tick_end[r]
        for e in range(group_ptr[r], group_ptr[r + 1]):
            first[r] = min(first[r], tick_start[group[e]])
            last[r] = max(last[r], tick_end[group[e]])
    roots = np.sort(roots[:k])
    # Stable sorts from the least significant key: id, then duration, then size (or the reverse).
    lengths = np.empty(k, np.int64)
    spans = np.empty(k, np.int64)
    sizes = np.empty(k, np.int64)
    for j in range(k):
        lengths[j] = tick_start[roots[j]] - tick_end[roots[j]]
        spans[j] = first[roots[j]] - last[roots[j]]
        sizes[j] = -size[roots[j]]
    by_length = np.argsort(lengths, kind="mergesort")
    spatial = roots[by_length[np.argsort(sizes[by_length], kind="mergesort")]]
    by_size = np.argsort(sizes, kind="mergesort")
    temporal = roots[by_size[np.argsort(spans[by_size], kind="mergesort")]]
    offset = np.zeros(n, np.int64)
    other = np.zeros(n, np.int64)
    heap = _place(spatial, group_ptr, group, tick_start, tick_end, size, alignment, offset)
    rival = _place(temporal, group_ptr, group, tick_start, tick_end, size, alignment, other)
    if rival < heap:
        return rival, other
    return heap, offset
