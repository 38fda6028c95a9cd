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
from numpy.typing import NDArray

from olla_xla.remat.graph import RematGraph
from olla_xla.remat.timeline import sequence, timeline
from olla_xla.remat.versions import CLONES, SEGMENTS, Evicted, Needs, Versions, demand


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """What a set of evictions leads to: the clones, live bytes at each step, and added time.

    Attributes:
      feasible: no clone needs a buffer that has been overwritten by then.
      live: int64 [steps] bytes at each step of the new sequence. keys: its moments, ascending.
      seconds: predicted time of all clones, less that of the originals they replace.
      moved: bytes moved, likewise.
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
        """The lifetime peak with these evictions, in bytes: the largest of `live`."""
        return int(self.live.max(initial=0))


def expand(g: RematGraph, evictions: NDArray[np.int64]) -> Expansion:
    """Finds the clones and live bytes that evictions and `g.dropped` lead to.

    An eviction (tensor, key) drops a tensor over a moment of the schedule; its next reader then
    gets a clone of the operator that makes it. The module's docstring defines keys.

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
