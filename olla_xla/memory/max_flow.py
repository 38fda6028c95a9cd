"""Minimum cuts, by Dinic's maximum flow in compiled loops.

With every maximum flow the source reaches the same nodes in the residual graph: the smallest source
side of all minimum cuts. So the result does not depend on which maximum flow is found.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.jit import inner, loop

_UNSEEN = -1  # level of a node that no path leads to


class _ResidualGraph(NamedTuple):
    """A flow network's arcs and their reverses, by the node that they leave.

    Attributes:
      ptr: int64 [nodes + 1], where each node's arcs begin. to: int64 [2 arcs], nodes they enter.
      left: int64 [2 arcs], capacity that is left. back: int64 [2 arcs], number of the reverse.
    """

    ptr: NDArray[np.int64]
    to: NDArray[np.int64]
    left: NDArray[np.int64]
    back: NDArray[np.int64]


class _Scratch(NamedTuple):
    """Scratch arrays of a search for a maximum flow.

    Attributes:
      level: int64 [nodes], arcs from the source or to the sink. next: int64 [nodes], arc to try.
      queue: int64 [nodes]. path: int64 [nodes], arcs from the source on.
    """

    level: NDArray[np.int64]
    next: NDArray[np.int64]
    queue: NDArray[np.int64]
    path: NDArray[np.int64]


def min_cut(
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    capacities: NDArray[np.int64],
    source: int,
    sink: int,
) -> tuple[int, NDArray[np.int64]]:
    """A minimum cut of a directed graph: its capacity, and the nodes on the source's side (of all
    minimum cuts the smallest such set), int64, ascending.

    Args:
      tails, heads, capacities: int64 [arcs]; nodes are numbers from 0. Capacities are not negative;
        those of arcs that a minimum cut may go through are together less than 2**62.
      source, sink: nodes; the source side holds `source`, not `sink`.
    """
    if not len(tails):
        return 0, np.array([source], np.int64)
    nodes = 1 + max(int(tails.max()), int(heads.max()), source, sink)
    ptr = np.zeros(nodes + 1, np.int64)
    np.cumsum(
        np.bincount(tails, minlength=nodes) + np.bincount(heads, minlength=nodes), out=ptr[1:]
    )
    to, left, back = np.empty((3, 2 * len(tails)), np.int64)
    residual = _ResidualGraph(ptr, to, left, back)
    scratch = _Scratch(*np.empty((4, nodes), np.int64))
    scratch.next[:] = ptr[:-1]
    flow = _solve(tails, heads, capacities, residual, scratch, source, sink)
    return flow, np.flatnonzero(scratch.level != _UNSEEN)


@loop
def _solve(
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    capacities: NDArray[np.int64],
    residual: _ResidualGraph,
    scratch: _Scratch,
    source: int,
    sink: int,
) -> int:
    """Returns the maximum flow, and fills `residual`. In `scratch`, `next` is at first where each
    node's arcs begin; in the end only nodes that the source still reaches have a `level`.
    """
    for k in range(len(tails)):
        a, b = scratch.next[tails[k]], scratch.next[heads[k]]
        scratch.next[tails[k]] += 1
        if heads[k] == tails[k]:
            b += 1
        scratch.next[heads[k]] += 1
        residual.to[a], residual.left[a], residual.back[a] = heads[k], capacities[k], b
        residual.to[b], residual.left[b], residual.back[b] = tails[k], 0, a
    flow = 0
    while _levels(residual, scratch, sink, source, True):
        flow += _blocking(residual, scratch, source, sink)
    _levels(residual, scratch, source, sink, False)
    return flow


@inner
def _levels(residual: _ResidualGraph, scratch: _Scratch, root: int, end: int, back: bool) -> bool:
    """Sets each node's `level`: the number of arcs with capacity left on the shortest path from
    `root` to it (`back`: from it to `root`). Resets `next`. Returns whether there is a path to
    (from) `end`.
    """
    for v in range(len(scratch.level)):
        scratch.level[v] = _UNSEEN
        scratch.next[v] = residual.ptr[v]
    scratch.level[root], scratch.queue[0] = 0, root
    first, last = 0, 1
    while first < last:
        u = scratch.queue[first]
        first += 1
        for k in range(residual.ptr[u], residual.ptr[u + 1]):
            v, arc = residual.to[k], residual.back[k] if back else k
            if scratch.level[v] == _UNSEEN and residual.left[arc] > 0:
                scratch.level[v] = scratch.level[u] + 1
                scratch.queue[last] = v
                last += 1
    return scratch.level[end] != _UNSEEN


@inner
def _blocking(residual: _ResidualGraph, scratch: _Scratch, source: int, sink: int) -> int:
    """Adds flow along shortest paths until each has a full arc; returns the flow added."""
    flow, depth, u = 0, 0, source
    while True:
        if u == sink:
            least = residual.left[scratch.path[0]]
            for i in range(1, depth):
                least = min(least, residual.left[scratch.path[i]])
            flow += least
            for i in range(depth - 1, -1, -1):
                k = scratch.path[i]
                residual.left[k] -= least
                residual.left[residual.back[k]] += least
                if residual.left[k] == 0:  # go on from the tail of the first saturated arc
                    depth = i
            u = residual.to[residual.back[scratch.path[depth]]]
            continue
        end = residual.ptr[u + 1]
        k = scratch.next[u]
        while k < end and not (
            residual.left[k] > 0 and scratch.level[residual.to[k]] == scratch.level[u] - 1
        ):
            k += 1
        scratch.next[u] = k
        if k < end:
            scratch.path[depth] = k
            depth += 1
            u = residual.to[k]
        elif depth == 0:
            return int(flow)
        else:  # a dead end: the arc that led here is not tried again
            depth -= 1
            u = residual.to[residual.back[scratch.path[depth]]]
            scratch.next[u] += 1
