"""Evaluates evictions: where each tensor must then be computed again, and the memory that takes.

An eviction (tensor, key) says that the tensor is not kept over that moment. Its next reader after
it gets a clone of the operator, placed right before; the clone in turn reads its operands there,
which are kept until then, or are clones themselves if they are evicted too. So all that follows
from a set of evictions is settled in one pass over the operators, last to first.

Moments are integer keys: operator k of the order runs at key (2 k + 1) n; a clone of operator v
that serves a reader at step k runs at key 2 k n + v, right before k, in the order of the originals.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import inner, loop
from olla_xla.remat.graph import RematGraph
from olla_xla.remat.versions import CLONES, SEGMENTS, Evicted, Needs, Versions, demand


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """What follows from evictions (tensors dropped at moments of the schedule): the clones of
    operators that compute them again, live bytes at each step, and added time.

    Attributes:
      feasible: no clone needs a buffer that has been overwritten by then, nor are there too many.
      live: int64 [steps] bytes at each step of the new sequence. keys: [steps], integers that
        number the moments of its steps, ascending.
      seconds: predicted time of all clones, less that of the originals they replace.
      moved: bytes that all clones move, less those that these originals move.
      clone_op, clone_key: [clones] what is cloned, and when.
      removed: [n] bool, originals that nothing needs any more.
      seg_tensor, seg_start, seg_end: [segments] keys between which each version of a tensor lives,
        both inclusive; the start is the key of the operator or clone that makes it (-1: argument).
    """

    feasible: bool
    live: NDArray[np.int64]
    keys: NDArray[np.int64]
    seconds: float
    moved: int
    clone_op: NDArray[np.int64]
    clone_key: NDArray[np.int64]
    removed: NDArray[np.bool_]
    seg_tensor: NDArray[np.int64]
    seg_start: NDArray[np.int64]
    seg_end: NDArray[np.int64]

    @property
    def peak(self) -> int:
        """The most bytes that are live at any step (`live`) once these evictions are made."""
        return int(self.live.max(initial=0))


def expand(g: RematGraph, evictions: NDArray[np.int64]) -> Expansion:
    """Finds the clones, live bytes and added time that evictions and those in `g.dropped` lead to.

    An eviction (tensor, key) drops a tensor over the moment of the schedule that the integer `key`
    numbers. Its next reader then gets a clone of the operator that makes it. Operator number k of n
    runs at key (2 k + 1) n.

    Args:
      g: the graph. evictions: int64 [k, 2] of (tensor, key).
    """
    graph, evictions = g.arrays, np.concatenate([g.dropped, evictions])
    order = np.lexsort((evictions[:, 1], evictions[:, 0]))
    tensors, keys = evictions[order, 0], evictions[order, 1]
    evicted = Evicted(np.searchsorted(tensors, np.arange(graph.m + 1)), np.ascontiguousarray(keys))
    capacity = 8 * (len(graph.in_idx) + graph.m) + 1024
    made, removed = Versions.none(capacity), np.zeros(graph.n, np.bool_)
    needs = Needs.none(graph.m, capacity)
    feasible = demand(graph, g.marks, evicted, needs, made, removed)
    segments = made.segments[: made.count[SEGMENTS]].copy()
    clones = made.clones[: made.count[CLONES]].copy()
    steps = sequence(graph, segments, clones)
    live = np.full(len(steps.keys), g.held, np.int64)
    change = np.zeros(len(steps.keys) + 1, np.int64)
    given, taken = np.zeros(len(segments), np.bool_), np.zeros(len(segments), np.bool_)
    timeline(graph, g.marks.given, steps, removed, given, taken, change, live)
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


class Steps(NamedTuple):
    """The sequence of operators and clones after evictions, and the steps at which tensors live.

    Attributes:
      keys, operators: int64 [steps], the moment's number and the operator (of a clone: its
        original). tensor, start, end: int64 [segments], a tensor, and the keys between which a
        version of it lives. first, last: [segments], the steps of these keys.
      begin, stop: int64 [m], the half-open range of each tensor's segments, which lie together.
    """

    keys: NDArray[np.int64]
    operators: NDArray[np.int64]
    tensor: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    begin: NDArray[np.int64]
    stop: NDArray[np.int64]


def sequence(g: GraphArrays, segments: NDArray[np.int64], clones: NDArray[np.int64]) -> Steps:
    """Merges operators, in their order, and clones, each right before its reader, into Steps. A key
    is an integer that numbers a moment of the schedule: `segments` is int64 [segments, 3] of
    (tensor, first key, last key), `clones` int64 [clones, 2] of (operator, key).
    """
    originals = np.arange(g.n)
    keys = np.concatenate([(2 * originals + 1) * g.n, clones[:, 1]])
    operators = np.concatenate([originals, clones[:, 0]])
    order = np.argsort(keys, kind="stable")  # no two are equal, and most are sorted already
    keys, operators = keys[order], operators[order]
    tensor, start, end = (np.ascontiguousarray(column) for column in segments.T)
    last = np.minimum(np.searchsorted(keys, end), len(keys) - 1)
    begin, stop = np.zeros(g.m, np.int64), np.zeros(g.m, np.int64)
    begin[tensor[::-1]] = np.arange(len(tensor))[::-1]
    stop[tensor] = np.arange(len(tensor)) + 1
    first = np.searchsorted(keys, start)
    return Steps(keys, operators, tensor, start, end, first, last, begin, stop)


@loop
def timeline(
    g: GraphArrays,
    again: NDArray[np.bool_],
    steps: Steps,
    removed: NDArray[np.bool_],
    given: NDArray[np.bool_],
    taken: NDArray[np.bool_],
    change: NDArray[np.int64],
    live: NDArray[np.int64],
) -> None:
    """Adds to `live` the bytes of the tensors that live at each step of the new sequence.

    Args:
      g: the graph. again: bool [n], operators whose results a later transfer between devices gives
        again, instead of a clone. steps: the sequence of operators and clones.
      removed: bool [n], operators not in it. live: int64 [steps], bytes, added to.
      given, taken: bool [segments], false. change: int64 [steps + 1], zero. All three are scratch.
    """
    total = len(steps.keys)
    for s in range(len(steps.tensor)):
        change[steps.first[s]] += g.bytes[steps.tensor[s]]
        change[steps.last[s] + 1] -= g.bytes[steps.tensor[s]]
    _add_unread(g, again, steps, removed, live)
    _pass_on(g, steps, removed, given, taken, change)
    running = 0
    for x in range(total):
        running += change[x]
        live[x] += running


@inner
def _add_unread(
    g: GraphArrays,
    again: NDArray[np.bool_],
    steps: Steps,
    removed: NDArray[np.bool_],
    live: NDArray[np.int64],
) -> None:
    """Adds to `live`, at the step of each operator or clone that runs, its transient bytes and
    those of its unread results, which are in no segment. `removed`, bool [n], says which operators
    do not run, `again` of which no clone does.
    """
    for x in range(len(live)):
        v = steps.operators[x]
        original = steps.keys[x] == (2 * v + 1) * g.n
        if (original and removed[v]) or (again[v] and not original):
            continue
        live[x] += g.transient[v]
        for e in range(g.out_ptr[v], g.out_ptr[v + 1]):
            t = g.out_idx[e]
            counted = original
            for s in range(steps.begin[t], steps.stop[t]):
                counted = counted or steps.first[s] == x
            if not counted:
                live[x] += g.bytes[t]


@inner
def _pass_on(
    g: GraphArrays,
    steps: Steps,
    removed: NDArray[np.bool_],
    given: NDArray[np.bool_],
    taken: NDArray[np.bool_],
    change: NDArray[np.int64],
) -> None:
    """Lowers live bytes (`change`) by an operand's at the one step where a result takes its memory.

    Args:
      g: the graph. steps: the sequence of operators and clones. removed: operators not in it.
      given, taken: bool [segments: versions of tensors], False at first; set for those whose memory
        is taken over, and those that take some. change: int64 [steps + 1], of live bytes by step.
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
            if giver < 0 or taker < 0 or g.bytes[b] == 0:
                continue
            if not given[giver] and not taken[taker]:
                given[giver] = True
                taken[taker] = True
                change[x] -= g.bytes[a]
                change[x + 1] += g.bytes[a]
