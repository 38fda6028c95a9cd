"""Evaluates evictions: where each tensor must then be computed again, and the memory that takes.

An eviction (tensor, key) says that the tensor is not kept over that moment. Its next reader after
it gets a clone of the operator, placed right before; the clone in turn reads its operands there,
which are kept until then, or are clones themselves if they are evicted too. So all that follows
from a set of evictions is settled in one pass over the operators, last to first.

Moments are integer keys: operator k of the order runs at key (2 k + 1) n; a clone of operator v
that serves a reader at step k runs at key 2 k n + v, right before k, in the order of the originals.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from olla_xla.memory.jit import inner, loop
from olla_xla.remat.graph import RematGraph

__all__ = ["Expansion", "expand"]


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """What follows from a set of evictions.

    Attributes:
      feasible: no clone needs a buffer that has been overwritten by then.
      live: int64 [steps] bytes at each step of the new sequence. keys: its moments, ascending.
      seconds: of all clones, less those of originals that they replace. moved: the same in bytes.
      clone_op, clone_key: [clones] what is cloned, and when.
      removed: [n] bool, originals that nothing needs any more.
      seg_tensor, seg_start, seg_end: [segments] keys between which each version of a tensor lives,
        both inclusive; the start is the key of the operator or clone that makes it (-1: argument).
    """

    feasible: bool
    live: np.ndarray
    keys: np.ndarray
    seconds: float
    moved: int
    clone_op: np.ndarray
    clone_key: np.ndarray
    removed: np.ndarray
    seg_tensor: np.ndarray
    seg_start: np.ndarray
    seg_end: np.ndarray

    @property
    def peak(self) -> int:
        """Largest live bytes."""
        return int(self.live.max(initial=0))


def expand(g: RematGraph, evictions: np.ndarray) -> Expansion:
    """Evaluates evictions, int64 [k, 2] of (tensor, key)."""
    order = np.lexsort((evictions[:, 1], evictions[:, 0]))
    tensors, keys = evictions[order, 0], evictions[order, 1]
    evicted = _Evicted(np.searchsorted(tensors, np.arange(g.m + 1)), np.ascontiguousarray(keys))
    capacity = 8 * (len(g.in_idx) + g.m) + 1024
    graph, made = _Graph.of(g), _Versions.none(capacity)
    removed = np.zeros(g.n, np.bool_)
    feasible = _demand(graph, evicted, _Needs.none(g.m, capacity), made, removed)
    segments = made.segments[: made.count[_SEGMENTS]].copy()
    clones = made.clones[: made.count[_CLONES]].copy()
    steps = _steps(graph, segments, clones)
    live = np.zeros(len(steps.keys), np.int64)
    change = np.zeros(len(steps.keys) + 1, np.int64)
    given, taken = np.zeros(len(segments), np.bool_), np.zeros(len(segments), np.bool_)
    _timeline(graph, steps, removed, given, taken, change, live)
    gone = np.flatnonzero(removed)
    return Expansion(
        feasible=bool(feasible),
        live=live,
        keys=steps.keys,
        seconds=float(g.seconds[clones[:, 0]].sum() - g.seconds[gone].sum()),
        moved=int(g.moved[clones[:, 0]].sum() - g.moved[gone].sum()),
        clone_op=clones[:, 0],
        clone_key=clones[:, 1],
        removed=removed,
        seg_tensor=segments[:, 0],
        seg_start=segments[:, 1],
        seg_end=segments[:, 2],
    )


class _Graph(NamedTuple):
    """The fields of RematGraph that compiled loops take."""

    n: int
    m: int
    bytes: np.ndarray
    live_in: np.ndarray
    live_out: np.ndarray
    limit: np.ndarray
    rerun: np.ndarray
    transient: np.ndarray
    out_ptr: np.ndarray
    out_idx: np.ndarray
    in_ptr: np.ndarray
    in_idx: np.ndarray
    pair_ptr: np.ndarray
    pair_b: np.ndarray
    pair_a: np.ndarray

    @classmethod
    def of(cls, g: RematGraph) -> _Graph:
        """The fields of a graph."""
        return cls(*(getattr(g, name) for name in cls._fields))


class _Evicted(NamedTuple):
    """Tensor -> keys over which it is evicted, ascending (CSR), int64 [m + 1] and [evictions]."""

    ptr: np.ndarray
    key: np.ndarray


class _Needs(NamedTuple):
    """Moments at which tensors are read, a list by tensor: the last entered comes first.

    Attributes:
      head: int64 [m], the first entry of each tensor's list, or -1.
      latest: int64 [m], the largest key in each list, or -1.
      key: int64 [capacity] by entry. following: int64 [capacity], the next entry or -1.
      count: int64 [1], entries.
      moments: int64 [capacity], room for those of one tensor in ascending order.
    """

    head: np.ndarray
    latest: np.ndarray
    key: np.ndarray
    following: np.ndarray
    count: np.ndarray
    moments: np.ndarray

    @classmethod
    def none(cls, tensors: int, capacity: int) -> _Needs:
        """No moments of so many tensors."""
        lists = (np.full(tensors, -1, np.int64), np.full(tensors, -1, np.int64))
        entries = (np.empty(capacity, np.int64), np.empty(capacity, np.int64))
        return cls(*lists, *entries, np.zeros(1, np.int64), np.empty(capacity, np.int64))


class _Versions(NamedTuple):
    """What makes tensors, and how long each version of one lives, as far as is known.

    Attributes:
      segments: int64 [capacity, 3] of (tensor, start, end), as in Expansion.
      clones: int64 [capacity, 2] of (operator, key).
      count: int64 [2], segments and clones, by _SEGMENTS and _CLONES.
    """

    segments: np.ndarray
    clones: np.ndarray
    count: np.ndarray

    @classmethod
    def none(cls, capacity: int) -> _Versions:
        """None so far."""
        segments, clones = np.empty((capacity, 3), np.int64), np.empty((capacity, 2), np.int64)
        return cls(segments, clones, np.zeros(2, np.int64))


_SEGMENTS, _CLONES = 0, 1

_FULL = -1
"""Instead of a moment: there are more versions than the arrays hold."""


@inner
def _moment(n: int, k: int) -> int:
    """The key at which operator k of the order runs."""
    return (2 * k + 1) * n


@loop
def _demand(
    g: _Graph, evicted: _Evicted, needs: _Needs, made: _Versions, removed: np.ndarray
) -> bool:
    """What evictions lead to; operators last to first, so that all readers are known.

    Args:
      g: the graph. evicted: what is evicted, and when.
      needs, made: room for moments and for what is made, which is entered; where it does not
        suffice the evictions are not feasible, and nothing is made.
      removed: bool [n], originals that nothing needs any more are entered.

    Returns:
      Whether the evictions are feasible.
    """
    capacity = len(made.segments)
    feasible = True
    for v in range(g.n - 1, -1, -1):
        own = _moment(g.n, v)
        segment, clone = made.count[_SEGMENTS], made.count[_CLONES]
        used = not g.rerun[v]  # whether the original is needed
        for e in range(g.out_ptr[v], g.out_ptr[v + 1]):
            t = g.out_idx[e]
            start = -1 if g.live_in[t] else own
            latest = (2 * g.n + 2) * g.n if g.live_out[t] else needs.latest[t]
            if not g.live_out[t] and latest > _moment(g.n, g.limit[t]):
                feasible = False
            if evicted.ptr[t] < evicted.ptr[t + 1]:
                latest = _cut(g, evicted, needs, made, t, v, clone)
            elif made.count[_SEGMENTS] < capacity:
                latest = max(own, latest)
                _enter(made, t, start, latest)
            else:
                latest = _FULL
            if latest == _FULL:
                made.count[:] = 0
                return False
            used = used or (not g.live_in[t] and latest > own)
        if not used and made.count[_CLONES] > clone:  # what nothing reads stays as it is
            removed[v] = True
            _drop(made, segment, own)
        for e in range(g.in_ptr[v], g.in_ptr[v + 1]):
            if needs.count[0] + made.count[_CLONES] - clone + 1 >= capacity:
                made.count[:] = 0
                return False
            if not removed[v]:
                _need(needs, g.in_idx[e], own)
            for y in range(clone, made.count[_CLONES]):
                _need(needs, g.in_idx[e], made.clones[y, 1])
    return feasible


@inner
def _need(needs: _Needs, t: int, key: int) -> None:
    """Enters that tensor t is read at a moment."""
    c = needs.count[0]
    needs.key[c], needs.following[c] = key, needs.head[t]
    needs.head[t] = c
    needs.latest[t] = max(needs.latest[t], key)
    needs.count[0] = c + 1


@inner
def _sort_needs(needs: _Needs, t: int) -> int:
    """Puts the moments at which tensor t is read in ascending order; their number."""
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
def _cut(
    g: _Graph,
    evicted: _Evicted,
    needs: _Needs,
    made: _Versions,
    t: int,
    v: int,
    first_clone: int,
) -> int:
    """Enters the versions of an evicted tensor that its readers need, and clones to make them.

    Args:
      g: the graph. evicted: what is evicted. needs: of all readers. made: is added to.
      t: the tensor, which operator v makes. first_clone: of those of v.

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
            if max(made.count[_SEGMENTS], made.count[_CLONES]) >= capacity:
                return _FULL
            _enter(made, t, start, now)
            start = place
            _enter_clone(made, v, place, first_clone)
        now = key
        if start <= own:
            original = now
    if made.count[_SEGMENTS] >= capacity:
        return _FULL
    _enter(made, t, start, now)
    return original


@inner
def _enter(made: _Versions, t: int, start: int, end: int) -> None:
    """Enters a version of tensor t."""
    k = made.count[_SEGMENTS]
    made.segments[k, 0], made.segments[k, 1], made.segments[k, 2] = t, start, end
    made.count[_SEGMENTS] = k + 1


@inner
def _enter_clone(made: _Versions, v: int, key: int, first: int) -> None:
    """Enters a clone of v, unless it is there for another of its results; `first`: those of v."""
    count = made.count[_CLONES]
    for k in range(first, count):
        if made.clones[k, 1] == key:
            return
    made.clones[count, 0], made.clones[count, 1] = v, key
    made.count[_CLONES] = count + 1


@inner
def _drop(made: _Versions, first: int, start: int) -> None:
    """Takes out the segments from `first` on that start at the key `start`."""
    kept = first
    for s in range(first, made.count[_SEGMENTS]):
        if made.segments[s, 1] != start:
            for field in range(3):
                made.segments[kept, field] = made.segments[s, field]
            kept += 1
    made.count[_SEGMENTS] = kept


class _Steps(NamedTuple):
    """The new sequence and when versions live in it.

    Attributes:
      keys, operators: int64 [steps].
      tensor, start, end: int64 [segments], as in Expansion. first, last: [segments] their steps.
      begin, stop: int64 [m], rows of each tensor's segments, which lie together.
    """

    keys: np.ndarray
    operators: np.ndarray
    tensor: np.ndarray
    start: np.ndarray
    end: np.ndarray
    first: np.ndarray
    last: np.ndarray
    begin: np.ndarray
    stop: np.ndarray


def _steps(g: _Graph, segments: np.ndarray, clones: np.ndarray) -> _Steps:
    """The sequence: originals in their order, each clone right before its reader.

    Args:
      g: the graph. segments: int64 [segments, 3]. clones: int64 [clones, 2].
    """
    originals = np.arange(g.n)
    keys = np.concatenate([(2 * originals + 1) * g.n, clones[:, 1]])
    operators = np.concatenate([originals, clones[:, 0]])
    order = np.argsort(keys)  # no two are equal
    keys, operators = keys[order], operators[order]
    tensor, start, end = (np.ascontiguousarray(column) for column in segments.T)
    last = np.minimum(np.searchsorted(keys, end), len(keys) - 1)
    begin, stop = np.zeros(g.m, np.int64), np.zeros(g.m, np.int64)
    begin[tensor[::-1]] = np.arange(len(tensor))[::-1]
    stop[tensor] = np.arange(len(tensor)) + 1
    first = np.searchsorted(keys, start)
    return _Steps(keys, operators, tensor, start, end, first, last, begin, stop)


@loop
def _timeline(
    g: _Graph,
    steps: _Steps,
    removed: np.ndarray,
    given: np.ndarray,
    taken: np.ndarray,
    change: np.ndarray,
    live: np.ndarray,
) -> None:
    """Live bytes at each step of the new sequence.

    Args:
      g: the graph. steps: the sequence. removed: bool [n], originals that are not in it.
      given, taken: bool [segments], false. change: int64 [steps + 1], zero.
      live: int64 [steps], zero; the bytes are entered.
    """
    total = len(steps.keys)
    for s in range(len(steps.tensor)):
        change[steps.first[s]] += g.bytes[steps.tensor[s]]
        change[steps.last[s] + 1] -= g.bytes[steps.tensor[s]]
    _add_unread(g, steps, removed, live)
    _pass_on(g, steps, removed, given, taken, change)
    running = 0
    for x in range(total):
        running += change[x]
        live[x] += running


@inner
def _add_unread(g: _Graph, steps: _Steps, removed: np.ndarray, live: np.ndarray) -> None:
    """Bytes at each step besides the versions': transient ones, results of clones nobody reads."""
    for x in range(len(live)):
        v = steps.operators[x]
        original = steps.keys[x] == (2 * v + 1) * g.n
        if original and removed[v]:
            continue
        live[x] += g.transient[v]
        for e in range(g.out_ptr[v], g.out_ptr[v + 1]):
            t = g.out_idx[e]
            found = original
            for s in range(steps.begin[t], steps.stop[t]):
                found = found or steps.first[s] == x
            if not found:
                live[x] += g.bytes[t]


@inner
def _pass_on(
    g: _Graph,
    steps: _Steps,
    removed: np.ndarray,
    given: np.ndarray,
    taken: np.ndarray,
    change: np.ndarray,
) -> None:
    """Where memory passes on at a step, takes the operand's bytes off there.

    Args:
      g, steps, removed: as in `_timeline`. given, taken: bool [segments], what has passed its
        memory on, or has got some. change: int64 [steps + 1], what is added to the live bytes.
    """
    for x in range(len(steps.keys)):
        v, key = steps.operators[x], steps.keys[x]
        if key == (2 * v + 1) * g.n and removed[v]:
            continue
        for e in range(g.pair_ptr[v], g.pair_ptr[v + 1]):
            a, b = g.pair_a[e], g.pair_b[e]
            giver, taker = -1, -1
            for s in range(steps.begin[a], steps.stop[a]):
                if steps.last[s] == x and steps.end[s] == key and steps.first[s] < x:
                    giver = s
            for s in range(steps.begin[b], steps.stop[b]):
                if steps.first[s] == x and steps.start[s] == key:
                    taker = s
            if giver >= 0 and taker >= 0 and not given[giver] and not taken[taker]:
                given[giver] = True
                taken[taker] = True
                change[x] -= g.bytes[a]
                change[x + 1] += g.bytes[a]
