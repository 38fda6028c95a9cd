"""The versions of tensors that a set of evictions leads to, and the clones that make them.

All that follows from evictions is settled in one compiled pass over the operators, last to first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import inner, loop
from olla_xla.remat.graph import Marks

SEGMENTS, CLONES = 0, 1

_FULL = -1  # returned instead of a key: there are more versions than the arrays hold


class Evicted(NamedTuple):
    """For each tensor, the keys (moments, see `remat.evictions`) over which it is evicted, as CSR:
    int64 [m + 1] and [evictions]; a tensor's keys ascend.
    """

    ptr: NDArray[np.int64]
    key: NDArray[np.int64]


class Needs(NamedTuple):
    """For each tensor a linked list of the keys (moments) at which it is read, the last first.

    Attributes:
      head: int64 [m], the first entry of each tensor's list, or -1.
      latest: int64 [m], the largest key in each list, or -1.
      key: int64 [capacity] by entry. following: int64 [capacity], the next entry or -1.
      count: int64 [1], entries.
      moments: int64 [capacity], room for those of one tensor in ascending order.
      places: int64 [capacity], room for the keys of clones that results of an operator may share.
    """

    head: NDArray[np.int64]
    latest: NDArray[np.int64]
    key: NDArray[np.int64]
    following: NDArray[np.int64]
    count: NDArray[np.int64]
    moments: NDArray[np.int64]
    places: NDArray[np.int64]

    @classmethod
    def none(cls, tensors: int, capacity: int) -> Needs:
        """Makes empty lists for `tensors` tensors, with room for `capacity` entries in all."""
        lists = (np.full(tensors, -1, np.int64), np.full(tensors, -1, np.int64))
        key, following, moments, places = np.empty((4, capacity), np.int64)
        return cls(*lists, key, following, np.zeros(1, np.int64), moments, places)


class Versions(NamedTuple):
    """The lifetimes of tensors that are dropped and recomputed, and the clones that make them.

    Attributes:
      segments: int64 [capacity, 3] of (tensor, start, end), as in Expansion.
      clones: int64 [capacity, 2] of (operator, key).
      count: int64 [2], segments and clones, by SEGMENTS and CLONES.
    """

    segments: NDArray[np.int64]
    clones: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def none(cls, capacity: int) -> Versions:
        """Makes empty arrays with room for `capacity` lifetimes of tensors, and as many clones."""
        segments, clones = np.empty((capacity, 3), np.int64), np.empty((capacity, 2), np.int64)
        return cls(segments, clones, np.zeros(2, np.int64))


@inner
def _moment(n: int, k: int) -> int:
    """The key (moment) at which operator number `k` of the order runs, of `n` operators."""
    return (2 * k + 1) * n


@loop
def demand(
    g: GraphArrays,
    marks: Marks,
    evicted: Evicted,
    needs: Needs,
    made: Versions,
    removed: NDArray[np.bool_],
) -> bool:
    """Finds the clones (operators run again) and lifetimes of tensors that evictions lead to.

    Args:
      g, marks: the graph. evicted: which tensors are dropped, over which moments.
      needs, made: empty; the results are entered. If they are too small, `made` is left empty, and
        the evictions are said to be not feasible.
      removed: bool [n], false; set for originals that nothing needs any more.

    Returns:
      Whether the evictions are feasible: nothing reads a tensor whose buffer is overwritten.
    """
    capacity = len(made.segments)
    feasible = True
    for v in range(g.n - 1, -1, -1):
        own = _moment(g.n, v)
        segment, clone = made.count[SEGMENTS], made.count[CLONES]
        used = not marks.rerun[v]  # whether the original is needed
        shared = _shared(g, evicted, needs, made, v)
        for e in range(g.out_ptr[v], g.out_ptr[v + 1]):
            t = g.out_idx[e]
            if marks.first[t] >= 0:  # its readers read a version of that one
                if not _read_as(needs, t, marks.first[t], own):
                    made.count[:] = 0
                    return False
                used = True
                continue
            start = -1 if g.live_in[t] else own
            latest = (2 * g.n + 2) * g.n if g.live_out[t] else needs.latest[t]
            if not g.live_out[t] and latest > _moment(g.n, marks.limit[t]):
                feasible = False
            if evicted.ptr[t] < evicted.ptr[t + 1]:
                latest = _cut(g, evicted, needs, made, t, v, clone, shared)
            elif made.count[SEGMENTS] < capacity:
                latest = max(own, latest)
                _enter(made, t, start, latest)
            else:
                latest = _FULL
            if latest == _FULL:
                made.count[:] = 0
                return False
            used = used or (not g.live_in[t] and latest > own)
        if not used and made.count[CLONES] > clone:  # what has no clones stays
            removed[v] = True
            _drop(made, segment, own)
        for e in range(g.in_ptr[v], g.in_ptr[v + 1]):
            if needs.count[0] + made.count[CLONES] - clone + 1 >= capacity:
                made.count[:] = 0
                return False
            if not removed[v]:
                _need(needs, g.in_idx[e], own)
            if not marks.given[v]:
                for y in range(clone, made.count[CLONES]):
                    _need(needs, g.in_idx[e], made.clones[y, 1])
    return feasible


@inner
def _need(needs: Needs, t: int, key: int) -> None:
    """Adds to `needs` that tensor `t` is read at the moment `key`."""
    c = needs.count[0]
    needs.key[c], needs.following[c] = key, needs.head[t]
    needs.head[t] = c
    needs.latest[t] = max(needs.latest[t], key)
    needs.count[0] = c + 1


@inner
def _read_as(needs: Needs, t: int, first: int, own: int) -> bool:
    """Adds the reads of tensor `t`, which is made at key `own` and repeats the bytes of tensor
    `first`, as reads of `first`, and one at `own`. Returns False if there is no room.
    """
    c = needs.head[t]
    while c >= 0:
        if needs.count[0] + 2 >= len(needs.key):
            return False
        _need(needs, first, needs.key[c])
        c = needs.following[c]
    _need(needs, first, own)
    return True


@inner
def _sort_needs(needs: Needs, t: int) -> int:
    """Writes the moments of reads of tensor `t` to `needs.moments`, ascending; returns how many."""
    moments = needs.moments
    count = 0
    c = needs.head[t]
    while c >= 0:  # nearly ascending: the last reader was listed first
        x = count
        while x > 0 and moments[x - 1] > needs.key[c]:
            moments[x] = moments[x - 1]
            x -= 1
        moments[x] = needs.key[c]
        count += 1
        c = needs.following[c]
    return count


@inner
def _shared(g: GraphArrays, evicted: Evicted, needs: Needs, made: Versions, v: int) -> int:
    """Counts the clones of operator `v` that its evicted results (tensors that are dropped and
    computed again) would need if each had clones of its own; 0 if fewer than two are evicted.
    Writes these clones' keys (moments) to `needs.places`; leaves `made` as it was.
    """
    results = 0
    for e in range(g.out_ptr[v], g.out_ptr[v + 1]):
        results += evicted.ptr[g.out_idx[e]] < evicted.ptr[g.out_idx[e] + 1]
    if results < 2:
        return 0
    segment, clone = made.count[SEGMENTS], made.count[CLONES]
    for e in range(g.out_ptr[v], g.out_ptr[v + 1]):
        t = g.out_idx[e]
        if evicted.ptr[t] < evicted.ptr[t + 1]:
            _cut(g, evicted, needs, made, t, v, clone, 0)
    count = made.count[CLONES] - clone
    for k in range(count):
        needs.places[k] = made.clones[clone + k, 1]
    made.count[SEGMENTS], made.count[CLONES] = segment, clone
    return count


@inner
def _cut(
    g: GraphArrays,
    evicted: Evicted,
    needs: Needs,
    made: Versions,
    t: int,
    v: int,
    first_clone: int,
    shared: int,
) -> int:
    """Enters the versions (lifetimes) of an evicted tensor that its readers need, and the clones
    (operators run again) that make them.

    Args:
      g: the graph. evicted: which tensors are dropped, over which moments. needs: all reads. made:
        is added to. t: the tensor, which operator v makes. first_clone: index of v's first clone.
      shared: number of `needs.places`, keys of v's clones for all its results: the first of them
        between t's eviction and its next reader gives t again, too.

    Returns:
      The moment up to which the original's version lives, or _FULL.
    """
    n, capacity = g.n, len(made.clones)
    own = _moment(n, v)
    start, now = -1 if g.live_in[t] else own, own
    at, end = evicted.ptr[t], evicted.ptr[t + 1]
    original = own
    count = _sort_needs(needs, t)
    for k in range(count + g.live_out[t]):
        key = needs.moments[k] if k < count else (2 * n + 2) * n
        if key == now:
            continue
        while at < end and evicted.key[at] <= now:
            at += 1
        place = key // (2 * n) * (2 * n) + v  # a clone's, right before its reader
        if at < end and evicted.key[at] < key and place > now:
            if max(made.count[SEGMENTS], made.count[CLONES]) >= capacity:
                return _FULL
            _enter(made, t, start, now)
            while at + 1 < end and evicted.key[at + 1] < key:
                at += 1
            for other in range(shared):
                if max(now, evicted.key[at]) < needs.places[other] < place:
                    place = needs.places[other]
            start = place
            _enter_clone(made, v, place, first_clone)
        now = key
        if start <= own:
            original = now
    if made.count[SEGMENTS] >= capacity:
        return _FULL
    _enter(made, t, start, now)
    return original


@inner
def _enter(made: Versions, t: int, start: int, end: int) -> None:
    """Appends to `made` a lifetime of tensor `t`, from key (moment) `start` to key `end`."""
    k = made.count[SEGMENTS]
    made.segments[k, 0], made.segments[k, 1], made.segments[k, 2] = t, start, end
    made.count[SEGMENTS] = k + 1


@inner
def _enter_clone(made: Versions, v: int, key: int, first: int) -> None:
    """Appends to `made` a clone of operator `v` at moment `key`, if none is at `first` or later."""
    count = made.count[CLONES]
    for k in range(first, count):
        if made.clones[k, 1] == key:
            return
    made.clones[count, 0], made.clones[count, 1] = v, key
    made.count[CLONES] = count + 1


@inner
def _drop(made: Versions, first: int, start: int) -> None:
    """Removes from `made` lifetimes of tensors from index `first` on that start at key `start`."""
    kept = first
    for s in range(first, made.count[SEGMENTS]):
        if made.segments[s, 1] != start:
            for field in range(3):
                made.segments[kept, field] = made.segments[s, field]
            kept += 1
    made.count[SEGMENTS] = kept
