"""A tensor graph as arrays, which is what compiled loops take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olla_xla.errors import GraphError
from olla_xla.problem.graph import TensorGraph


class GraphArrays(NamedTuple):
    """A TensorGraph as int64 arrays; compiled loops take it whole. Lists of lists are CSR: row k of
    `x` is `x_idx[x_ptr[k] : x_ptr[k + 1]]`, and the row of a pair likewise.

    Attributes:
      n: number of operators. m: number of tensors.
      bytes, source, buffer: [m] of each tensor.
      live_in, live_out: [m] bool, live from the first step on, to the last.
      transient, free: [n] extra bytes while an operator runs; bool, it reads and writes nothing.
      made: [n] bytes that appear at an operator. running: [m] running sum of tensors' bytes.
      sink_ptr, sink_idx: tensor -> sinks, the operators that read it.
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
    made: NDArray[np.int64]
    running: NDArray[np.int64]
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
        return cls.build(
            transient=[op.transient_bytes for op in graph.operators],
            free=[op.free for op in graph.operators],
            bytes=[t.bytes for t in graph.tensors],
            source=[t.source for t in graph.tensors],
            buffer=[t.buffer for t in graph.tensors],
            live_in=[t.live_in for t in graph.tensors],
            live_out=[t.live_out for t in graph.tensors],
            sinks=[t.sinks for t in graph.tensors],
            before=graph.predecessors,
            inplace=graph.inplace,
        )

    @classmethod
    def build(
        cls,
        *,
        transient: ArrayLike,
        free: ArrayLike,
        bytes: ArrayLike,
        source: ArrayLike,
        buffer: ArrayLike,
        live_in: ArrayLike,
        live_out: ArrayLike,
        sinks: Sequence[Sequence[int]],
        before: Sequence[Sequence[int]],
        inplace: Sequence[tuple[int, int]],
    ) -> GraphArrays:
        """Makes a graph's arrays from its operators' and tensors' fields. `before`: direct
        predecessors of each operator; `inplace`: pairs (output, input) that may share memory.
        """
        n, m = len(before), len(sinks)
        maker = np.array(source, np.int64)
        size, given = np.array(bytes, np.int64), np.array(live_in, np.bool_)
        sink_ptr, sink_idx = csr(sinks)
        pred_ptr, pred_idx = csr(before)
        read = np.repeat(np.arange(m), np.diff(sink_ptr))
        reads = sink_idx != maker[read]
        follower = np.repeat(np.arange(n), np.diff(pred_ptr))
        in_ptr, in_idx = _by_key(sink_idx[reads], read[reads], n)
        out_ptr, out_idx = _by_key(maker, np.arange(m), n)
        succ_ptr, succ_idx = _by_key(pred_idx, follower, n)
        graph = cls(
            n=n,
            m=m,
            bytes=size,
            source=maker,
            buffer=np.array(buffer, np.int64),
            live_in=given,
            live_out=np.array(live_out, np.bool_),
            transient=np.array(transient, np.int64),
            free=np.array(free, np.bool_),
            made=sum_by(maker[~given], size[~given], n),
            running=np.cumsum(size),
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
            pair_ptr=np.zeros(n + 1, np.int64),
            pair_b=np.empty(0, np.int64),
            pair_a=np.empty(0, np.int64),
            pair_must=np.empty(0, np.bool_),
        )
        pairs = _shareable(graph, inplace)
        flat = list(itertools.chain(*pairs))
        return graph._replace(
            pair_ptr=csr([[b for b, _, _ in group] for group in pairs])[0],
            pair_b=np.array([b for b, _, _ in flat], np.int64),
            pair_a=np.array([a for _, a, _ in flat], np.int64),
            pair_must=np.array([must for _, _, must in flat], np.bool_),
        )

    def resized(self, bytes: NDArray[np.int64]) -> GraphArrays:
        """A copy of the graph whose tensors have other sizes in bytes, int64 [m]."""
        made = sum_by(self.source[~self.live_in], bytes[~self.live_in], self.n)
        return self._replace(bytes=bytes, made=made, running=np.cumsum(bytes))

    def positions(self, order: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n], each operator's step in `order`; GraphError unless that is a permutation."""
        steps = np.arange(self.n)
        order = np.array(order, np.int64)
        if not np.array_equal(np.sort(order), steps):
            raise GraphError(f"an order must contain each of the {self.n} operators exactly once")
        position = np.empty(self.n, np.int64)
        position[order] = steps
        return position


def _shareable(
    g: GraphArrays, inplace: Sequence[tuple[int, int]]
) -> list[list[tuple[int, int, bool]]]:
    """Lists for each operator its pairs (output b, input a, whether of one buffer): where a dies at
    the operator, b may take over its memory.
    """
    reads = rows(g.in_ptr, g.in_idx)
    source, buffer = g.source.tolist(), g.buffer.tolist()
    live_in, live_out = g.live_in.tolist(), g.live_out.tolist()
    pairs: list[list[tuple[int, int, bool]]] = [[] for _ in reads]
    _, which, several = np.unique(g.buffer, return_inverse=True, return_counts=True)
    for b in np.flatnonzero((several > 1)[which] & ~g.live_in).tolist():
        for a in reads[source[b]]:
            if buffer[a] == buffer[b] and not live_out[a]:
                pairs[source[b]].append((b, a, True))
    read_sets = {v: set(reads[v]) for v in {source[b] for b, _ in inplace}}
    for b, a in inplace:
        v = source[b]
        usable = a in read_sets[v] and not live_in[b] and not live_out[a]
        if usable and buffer[a] != buffer[b]:
            pairs[v].append((b, a, False))
    return pairs


def _by_key(
    keys: NDArray[np.int64], values: NDArray[np.int64], n: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """CSR (ptr, idx) of values by their keys, 0 to n - 1; those of one key in the order given."""
    ptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=n), out=ptr[1:])
    return ptr, values[np.argsort(keys, kind="stable")]


def sum_by(keys: NDArray[np.int64], values: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """int64 [n]: the sum of the `values` of each key, 0 to n - 1."""
    total = np.zeros(n, np.int64)
    np.add.at(total, keys, values)
    return total


def csr(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Joins lists to CSR arrays: (ptr, idx), where list k is idx[ptr[k] : ptr[k + 1]]."""
    ptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=ptr[1:])
    return ptr, np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(ptr[-1]))


def rows(ptr: NDArray[np.int64], idx: NDArray[np.int64]) -> list[list[int]]:
    """Splits CSR arrays into lists: idx[ptr[k] : ptr[k + 1]] for each k."""
    flat = idx.tolist()
    return [flat[begin:end] for begin, end in itertools.pairwise(ptr.tolist())]


def topological_order(graph: TensorGraph | GraphArrays) -> NDArray[np.int64]:
    """int64 [n], some order of operators that respects all edges; GraphError if there is none."""
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
        raise GraphError(f"{left} operators are on or behind a cycle; call graph.validate()")
    return np.array(order, np.int64)
