"""The one evaluator: when each tensor is live under an order, and the memory that takes.

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

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

from olla_xla.errors import GraphError
from olla_xla.problem import TensorGraph

__all__ = ["GraphArrays", "intervals", "jit", "live_at", "peak_bytes", "timeline"]


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles with numba; the machine code is cached on disk wherever a directory allows it."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # read-only installation and no writable user cache directory
        return numba.njit(function)


@dataclasses.dataclass(frozen=True, eq=False)
class GraphArrays:
    """A TensorGraph as int64 arrays for compiled loops; lists of lists are CSR (`*_ptr`, `*_idx`).

    Attributes:
      n: number of operators. m: number of tensors.
      bytes, source, buffer: [m] of each tensor.
      live_in, live_out: [m] bool.
      transient, free: [n] of each operator.
      sink_ptr, sink_idx: tensor -> sinks.
      in_ptr, in_idx: operator -> tensors it reads (it is among their sinks, not their source).
      out_ptr, out_idx: operator -> tensors whose source it is.
      pred_ptr, pred_idx, succ_ptr, succ_idx: operator -> direct predecessors, successors.
      pair_ptr, pair_b, pair_a: operator -> pairs (b, a) of an output that may take over the memory
        of an input, same-buffer pairs first; pairs that no order can share are left out.
      pair_must: bool, whether a pair has the same buffer.
    """

    n: int
    m: int
    bytes: np.ndarray
    source: np.ndarray
    buffer: np.ndarray
    live_in: np.ndarray
    live_out: np.ndarray
    transient: np.ndarray
    free: np.ndarray
    sink_ptr: np.ndarray
    sink_idx: np.ndarray
    in_ptr: np.ndarray
    in_idx: np.ndarray
    out_ptr: np.ndarray
    out_idx: np.ndarray
    pred_ptr: np.ndarray
    pred_idx: np.ndarray
    succ_ptr: np.ndarray
    succ_idx: np.ndarray
    pair_ptr: np.ndarray
    pair_b: np.ndarray
    pair_a: np.ndarray
    pair_must: np.ndarray

    @classmethod
    def of(cls, graph: TensorGraph | GraphArrays) -> GraphArrays:
        """The arrays of a graph; arrays are returned as they are."""
        if isinstance(graph, GraphArrays):
            return graph
        n = len(graph.operators)
        before = graph.predecessors()
        after: list[list[int]] = [[] for _ in range(n)]
        for v, us in enumerate(before):
            for u in us:
                after[u].append(v)
        return cls.build(
            transient=[op.transient_bytes for op in graph.operators],
            free=[op.free for op in graph.operators],
            bytes=[t.bytes for t in graph.tensors],
            source=[t.source for t in graph.tensors],
            buffer=[t.buffer for t in graph.tensors],
            live_in=[t.live_in for t in graph.tensors],
            live_out=[t.live_out for t in graph.tensors],
            sinks=[t.sinks for t in graph.tensors],
            before=before,
            after=after,
            inplace=graph.inplace,
        )

    @classmethod
    def build(
        cls,
        *,
        transient: Sequence[int],
        free: Sequence[bool],
        bytes: Sequence[int],
        source: Sequence[int],
        buffer: Sequence[int],
        live_in: Sequence[bool],
        live_out: Sequence[bool],
        sinks: Sequence[Sequence[int]],
        before: Sequence[Sequence[int]],
        after: Sequence[Sequence[int]],
        inplace: Sequence[tuple[int, int]],
    ) -> GraphArrays:
        """The arrays from lists by operator and by tensor; `inplace` is (output, input) pairs."""
        n, m = len(transient), len(bytes)
        reads: list[list[int]] = [[] for _ in range(n)]
        writes: list[list[int]] = [[] for _ in range(n)]
        for i in range(m):
            writes[source[i]].append(i)
            for v in sinks[i]:
                if v != source[i]:
                    reads[v].append(i)
        pairs = _shareable(source, buffer, live_in, live_out, reads, writes, inplace)
        flat = [pair for group in pairs for pair in group]
        pair_ptr, _ = _csr([[b for b, _, _ in group] for group in pairs])
        sink_ptr, sink_idx = _csr(sinks)
        in_ptr, in_idx = _csr(reads)
        out_ptr, out_idx = _csr(writes)
        pred_ptr, pred_idx = _csr(before)
        succ_ptr, succ_idx = _csr(after)
        return cls(
            n=n,
            m=m,
            bytes=np.array(bytes, np.int64),
            source=np.array(source, np.int64),
            buffer=np.array(buffer, np.int64),
            live_in=np.array(live_in, np.bool_),
            live_out=np.array(live_out, np.bool_),
            transient=np.array(transient, np.int64),
            free=np.array(free, np.bool_),
            sink_ptr=sink_ptr,
            sink_idx=sink_idx,
            in_ptr=in_ptr,
            in_idx=in_idx,
            out_ptr=out_ptr,
            out_idx=out_idx,
            pred_ptr=pred_ptr,
            pred_idx=pred_idx,
            succ_ptr=succ_ptr,
            succ_idx=succ_idx,
            pair_ptr=pair_ptr,
            pair_b=np.array([b for b, _, _ in flat], np.int64),
            pair_a=np.array([a for _, a, _ in flat], np.int64),
            pair_must=np.array([must for _, _, must in flat], np.bool_),
        )

    def positions(self, order: Sequence[int] | np.ndarray) -> np.ndarray:
        """The step of each operator; GraphError unless the order is a permutation of all."""
        steps = np.arange(self.n)
        order = np.array(order, np.int64)
        if not np.array_equal(np.sort(order), steps):
            raise GraphError(f"an order must name each of the {self.n} operators once")
        position = np.empty(self.n, np.int64)
        position[order] = steps
        return position


def _shareable(
    source: Sequence[int],
    buffer: Sequence[int],
    live_in: Sequence[bool],
    live_out: Sequence[bool],
    reads: list[list[int]],
    writes: list[list[int]],
    inplace: Sequence[tuple[int, int]],
) -> list[list[tuple[int, int, bool]]]:
    """By operator: (output b, input a, same buffer) where a could die at b's source."""
    pairs: list[list[tuple[int, int, bool]]] = [[] for _ in reads]
    for v, outs in enumerate(writes):
        for b in outs:
            if not live_in[b]:
                for a in reads[v]:
                    if buffer[a] == buffer[b] and not live_out[a]:
                        pairs[v].append((b, a, True))
    read_sets = {v: set(reads[v]) for v in {source[b] for b, _ in inplace}}
    for b, a in inplace:
        v = source[b]
        usable = a in read_sets[v] and not live_in[b] and not live_out[a]
        if usable and buffer[a] != buffer[b]:
            pairs[v].append((b, a, False))
    return pairs


def _csr(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Row starts and concatenated rows."""
    ptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=ptr[1:])
    return ptr, np.array([x for row in rows for x in row], np.int64)


def intervals(graph: TensorGraph | GraphArrays, order: Sequence[int] | np.ndarray) -> np.ndarray:
    """int64 [m, 2]: the half-open steps over which each tensor occupies memory of its own."""
    g = GraphArrays.of(graph)
    return _intervals(
        g.positions(order),
        g.source,
        g.live_in,
        g.live_out,
        g.sink_ptr,
        g.sink_idx,
        g.pair_b,
        g.pair_a,
        g.pair_must,
    )


def timeline(graph: TensorGraph | GraphArrays, order: Sequence[int] | np.ndarray) -> np.ndarray:
    """int64 [n]: live bytes at each step, the running operator's transient bytes included."""
    g = GraphArrays.of(graph)
    spans = intervals(g, order)
    total = np.zeros(g.n + 1, np.int64)
    np.add.at(total, spans[:, 0], g.bytes)
    np.subtract.at(total, spans[:, 1], g.bytes)
    return np.cumsum(total)[: g.n] + g.transient[np.asarray(order, np.int64)]


def peak_bytes(graph: TensorGraph | GraphArrays, order: Sequence[int] | np.ndarray) -> int:
    """The largest value of `timeline`; 0 for a graph without operators."""
    return int(timeline(graph, order).max(initial=0))


def live_at(
    graph: TensorGraph | GraphArrays, order: Sequence[int] | np.ndarray, step: int
) -> list[int]:
    """The ids of the tensors that occupy memory at `step`, ascending."""
    spans = intervals(graph, order)
    return np.flatnonzero((spans[:, 0] <= step) & (step < spans[:, 1])).tolist()


@jit
def _intervals(
    position: np.ndarray,
    source: np.ndarray,
    live_in: np.ndarray,
    live_out: np.ndarray,
    sink_ptr: np.ndarray,
    sink_idx: np.ndarray,
    pair_b: np.ndarray,
    pair_a: np.ndarray,
    pair_must: np.ndarray,
) -> np.ndarray:
    n, m = len(position), len(source)
    spans = np.empty((m, 2), np.int64)
    for i in range(m):
        last = position[source[i]]
        spans[i, 0] = 0 if live_in[i] else last
        if live_out[i]:
            spans[i, 1] = n
            continue
        for k in range(sink_ptr[i], sink_ptr[i + 1]):
            last = max(last, position[sink_idx[k]])
        spans[i, 1] = last + 1
    given = np.zeros(m, np.bool_)  # a has passed its memory on
    taken = np.zeros(m, np.bool_)  # b has memory passed on to it
    # Pairs lie by operator, same-buffer pairs first; operators do not compete with each other.
    for k in range(len(pair_b)):
        b, a = pair_b[k], pair_a[k]
        step = position[source[b]]
        if given[a] or spans[a, 1] != step + 1 or (taken[b] and not pair_must[k]):
            continue
        given[a] = True
        taken[b] = True
        spans[a, 1] = step
    return spans
