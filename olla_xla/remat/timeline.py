"""The sequence of operators and clones, and the live bytes at each of its steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import inner, loop


class Steps(NamedTuple):
    """The sequence of operators and clones after evictions, and which steps each tensor lives.

    Attributes:
      keys, operators: int64 [steps].
      tensor, start, end: int64 [segments], as in Expansion. first, last: [segments] their steps.
      begin, stop: int64 [m], rows of each tensor's segments, which lie together.
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
    """Merges operators, in their order, and clones, each right before its reader.

    Args:
      g: the graph. segments: int64 [segments, 3]. clones: int64 [clones, 2].
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
    """Adds to `live` the live bytes at each step of the new sequence.

    Args:
      g: the graph. again: bool [n], as `Marks.given`. steps: the sequence.
      removed: bool [n], originals that are not in it.
      given, taken: bool [segments], false. change: int64 [steps + 1], zero. All three are changed.
      live: int64 [steps], bytes in use at every step (`RematGraph.held`), added to.
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
    """Bytes at each step besides the versions': transient ones, results of clones nobody reads."""
    for x in range(len(live)):
        v = steps.operators[x]
        original = steps.keys[x] == (2 * v + 1) * g.n
        if (original and removed[v]) or (again[v] and not original):
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
    g: GraphArrays,
    steps: Steps,
    removed: NDArray[np.bool_],
    given: NDArray[np.bool_],
    taken: NDArray[np.bool_],
    change: NDArray[np.int64],
) -> None:
    """Subtracts an operand's bytes at the step at which a result takes over its memory.

    Args:
      g, steps, removed: as in `timeline`. given, taken: bool [segments], versions whose memory was
        taken over, and those that took some. change: int64 [steps + 1], of the live bytes.
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
