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

from olla_xla.memory.jit import jit
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
    pointers = np.searchsorted(tensors, np.arange(g.m + 1))
    capacity = 8 * (len(g.in_idx) + g.m) + 1024
    feasible, segments, clones, removed, live, steps = _evaluate(
        _Graph.of(g), pointers, np.ascontiguousarray(keys), capacity
    )
    gone = np.flatnonzero(removed)
    return Expansion(
        feasible=bool(feasible),
        live=live,
        keys=steps,
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


class _Needs(NamedTuple):
    """Moments at which tensors are read, a list by tensor: the last entered comes first.

    Attributes:
      head: int64 [m], the first entry of each tensor's list, or -1.
      latest: int64 [m], the largest key in each list, or -1.
      key: int64 [capacity] by entry. following: int64 [capacity], the next entry or -1.
      count: int64 [1], entries.
    """

    head: np.ndarray
    latest: np.ndarray
    key: np.ndarray
    following: np.ndarray
    count: np.ndarray


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


_SEGMENTS, _CLONES = 0, 1

_FULL = -1
"""Instead of a moment: there are more versions than the arrays hold."""


@jit
def _moment(n: int, k: int) -> int:
    """The key at which operator k of the order runs."""
    return (2 * k + 1) * n


@jit
def _evaluate(
    g: _Graph, evict_ptr: np.ndarray, evict_key: np.ndarray, capacity: int
) -> tuple[bool, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What `_demand` and `_timeline` return; arguments as in `_demand`."""
    feasible, segments, clones, removed = _demand(g, evict_ptr, evict_key, capacity)
    live, keys = _timeline(g, segments, clones, removed)
    return feasible, segments, clones, removed, live, keys


@jit
def _demand(
    g: _Graph, evict_ptr: np.ndarray, evict_key: np.ndarray, capacity: int
) -> tuple[bool, np.ndarray, np.ndarray, np.ndarray]:
    """What evictions lead to; operators last to first, so that all readers are known.

    Args:
      g: the graph. evict_ptr, evict_key: tensor -> keys over which it is evicted, ascending (CSR).
      capacity: entries that arrays have; where they do not suffice the evictions are not feasible.

    Returns:
      (feasible, segments, clones, bool [n] removed originals).
    """
    needs = _Needs(
        np.full(g.m, -1, np.int64),
        np.full(g.m, -1, np.int64),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
        np.zeros(1, np.int64),
    )
    made = _Versions(
        np.empty((capacity, 3), np.int64), np.empty((capacity, 2), np.int64), np.zeros(2, np.int64)
    )
    removed = np.zeros(g.n, np.bool_)
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
            if evict_ptr[t] < evict_ptr[t + 1]:
                evicted = evict_key[evict_ptr[t] : evict_ptr[t + 1]]
                latest = _cut(g.n, needs, made, t, v, g.live_in[t], g.live_out[t], evicted, clone)
            elif made.count[_SEGMENTS] < capacity:
                latest = max(own, latest)
                _enter(made, t, start, latest)
            else:
                latest = _FULL
            if latest == _FULL:
                return False, made.segments[:0], made.clones[:0], removed
            used = used or (not g.live_in[t] and latest > own)
        if not used and made.count[_CLONES] > clone:  # what nothing reads stays as it is
            removed[v] = True
            _drop(made, segment, own)
        for e in range(g.in_ptr[v], g.in_ptr[v + 1]):
            if needs.count[0] + made.count[_CLONES] - clone + 1 >= capacity:
                return False, made.segments[:0], made.clones[:0], removed
            if not removed[v]:
                _need(needs, g.in_idx[e], own)
            for y in range(clone, made.count[_CLONES]):
                _need(needs, g.in_idx[e], made.clones[y, 1])
    segments, clones = made.segments[: made.count[_SEGMENTS]], made.clones[: made.count[_CLONES]]
    return feasible, segments.copy(), clones.copy(), removed


@jit
def _need(needs: _Needs, t: int, key: int) -> None:
    """Enters that tensor t is read at a moment."""
    c = needs.count[0]
    needs.key[c], needs.following[c] = key, needs.head[t]
    needs.head[t] = c
    needs.latest[t] = max(needs.latest[t], key)
    needs.count[0] = c + 1


@jit
def _sorted_needs(needs: _Needs, t: int) -> np.ndarray:
    """The moments at which tensor t is read, int64, ascending."""
    count = 0
    c = needs.head[t]
    while c >= 0:
        count += 1
        c = needs.following[c]
    moments = np.empty(count, np.int64)
    c = needs.head[t]
    for k in range(count):  # nearly ascending: the last reader was listed first
        x = k
        while x > 0 and moments[x - 1] > needs.key[c]:
            moments[x] = moments[x - 1]
            x -= 1
        moments[x] = needs.key[c]
        c = needs.following[c]
    return moments


@jit
def _cut(
    n: int,
    needs: _Needs,
    made: _Versions,
    t: int,
    v: int,
    live_in: bool,
    live_out: bool,
    evicted: np.ndarray,
    first_clone: int,
) -> int:
    """Enters the versions of an evicted tensor that its readers need, and clones to make them.

    Args:
      n: operators. needs: of all readers. made: is added to.
      t: the tensor, which operator v makes. live_in, live_out: of t.
      evicted: int64, keys over which t is evicted, ascending. first_clone: of those of v.

    Returns:
      The moment up to which the original's version lives, or _FULL.
    """
    capacity = len(made.clones)
    own = _moment(n, v)
    start, now, at = -1 if live_in else own, own, 0
    original = own
    moments = _sorted_needs(needs, t)
    for k in range(len(moments) + live_out):
        key = moments[k] if k < len(moments) else (2 * n + 2) * n
        if key == now:
            continue
        while at < len(evicted) and evicted[at] <= now:
            at += 1
        place = key // (2 * n) * (2 * n) + v  # a clone's, right before its reader
        if at < len(evicted) and evicted[at] < key and place > now:
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


@jit
def _enter(made: _Versions, t: int, start: int, end: int) -> None:
    """Enters a version of tensor t."""
    k = made.count[_SEGMENTS]
    made.segments[k, 0], made.segments[k, 1], made.segments[k, 2] = t, start, end
    made.count[_SEGMENTS] = k + 1


@jit
def _enter_clone(made: _Versions, v: int, key: int, first: int) -> None:
    """Enters a clone of v, unless it is there for another of its results; `first`: those of v."""
    count = made.count[_CLONES]
    for k in range(first, count):
        if made.clones[k, 1] == key:
            return
    made.clones[count, 0], made.clones[count, 1] = v, key
    made.count[_CLONES] = count + 1


@jit
def _drop(made: _Versions, first: int, start: int) -> None:
    """Takes out the segments from `first` on that start at the key `start`."""
    kept = first
    for s in range(first, made.count[_SEGMENTS]):
        if made.segments[s, 1] != start:
            made.segments[kept] = made.segments[s]
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


@jit
def _timeline(
    g: _Graph, segments: np.ndarray, clones: np.ndarray, removed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(live bytes, key) at each step of the new sequence, both int64; arguments as in `_demand`."""
    steps = _steps(g, segments, clones)
    total = len(steps.keys)
    change = np.zeros(total + 1, np.int64)
    for s in range(len(segments)):
        change[steps.first[s]] += g.bytes[steps.tensor[s]]
        change[steps.last[s] + 1] -= g.bytes[steps.tensor[s]]
    live = _unread(g, steps, removed)
    _pass_on(g, steps, removed, change)
    running = 0
    for x in range(total):
        running += change[x]
        live[x] += running
    return live, steps.keys


@jit
def _steps(g: _Graph, segments: np.ndarray, clones: np.ndarray) -> _Steps:
    """The sequence: originals in their order, each clone right before its reader."""
    count, total = len(segments), g.n + len(clones)
    keys, operators = np.empty(total, np.int64), np.empty(total, np.int64)
    order = np.argsort(clones[:, 1])
    k, y = 0, 0
    while k + y < total:
        if y < len(clones) and (k >= g.n or clones[order[y], 1] < _moment(g.n, k)):
            operators[k + y], keys[k + y] = clones[order[y], 0], clones[order[y], 1]
            y += 1
        else:
            operators[k + y], keys[k + y] = k, _moment(g.n, k)
            k += 1
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    begin, stop = np.zeros(g.m, np.int64), np.zeros(g.m, np.int64)
    for s in range(count):
        t = segments[s, 0]
        if stop[t] == 0:
            begin[t] = s
        stop[t] = s + 1
        first[s] = np.searchsorted(keys, segments[s, 1])
        last[s] = min(np.searchsorted(keys, segments[s, 2]), total - 1)
    tensor, start, end = segments[:, 0], segments[:, 1], segments[:, 2]
    return _Steps(keys, operators, tensor, start, end, first, last, begin, stop)


@jit
def _unread(g: _Graph, steps: _Steps, removed: np.ndarray) -> np.ndarray:
    """Bytes at each step besides the versions': transient ones, results of clones nobody reads."""
    live = np.zeros(len(steps.keys), np.int64)
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
    return live


@jit
def _pass_on(g: _Graph, steps: _Steps, removed: np.ndarray, change: np.ndarray) -> None:
    """Where memory passes on at a step, takes the operand's bytes off there.

    `change`: int64 [steps + 1], what is added to the live bytes at each step.
    """
    given = np.zeros(len(steps.tensor), np.bool_)
    taken = np.zeros(len(steps.tensor), np.bool_)
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
