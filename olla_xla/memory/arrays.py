"""A tensor graph as arrays, which is what compiled loops take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import GraphError
from olla_xla.problem.graph import TensorGraph


class GraphLists(NamedTuple):
    """A tensor graph as lists by operator ([n]) and by tensor ([m]).

    Attributes:
      transient, free: [n] as in `Operator`; bytes and bool.
      bytes, source, buffer, live_in, live_out, sinks: [m] as in `Tensor`.
      before, after: [n] of lists, direct predecessors and successors.
      inplace: (output, input) pairs of tensors whose memory may pass on.
    """

    transient: Sequence[int]
    free: Sequence[bool]
    bytes: Sequence[int]
    source: Sequence[int]
    buffer: Sequence[int]
    live_in: Sequence[bool]
    live_out: Sequence[bool]
    sinks: Sequence[Sequence[int]]
    before: Sequence[Sequence[int]]
    after: Sequence[Sequence[int]]
    inplace: Sequence[tuple[int, int]]


class GraphArrays(NamedTuple):
    """A TensorGraph as int64 arrays; compiled loops take it whole.

    Lists of lists are CSR: row k of `x` is `x_idx[x_ptr[k] : x_ptr[k + 1]]`, and the row of a pair
    likewise.

    Attributes:
      n: number of operators. m: number of tensors.
      bytes, source, buffer: [m] of each tensor.
      live_in, live_out: [m] bool.
      transient, free: [n] of each operator; bytes and bool.
      sink_ptr, sink_idx: tensor -> sinks.
      in_ptr, in_idx: operator -> tensors it reads (it is among their sinks, not their source).
      out_ptr, out_idx: operator -> tensors whose source it is.
      pred_ptr, pred_idx, succ_ptr, succ_idx: operator -> direct predecessors, successors.
      pair_ptr, pair_b, pair_a: operator -> pairs (b, a) of an output that may take over the memory
        of an input, same-buffer pairs first; pairs that no order can share are left out.
      pair_must: [pairs] bool, whether a pair has the same buffer.
    """

    n: int
    m: int
    bytes: NDArray[np.int64]
    source: NDArray[np.int64]
    buffer: NDArray[np.int64]
    live_in: NDArray[np.bool_]
    live_out: NDArray[np.bool_]
    transient: NDArray[np.int64]
    free: NDArray[np.bool_]
    sink_ptr: NDArray[np.int64]
    sink_idx: NDArray[np.int64]
    in_ptr: NDArray[np.int64]
    in_idx: NDArray[np.int64]
    out_ptr: NDArray[np.int64]
    out_idx: NDArray[np.int64]
    pred_ptr: NDArray[np.int64]
    pred_idx: NDArray[np.int64]
    succ_ptr: NDArray[np.int64]
    succ_idx: NDArray[np.int64]
    pair_ptr: NDArray[np.int64]
    pair_b: NDArray[np.int64]
    pair_a: NDArray[np.int64]
    pair_must: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: TensorGraph | GraphArrays) -> GraphArrays:
        """The arrays of a tensor graph; a GraphArrays is returned as it is."""
        if isinstance(graph, GraphArrays):
            return graph
        before = graph.predecessors()
        after: list[list[int]] = [[] for _ in before]
        for v, us in enumerate(before):
            for u in us:
                after[u].append(v)
        return cls.build(
            GraphLists(
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
        )

    @classmethod
    def build(cls, lists: GraphLists) -> GraphArrays:
        """Makes the arrays from lists that are indexed by operator and by tensor."""
        n, m = len(lists.transient), len(lists.bytes)
        reads: list[list[int]] = [[] for _ in range(n)]
        writes: list[list[int]] = [[] for _ in range(n)]
        for i in range(m):
            writes[lists.source[i]].append(i)
            for v in lists.sinks[i]:
                if v != lists.source[i]:
                    reads[v].append(i)
        sink_ptr, sink_idx = csr(lists.sinks)
        in_ptr, in_idx = csr(reads)
        out_ptr, out_idx = csr(writes)
        pred_ptr, pred_idx = csr(lists.before)
        succ_ptr, succ_idx = csr(lists.after)
        pairs = _shareable(lists, reads, writes)
        flat = list(itertools.chain(*pairs))
        return cls(
            n=n,
            m=m,
            bytes=np.array(lists.bytes, np.int64),
            source=np.array(lists.source, np.int64),
            buffer=np.array(lists.buffer, np.int64),
            live_in=np.array(lists.live_in, np.bool_),
            live_out=np.array(lists.live_out, np.bool_),
            transient=np.array(lists.transient, np.int64),
            free=np.array(lists.free, np.bool_),
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
            pair_ptr=csr([[b for b, _, _ in group] for group in pairs])[0],
            pair_b=np.array([b for b, _, _ in flat], np.int64),
            pair_a=np.array([a for _, a, _ in flat], np.int64),
            pair_must=np.array([must for _, _, must in flat], np.bool_),
        )

    def positions(self, order: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n], the step of each operator; GraphError unless the order is a permutation."""
        steps = np.arange(self.n)
        order = np.array(order, np.int64)
        if not np.array_equal(np.sort(order), steps):
            raise GraphError(f"an order must contain each of the {self.n} operators exactly once")
        position = np.empty(self.n, np.int64)
        position[order] = steps
        return position


def _shareable(
    lists: GraphLists, reads: list[list[int]], writes: list[list[int]]
) -> list[list[tuple[int, int, bool]]]:
    """By operator: (output b, input a, same buffer) where a could die at b's source.

    Args:
      lists: the graph. reads, writes: [n] of lists, the tensors that an operator reads and makes.
    """
    pairs: list[list[tuple[int, int, bool]]] = [[] for _ in reads]
    for v, outs in enumerate(writes):
        for b in outs:
            if not lists.live_in[b]:
                for a in reads[v]:
                    if lists.buffer[a] == lists.buffer[b] and not lists.live_out[a]:
                        pairs[v].append((b, a, True))
    read_sets = {v: set(reads[v]) for v in {lists.source[b] for b, _ in lists.inplace}}
    for b, a in lists.inplace:
        v = lists.source[b]
        usable = a in read_sets[v] and not lists.live_in[b] and not lists.live_out[a]
        if usable and lists.buffer[a] != lists.buffer[b]:
            pairs[v].append((b, a, False))
    return pairs


def csr(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(ptr, idx): the rows end to end in idx; row k is idx[ptr[k] : ptr[k + 1]]."""
    ptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=ptr[1:])
    return ptr, np.array([x for row in rows for x in row], np.int64)


def rows(ptr: NDArray[np.int64], idx: NDArray[np.int64]) -> list[list[int]]:
    """The rows of a CSR as lists: idx[ptr[k] : ptr[k + 1]] for each k."""
    flat = idx.tolist()
    return [flat[begin:end] for begin, end in itertools.pairwise(ptr.tolist())]


def topological_order(graph: TensorGraph | GraphArrays) -> NDArray[np.int64]:
    """int64 [n], some order that respects all edges; GraphError if there is a cycle."""
    g = GraphArrays.of(graph)
    waiting, after = np.diff(g.pred_ptr).tolist(), rows(g.succ_ptr, g.succ_idx)
    order = [v for v in range(g.n) if waiting[v] == 0]
    for u in order:  # which grows
        for v in after[u]:
            waiting[v] -= 1
            if waiting[v] == 0:
                order.append(v)
    if len(order) < g.n:
        left = g.n - len(order)
        raise GraphError(f"{left} operators are on or after a cycle; call graph.validate()")
    return np.array(order, np.int64)
