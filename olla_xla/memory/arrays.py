"""A tensor graph as arrays, which is what compiled loops take."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from olla_xla.errors import GraphError
from olla_xla.memory.jit import jit
from olla_xla.problem.graph import TensorGraph

__all__ = ["GraphArrays", "topological_order"]


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


def topological_order(graph: TensorGraph | GraphArrays) -> np.ndarray:
    """Some order that respects all edges; GraphError if there is a cycle."""
    g = GraphArrays.of(graph)
    order, count = _topological(g.n, g.pred_ptr, g.succ_ptr, g.succ_idx)
    if count < g.n:
        raise GraphError(f"{g.n - count} operators lie on or behind a cycle; call graph.validate()")
    return order


@jit
def _topological(
    n: int, pred_ptr: np.ndarray, succ_ptr: np.ndarray, succ_idx: np.ndarray
) -> tuple[np.ndarray, int]:
    order = np.empty(n, np.int64)
    waiting = pred_ptr[1:] - pred_ptr[:-1]
    count = 0
    for v in range(n):
        if waiting[v] == 0:
            order[count] = v
            count += 1
    done = 0
    while done < count:
        u = order[done]
        done += 1
        for k in range(succ_ptr[u], succ_ptr[u + 1]):
            v = succ_idx[k]
            waiting[v] -= 1
            if waiting[v] == 0:
                order[count] = v
                count += 1
    return order, count
