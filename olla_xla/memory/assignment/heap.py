"""XLA's temp heap: in-place sharing, then global decreasing-size best fit, best of two orders.

A faithful simulation of XLA's HeapSimulator with GlobalDecreasingSizeBestFitHeap (spatial and
temporal packing), over live ranges given as inclusive logical times.
"""

from __future__ import annotations

import numpy as np

from olla_xla.memory.jit import jit

__all__ = ["pack", "share_in_place"]

_INFINITY = np.int64(2**62)
_BLOCK_BITS = 12


@jit
def share_in_place(
    ids: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    size: np.ndarray,
    buffer: np.ndarray,
    single: np.ndarray,
    share_ptr: np.ndarray,
    share_val: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


@jit
def _blocks(
    group: np.ndarray,
    tick_start: np.ndarray,
    tick_end: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of ticks, in levels of 2**12, 2**14, ... ticks, the last one holding all.

    Returns:
      (first block of each level, and the number of all; by block, where the list of the values
      that live at some of its ticks begins, and the end of the last).
    """
    ticks = np.int64(1)
    for m in group:
        ticks = max(ticks, tick_end[m] + 1)
    base = np.zeros(32, np.int64)
    levels = 0
    while True:
        shift = _BLOCK_BITS + 2 * levels
        base[levels + 1] = base[levels] + ((ticks - 1) >> shift) + 1
        levels += 1
        if ticks <= (np.int64(1) << shift):
            break
    ptr = np.zeros(base[levels] + 1, np.int64)
    for level in range(levels):
        shift = _BLOCK_BITS + 2 * level
        for m in group:
            for k in range(tick_start[m] >> shift, (tick_end[m] >> shift) + 1):
                ptr[base[level] + k + 1] += 1
    for k in range(base[levels]):
        ptr[k + 1] += ptr[k]
    return base[: levels + 1], ptr


@jit
def _place(
    order: np.ndarray,
    group_ptr: np.ndarray,
    group: np.ndarray,
    tick_start: np.ndarray,
    tick_end: np.ndarray,
    base: np.ndarray,
    ptr: np.ndarray,
    size: np.ndarray,
    alignment: int,
    offset: np.ndarray,
) -> int:
    """Best fit in the given order of group roots; fills `offset`, returns the heap size.

    Values placed are kept by offset, in a list for each block; a group is held against the list of
    the smallest block that it fits into.
    """
    stop = np.zeros(len(offset), np.int64)
    placed = np.empty(ptr[-1], np.int64)
    count = np.zeros(len(ptr), np.int64)
    levels = len(base) - 1
    heap = np.int64(0)
    for r in order:
        lo, hi = group_ptr[r], group_ptr[r + 1]
        need = np.int64(0)
        first, last = _INFINITY, np.int64(0)
        for e in range(lo, hi):
            m = group[e]
            need = max(need, size[m])
            first, last = min(first, tick_start[m]), max(last, tick_end[m])
        level = 0
        while (first ^ last) >> (_BLOCK_BITS + 2 * level):
            level += 1
        block = base[level] + (first >> (_BLOCK_BITS + 2 * level))
        free = np.int64(0)
        best = np.int64(-1)
        best_size = _INFINITY
        current = np.int64(-1)
        current_end = np.int64(0)
        for j in range(ptr[block], ptr[block] + count[block]):
            p = placed[j]
            if tick_start[p] > last or tick_end[p] < first:
                continue
            hit = hi == lo + 1
            for e in range(lo, hi):
                if hit:
                    break
                m = group[e]
                hit = tick_start[p] <= tick_end[m] and tick_end[p] >= tick_start[m]
            if not hit:
                continue
            if current < 0:
                current, current_end = offset[p], stop[p]
            elif offset[p] < current_end:
                current_end = max(current_end, stop[p])
            else:
                if current - free >= need and current - free < best_size:
                    best, best_size = free, current - free
                    if best_size == need:  # the first gap of that size wins
                        break
                free = max(free, (current_end + alignment - 1) // alignment * alignment)
                current, current_end = offset[p], stop[p]
        if current >= 0 and best_size != need:
            if current - free >= need and current - free < best_size:
                best, best_size = free, current - free
            free = max(free, (current_end + alignment - 1) // alignment * alignment)
        if best < 0:
            best = free
        heap = max(heap, best + need)
        for e in range(lo, hi):
            m = group[e]
            offset[m] = best
            stop[m] = best + need
            for level in range(levels):
                shift = _BLOCK_BITS + 2 * level
                for k in range(tick_start[m] >> shift, (tick_end[m] >> shift) + 1):
                    _insert(m, base[level] + k, ptr, placed, count, offset)
    return int(heap)


@jit
def _insert(
    m: int,
    block: int,
    ptr: np.ndarray,
    placed: np.ndarray,
    count: np.ndarray,
    offset: np.ndarray,
) -> None:
    """Puts a value into the list of a block, behind those of no larger offset."""
    begin = ptr[block]
    end = begin + count[block]
    below, above = begin, end
    while below < above:
        middle = (below + above) // 2
        if offset[placed[middle]] <= offset[m]:
            below = middle + 1
        else:
            above = middle
    for j in range(end, below, -1):
        placed[j] = placed[j - 1]
    placed[below] = m
    count[block] += 1


@jit
def pack(
    ids: np.ndarray,
    tick_start: np.ndarray,
    tick_end: np.ndarray,
    root: np.ndarray,
    size: np.ndarray,
    alignment: int,
) -> tuple[int, np.ndarray]:
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
    base, ptr = _blocks(group, tick_start, tick_end)
    heap = _place(
        spatial, group_ptr, group, tick_start, tick_end, base, ptr, size, alignment, offset
    )
    rival = _place(
        temporal, group_ptr, group, tick_start, tick_end, base, ptr, size, alignment, other
    )
    if rival < heap:
        return rival, other
    return heap, offset
