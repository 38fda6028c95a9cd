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
    room = 8 * (len(g.in_idx) + g.m) + 1024
    feasible, segments, clones, removed = _demand(
        g.n,
        g.source,
        g.live_in,
        g.live_out,
        g.limit,
        g.rerun,
        g.out_ptr,
        g.out_idx,
        g.in_ptr,
        g.in_idx,
        pointers,
        np.ascontiguousarray(keys),
        room,
    )
    live, steps = _timeline(
        g.n,
        g.m,
        g.bytes,
        g.source,
        g.transient,
        g.out_ptr,
        g.out_idx,
        g.pair_ptr,
        g.pair_b,
        g.pair_a,
        segments,
        clones,
        removed,
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


@jit
def _demand(
    n,
    source,
    live_in,
    live_out,
    limit,
    rerun,
    out_ptr,
    out_idx,
    in_ptr,
    in_idx,
    evict_ptr,
    evict_key,
    room,
):  # pragma: no cover
    m = len(source)
    end = (2 * n + 2) * n
    head = np.full(m, -1, np.int64)
    need_key = np.empty(room, np.int64)
    need_next = np.empty(room, np.int64)
    keys = np.empty(room, np.int64)
    needs = 0
    segments = np.empty((room, 3), np.int64)
    count = 0
    clones = np.empty((room, 2), np.int64)
    made = 0
    removed = np.zeros(n, np.bool_)
    feasible = True
    for v in range(n - 1, -1, -1):
        first_clone = made
        used = not rerun[v]  # whether the original is needed
        own = (2 * v + 1) * n
        first_segment = count
        for e in range(out_ptr[v], out_ptr[v + 1]):
            t = out_idx[e]
            k = 0
            c = head[t]
            while c >= 0:  # nearly ascending: the last reader was listed first
                x = k
                while x > 0 and keys[x - 1] > need_key[c]:
                    keys[x] = keys[x - 1]
                    x -= 1
                keys[x] = need_key[c]
                k += 1
                c = need_next[c]
            if live_out[t]:
                keys[k] = end
                k += 1
            if k and not live_out[t] and keys[k - 1] > (2 * limit[t] + 1) * n:
                feasible = False
            start = -1 if live_in[t] else own
            now = start if not live_in[t] else own
            at = evict_ptr[t]
            for x in range(k):
                key = keys[x]
                if key == now:
                    continue
                while at < evict_ptr[t + 1] and evict_key[at] <= now:
                    at += 1
                if at < evict_ptr[t + 1] and evict_key[at] < key:
                    slot = key // n
                    slot -= slot % 2
                    place = slot * n + v
                    if place > now:
                        if start == own and now == own:
                            pass  # so far only its own step; kept if another output is needed
                        elif start == own:
                            used = True
                        if count >= room or made >= room:
                            return False, segments[:0], clones[:0], removed
                        segments[count, 0] = t
                        segments[count, 1] = start
                        segments[count, 2] = now
                        count += 1
                        start = place
                        known = False
                        for y in range(first_clone, made):
                            if clones[y, 1] == place:
                                known = True
                        if not known:
                            clones[made, 0] = v
                            clones[made, 1] = place
                            made += 1
                now = key
            if start == own and now > own:
                used = True
            if count >= room:
                return False, segments[:0], clones[:0], removed
            segments[count, 0] = t
            segments[count, 1] = start
            segments[count, 2] = now
            count += 1
        if made == first_clone:
            used = True  # an operator that nothing reads stays as it is
        if not used:
            removed[v] = True
            kept = first_segment
            for s in range(first_segment, count):
                if segments[s, 1] != own:
                    segments[kept] = segments[s]
                    kept += 1
            count = kept
        for e in range(in_ptr[v], in_ptr[v + 1]):
            t = in_idx[e]
            if needs + made - first_clone + 1 >= room:
                return False, segments[:0], clones[:0], removed
            if used:
                need_key[needs] = own
                need_next[needs] = head[t]
                head[t] = needs
                needs += 1
            for y in range(first_clone, made):
                need_key[needs] = clones[y, 1]
                need_next[needs] = head[t]
                head[t] = needs
                needs += 1
    return feasible, segments[:count].copy(), clones[:made].copy(), removed


@jit
def _timeline(
    n,
    m,
    size,
    source,
    transient,
    out_ptr,
    out_idx,
    pair_ptr,
    pair_b,
    pair_a,
    segments,
    clones,
    removed,
):  # pragma: no cover
    count, made = len(segments), len(clones)
    order = np.argsort(clones[:, 1])
    total = n + made
    keys = np.empty(total, np.int64)
    ops = np.empty(total, np.int64)
    k = 0
    y = 0
    while k < n or y < made:
        if y < made and (k >= n or clones[order[y], 1] < (2 * k + 1) * n):
            keys[k + y] = clones[order[y], 1]
            ops[k + y] = clones[order[y], 0]
            y += 1
        else:
            keys[k + y] = (2 * k + 1) * n
            ops[k + y] = k
            k += 1
    change = np.zeros(total + 1, np.int64)
    first = np.empty(count, np.int64)
    last = np.empty(count, np.int64)
    # Segments of one tensor lie together.
    seg_from = np.full(m, -1, np.int64)
    seg_to = np.zeros(m, np.int64)
    for s in range(count):
        t = segments[s, 0]
        if seg_from[t] < 0:
            seg_from[t] = s
        seg_to[t] = s + 1
        first[s] = max(np.searchsorted(keys, segments[s, 1]), 0)
        last[s] = min(np.searchsorted(keys, segments[s, 2]), total - 1)
        change[first[s]] += size[t]
        change[last[s] + 1] -= size[t]
    given = np.zeros(count, np.bool_)
    taken = np.zeros(count, np.bool_)
    live = np.zeros(total, np.int64)
    for x in range(total):
        v = ops[x]
        original = keys[x] == (2 * v + 1) * n
        if original and removed[v]:
            continue
        live[x] += transient[v]
        for e in range(out_ptr[v], out_ptr[v + 1]):  # results of a clone that nothing reads
            t = out_idx[e]
            found = original
            for s in range(max(seg_from[t], 0), seg_to[t]):
                if first[s] == x:
                    found = True
            if not found:
                live[x] += size[t]
        for e in range(pair_ptr[v], pair_ptr[v + 1]):
            a, b = pair_a[e], pair_b[e]
            giver = -1
            for s in range(max(seg_from[a], 0), seg_to[a]):
                if last[s] == x and segments[s, 2] == keys[x] and first[s] < x:
                    giver = s
            taker = -1
            for s in range(max(seg_from[b], 0), seg_to[b]):
                if first[s] == x and segments[s, 1] == keys[x]:
                    taker = s
            if giver >= 0 and taker >= 0 and not given[giver] and not taken[taker]:
                given[giver] = True
                taken[taker] = True
                change[x] -= size[a]
                change[x + 1] += size[a]
    running = 0
    for x in range(total):
        running += change[x]
        live[x] += running
    return live, keys
