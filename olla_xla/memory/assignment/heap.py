"""XLA's temp heap: in-place sharing, then best fit in one order or the better of two.

A faithful simulation of XLA's HeapSimulator with GlobalDecreasingSizeBestFitHeap (spatial and
temporal packing), over live ranges given as inclusive logical times. XLA:TPU places values as they
come instead, each into the smallest gap that is free then: read off its buffer assignments, whose
traces of allocations say when and where.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.jit import inner, loop

_INFINITY = np.int64(2**62)
_BLOCK_BITS = 12


def share_in_place(
    ids: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    size: NDArray[np.int64],
    buffer: NDArray[np.int64],
    single: NDArray[np.bool_],
    share_ptr: NDArray[np.int64],
    share_val: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Finds the values that XLA's heap puts into the memory of an operand that dies, by going
    through definitions and frees in the order of time; each is a tick.

    Args:
      ids: values to place, int64 [k].
      start, end: inclusive live ranges by value id.
      size: bytes by value id (that of the value's alias set).
      buffer, single: alias set by value id, and whether it has one value only.
      share_ptr, share_val: CSR by value id: operands whose memory it may take, in operand order.

    Returns:
      By value id: tick of definition, tick of free, and the first value of those in the same memory
      (root); each is -1 for values that are not placed or have no bytes.
    """
    starts, ends = start[ids], end[ids]
    by_start, by_end = ids[np.lexsort((ends, starts))], ids[np.lexsort((starts, ends))]
    rows = np.full((5, len(start)), -1, np.int64)
    rows[4, ids] = 1
    _replay(by_start, by_end, start, end, size, buffer, single, share_ptr, share_val, rows)
    return rows[0], rows[1], rows[2]


@loop
def _replay(
    by_start: NDArray[np.int64],
    by_end: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    size: NDArray[np.int64],
    buffer: NDArray[np.int64],
    single: NDArray[np.bool_],
    share_ptr: NDArray[np.int64],
    share_val: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    """Writes into the first 3 rows of `found`, [5, values], what `share_in_place` returns. It has 2
    more: the first value in an alias set's memory, and 1 for each value that is yet to be
    freed. All else in it is -1 at first. `by_start`, `by_end`: values to place, sorted by (start,
    end) and by (end, start); other arguments are as in `share_in_place`.
    """
    tick_start, tick_end, root = found[0], found[1], found[2]
    first_of_buffer, waits = found[3], found[4]
    k = len(by_start)
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
                    if waits[o] > 0 and single[o] and end[o] == now:
                        tick_end[o] = tick
                        tick += 1
                        waits[o] = 0
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
            if size[v] == 0 or waits[v] == 0:
                continue
            waits[v] = 0
            tick_end[v] = tick
            tick += 1


class _Runs(NamedTuple):
    """When groups of values that share memory live, as runs of ticks (numbered definitions and
    frees) without a gap in between. A group is called by its first value, its root.

    Attributes:
      begin, end: int64 [runs], inclusive ticks; runs are numbered as they begin.
      following: int64 [runs], the next run of the same root, or -1.
      first: int64 [values], the first run of a root, else -1. need: int64 [values], its bytes.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    following: NDArray[np.int64]
    first: NDArray[np.int64]
    need: NDArray[np.int64]


def _grouped(
    ids: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    root: NDArray[np.int64],
    size: NDArray[np.int64],
) -> tuple[_Runs, NDArray[np.int64], int, int]:
    """Groups values that share memory (of one `root`), and computes when each group lives.

    Args:
      ids: ascending. start, end: ticks, all distinct, by value id. root: first value in the same
        memory, by value id, -1 for those that are not placed. size: bytes by value id.

    Returns:
      When each group lives; int64 [4, groups]: roots, ascending, then three negated sort keys: the
      root's bytes, the ticks that the root lives, those from the group's first to its last; a lower
      bound on the bytes of any heap; the last tick.
    """
    n, latest = len(root), int(end.max(initial=-1))
    runs, keys = np.empty((3, len(ids)), np.int64), np.empty((4, len(ids)), np.int64)
    by_root, ticks = np.zeros((4, n), np.int64), np.zeros(latest + 2, np.int64)
    by_root[0] = -1
    least, groups, count = _gather(ids, start, end, root, size, runs, by_root, keys, ticks)
    begin, stop, following = runs[:, :count]
    group_runs = _Runs(begin, stop, following, by_root[0], by_root[1])
    return group_runs, keys[:, :groups], least, latest


@loop
def _gather(
    ids: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    root: NDArray[np.int64],
    size: NDArray[np.int64],
    runs: NDArray[np.int64],
    by_root: NDArray[np.int64],
    keys: NDArray[np.int64],
    ticks: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Finds the runs (ticks without a gap) in which each group of values with one root lives.
    Returns (most bytes needed at any tick, number of groups, number of runs).

    Args:
      ids, start, end, root, size: as in `_grouped`. keys: int64 [4, ids], written: what `_grouped`
        returns second. runs: int64 [3, ids], written: `begin`, `end` and `following` of `_Runs`.
      by_root: int64 [4, values], written: `first`, -1 at first; `need`, the last run, and live
        values of each group, 0 at first. ticks: int64, 0 at first, longer than the last tick.
    """
    begin, stop, following = runs[0], runs[1], runs[2]
    first, need, last, lives = by_root[0], by_root[1], by_root[2], by_root[3]
    for v in ids:
        r = root[v]
        if r >= 0:
            need[r] = max(need[r], size[v])
            ticks[start[v]], ticks[end[v]] = r + 1, -r - 1
    live, most, count, groups = np.int64(0), np.int64(0), 0, 0
    for tick in range(len(ticks)):
        r = abs(ticks[tick]) - 1
        if ticks[tick] > 0:
            lives[r] += 1
            if lives[r] > 1:  # where values of a group meet, it needs its bytes once
                continue
            live += need[r]
            most = max(most, live)
            if first[r] >= 0 and stop[last[r]] == tick - 1:
                continue
            if first[r] >= 0:
                following[last[r]] = count
            else:
                first[r] = count
            begin[count], following[count], last[r] = tick, -1, count
            count += 1
        elif r >= 0:
            lives[r] -= 1
            if lives[r] == 0:
                live -= need[r]
                stop[last[r]] = tick
    for r in ids:
        if root[r] == r:
            keys[0, groups], keys[1, groups] = r, -size[r]
            keys[2, groups] = start[r] - end[r]
            keys[3, groups] = begin[first[r]] - stop[last[r]]
            groups += 1
    return int(most), groups, count


class _Blocks(NamedTuple):
    """Lists of the runs (times in which a group of values lives) placed so far, one list for each
    block of ticks, sorted by offset. There are levels of blocks of 2**12, 2**14, ... ticks; the
    last level is one block. A run is in the lists of all blocks in which it lives at some tick.

    Attributes:
      base: int64 [levels + 1], first block of each level, and the number of all.
      ptr: int64 [blocks + 1], where each list begins. count: int64 [blocks], its runs so far.
      run: int32 [any], the lists.
    """

    base: NDArray[np.int64]
    ptr: NDArray[np.int64]
    count: NDArray[np.int64]
    run: NDArray[np.int32]


def _blocks(runs: _Runs, latest: int) -> _Blocks:
    """Makes empty lists, for blocks of ticks, with room for all `runs`. latest: the last tick."""
    count, shift = len(runs.begin), _BLOCK_BITS
    if not latest >> shift:  # as below, sooner
        base, ptr = np.array([0, 1], np.int64), np.array([0, count], np.int64)
        return _Blocks(base, ptr, np.zeros(1, np.int64), np.empty(count, np.int32))
    base, held = [0], []
    while True:
        blocks = (latest >> shift) + 1
        begin = np.bincount(runs.begin >> shift, minlength=blocks)
        stop = np.bincount((runs.end >> shift) + 1, minlength=blocks)
        held.append(np.cumsum(begin - stop[:blocks]))
        base.append(base[-1] + blocks)
        if blocks == 1:
            break
        shift += 2
    ptr = np.zeros(base[-1] + 1, np.int64)
    np.cumsum(np.concatenate(held), out=ptr[1:])
    count = np.zeros(base[-1], np.int64)
    return _Blocks(np.array(base, np.int64), ptr, count, np.empty(ptr[-1], np.int32))


@loop
def _place(
    order: NDArray[np.int64],
    runs: _Runs,
    alignment: int,
    blocks: _Blocks,
    places: NDArray[np.int64],
    at: NDArray[np.int64],
) -> int:
    """Places groups of values, each called by its first value (root) and in one memory, by best
    fit; returns the heap's size in bytes.

    Args:
      order: roots. runs: when they live. alignment: bytes. blocks: empty lists, filled.
      places: int64 [runs, 4], written: each one's offset, first and last tick, and end, aligned.
      at: int64 [values], written: where each root begins, in bytes.
    """
    heap = np.int64(0)
    for r in order:
        need = runs.need[r]
        at[r] = _gap(runs.first[r], need, runs, blocks, places)
        heap = max(heap, at[r] + need)
        k = runs.first[r]
        while k >= 0:
            places[k, 0], places[k, 1], places[k, 2] = at[r], runs.begin[k], runs.end[k]
            places[k, 3] = (at[r] + need + alignment - 1) // alignment * alignment
            _enter(k, blocks, places)
            k = runs.following[k]
    return int(heap)


@inner
def _gap(
    one: int,
    need: int,
    runs: _Runs,
    blocks: _Blocks,
    places: NDArray[np.int64],
) -> int:
    """The offset, in bytes, of the smallest gap in the heap that a group of values fits in (of
    equal ones the lowest), or else of the end.

    Args:
      one: the group's first run of ticks. need: bytes. runs: of all groups.
      blocks: what is placed; the smallest block that the group lives in is looked at.
      places: as in `_place`, of what is placed.
    """
    first, last = runs.begin[one], runs.end[one]
    k = runs.following[one]
    while k >= 0:
        last = runs.end[k]
        k = runs.following[k]
    shift, level = np.int64(_BLOCK_BITS), 0
    while (first ^ last) >> shift:
        shift += 2
        level += 1
    block = blocks.base[level] + (first >> shift)
    free, best, least = np.int64(0), np.int64(-1), _INFINITY
    for j in range(blocks.ptr[block], blocks.ptr[block] + blocks.count[block]):
        p = blocks.run[j]
        k = one
        while runs.following[k] >= 0 and runs.end[k] < places[p, 1]:
            k = runs.following[k]
        if (runs.begin[k] <= places[p, 2]) & (runs.end[k] >= places[p, 1]):
            spare = places[p, 0] - free
            if need <= spare < least:
                best, least = free, spare
                if spare == need:  # the first gap of that size wins
                    break
            free = max(free, places[p, 3])
    return int(best if best >= 0 else free)


@inner
def _make_room(values: NDArray[np.int32], below: np.uint64, stop: np.uint64) -> None:
    """Moves values[below:stop] up by one, in place; unsigned indices make it a fast loop."""
    one = np.uint64(1)
    while stop > below:
        values[stop] = values[stop - one]
        stop -= one


@inner
def _enter(k: int, blocks: _Blocks, places: NDArray[np.int64]) -> None:
    """Inserts run `k` into the lists of its blocks of ticks, after those of no larger offset."""
    for level in range(len(blocks.base) - 1):
        shift = _BLOCK_BITS + 2 * level
        for number in range(places[k, 1] >> shift, (places[k, 2] >> shift) + 1):
            block = blocks.base[level] + number
            below = blocks.ptr[block]
            stop = below + blocks.count[block]
            above = stop
            while below < above:
                middle = (below + above) // 2
                if places[blocks.run[middle], 0] <= places[k, 0]:
                    below = middle + 1
                else:
                    above = middle
            _make_room(blocks.run, np.uint64(below), np.uint64(stop))
            blocks.run[below] = k
            blocks.count[block] += 1


def pack(
    ids: NDArray[np.int64],
    tick_start: NDArray[np.int64],
    tick_end: NDArray[np.int64],
    root: NDArray[np.int64],
    size: NDArray[np.int64],
    alignment: int,
    most: int | None = None,
    as_they_come: bool = False,
) -> tuple[int, NDArray[np.int64]]:
    """Packs values into one heap by the better of XLA's two best-fit rules: size and offsets.

    Args:
      ids: int64 [any], values to place, ascending. tick_start, tick_end, root: from share_in_place.
      size: int64 [values], bytes. alignment: bytes.
      most: if a lower bound on any heap is above so many bytes, nothing is placed; None: no limit.
      as_they_come: best fit in the order of definitions instead.

    Returns:
      (heap size in bytes, int64 [values] offsets). If nothing is placed, the size is that lower
      bound, and all offsets are 0.
    """
    runs, keys, least, latest = _grouped(ids, tick_start, tick_end, root, size)
    roots, sizes, durations, spans = keys
    if not len(roots) or (most is not None and least > most):
        return least, np.zeros(len(root), np.int64)
    blocks = _blocks(runs, latest)
    places, at = np.empty((len(runs.begin), 4), np.int64), np.zeros((2, len(root) + 1), np.int64)
    # By size, then duration (or the reverse), then id.
    by = (tick_start[roots],) if as_they_come else (durations, sizes)
    heap = _place(roots[np.lexsort(by)], runs, alignment, blocks, places, at[0])
    if heap > least and not as_they_come:
        temporal = roots[np.lexsort((sizes, spans))]
        blocks.count[:] = 0
        rival = _place(temporal, runs, alignment, blocks, places, at[1])
        if rival < heap:
            return rival, at[1][root]
    return heap, at[0][root]  # the last of them is 0, that of values that are not placed
