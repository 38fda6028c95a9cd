"""When each tensor is live under an order, and the memory that takes: the one rule for all.

A tensor occupies `[start, stop)`: from the step of its source (0 if `live_in`) to one past the
last of its source's and its sinks' steps (`n` if `live_out`).

Memory passes from a dying tensor `a` to a new one `b` when `a`'s last step is the step `t` of `b`'s
source: always if both have the same buffer, else if `(b, a)` is an in-place pair and neither has
been matched at `t` before (same-buffer pairs first, then pairs in the graph's order). Then `a`
stops at `t`, so that the memory is counted once.

Live bytes at a step: the bytes of all tensors live there, plus the transient bytes of the operator
that runs there. The peak is their maximum. Example: `x` (8 bytes) -> `relu` -> `y` (8 bytes) has a
peak of 16 bytes, and of 8 with the in-place pair `(y, x)`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import inner, loop
from olla_xla.problem.graph import TensorGraph


def intervals(
    graph: TensorGraph | GraphArrays, order: Sequence[int] | NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64 [m, 2]: the half-open steps over which each tensor occupies memory of its own."""
    g = GraphArrays.of(graph)
    return spans_and_passes(g, g.positions(order))[0]


def spans_and_passes(
    g: GraphArrays, position: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns the half-open steps over which each tensor has memory of its own, int64 [m, 2], and
    whether by a pair a dying input's memory goes over to an output, bool [pairs].
    """
    spans, passes = np.empty((g.m, 2), np.int64), np.empty(len(g.pair_b), np.bool_)
    live_spans(g, position, spans, passes, np.zeros((2, g.m), np.bool_))
    return spans, passes


def timeline(
    graph: TensorGraph | GraphArrays, order: Sequence[int] | NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64 [n]: live bytes at each step, the running operator's transient bytes included."""
    g = GraphArrays.of(graph)
    spans = intervals(g, order)
    live = live_bytes(spans[:, 0], spans[:, 1], g.bytes, g.n)
    return live + g.transient[np.asarray(order, np.int64)]


def live_bytes(
    start: NDArray[np.int64], stop: NDArray[np.int64], sizes: NDArray[np.int64] | int, n: int
) -> NDArray[np.int64]:
    """int64 [n]: bytes live at each step, of tensors live from `start` to before `stop`."""
    total = np.zeros(n + 1, np.int64)
    np.add.at(total, start, sizes)
    np.subtract.at(total, stop, sizes)
    return np.cumsum(total)[:n]


def peak_bytes(graph: TensorGraph | GraphArrays, order: Sequence[int] | NDArray[np.int64]) -> int:
    """The lifetime peak of an order: the most live bytes at any step; 0 without operators."""
    return int(timeline(graph, order).max(initial=0))


@loop
def live_spans(
    g: GraphArrays,
    position: NDArray[np.int64],
    spans: NDArray[np.int64],
    passes: NDArray[np.bool_],
    met: NDArray[np.bool_],
) -> None:
    """Compiled loop that writes `spans` and `passes`: when and how tensors occupy memory.

    Args:
      g: the graph. position: int64 [n], the step of each operator.
      spans: int64 [m, 2], written: half-open steps over which each tensor has memory of its own.
      passes: bool [pairs], written: whether the output takes its input's memory, ending that span.
      met: bool [2, m], scratch, False at first: inputs that passed on memory, outputs that got it.
    """
    _uses(g, position, spans)
    given, taken = met[0], met[1]  # a has passed its memory on; b has memory passed on to it
    # Pairs lie by operator, same-buffer pairs first; operators do not compete with each other.
    for k in range(len(g.pair_b)):
        b, a = g.pair_b[k], g.pair_a[k]
        step = position[g.source[b]]
        dies = not given[a] and spans[a, 1] == step + 1
        passes[k] = dies and (g.pair_must[k] or not taken[b])
        if passes[k]:
            given[a] = True
            taken[b] = True
            spans[a, 1] = step


@inner
def _uses(g: GraphArrays, position: NDArray[np.int64], spans: NDArray[np.int64]) -> None:
    """Writes to `spans`, int64 [m, 2], half-open steps: from each tensor's source, or the start if
    it is live then, to its last reader, or the end.
    """
    for i in range(g.m):
        last = position[g.source[i]]
        spans[i, 0] = 0 if g.live_in[i] else last
        if g.live_out[i]:
            spans[i, 1] = len(position)
            continue
        for k in range(g.sink_ptr[i], g.sink_ptr[i + 1]):
            last = max(last, position[g.sink_idx[k]])
        spans[i, 1] = last + 1
