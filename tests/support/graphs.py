"""Random tensor graphs for tests, and oracles so plain that they can be read at a glance."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from benchmarks.made_graphs import all_orders
from olla_xla.problem.graph import Operator, Tensor, TensorGraph

__all__ = ["GraphMaker", "all_orders", "oracle_peak", "oracle_spans", "tensor_graphs", "train_step"]


@st.composite
def tensor_graphs(draw: st.DrawFn, max_operators: int = 7, max_extra: int = 3) -> TensorGraph:
    """Graphs with parameters, donation, in-place chains, control edges and free operators.

    Ids are a topological order, as in XLA's schedule.
    """
    n = draw(st.integers(1, max_operators))
    params = draw(st.integers(0, min(2, n - 1)))
    operators, tensors = [], []
    for v in range(n):
        free = v < params or draw(st.integers(0, 5)) == 0
        transient = 0 if free else draw(st.sampled_from([0, 0, 0, 3]))
        opcode = "parameter" if v < params else "bitcast" if free else "fusion"
        operators.append(Operator(f"op{v}", opcode, transient, free))
        for k in range(1 if v < params else draw(st.integers(0, 2))):
            tensors.append(_tensor(draw, n, v, f"op{v}{{{k}}}", len(tensors), v < params))
    alias_edges: set[tuple[int, int]] = set()
    _merge_buffers(draw, tensors, alias_edges)
    inplace = [
        (b, a)
        for b, a in itertools.permutations(range(len(tensors)), 2)
        if tensors[b].source in tensors[a].sinks
        and tensors[a].bytes == tensors[b].bytes
        and draw(st.booleans())
    ]
    upward = [(u, v) for u in range(n) for v in range(u + 1, n)]
    edges = draw(st.lists(st.sampled_from(upward), max_size=max_extra)) if upward else []
    return TensorGraph(
        "random",
        tuple(operators),
        tuple(tensors),
        tuple(edges),
        tuple(sorted(alias_edges)),
        tuple(inplace),
    )


def _tensor(draw: st.DrawFn, n: int, v: int, name: str, buffer: int, param: bool) -> Tensor:
    later = list(range(v + 1, n))
    sinks = draw(st.sets(st.sampled_from(later), max_size=3)) if later else set()
    return Tensor(
        name,
        draw(st.integers(0, 6)),
        v,
        tuple(sorted(sinks)),
        buffer,
        live_in=param,
        live_out=draw(st.integers(0, 4)) == 0,
        category="argument" if param else "temporary",
    )


def _merge_buffers(
    draw: st.DrawFn, tensors: list[Tensor], alias_edges: set[tuple[int, int]]
) -> None:
    """Lets some later tensor reuse the buffer of an earlier one, read or not by its source."""
    continued: set[int] = set()
    for b, late in enumerate(tensors):
        if late.live_in or not draw(st.booleans()):
            continue
        for a, early in enumerate(tensors[:b]):
            readers = {*early.sinks, early.source}
            fits = max(readers) <= late.source and early.source < late.source
            if a in continued or early.live_out or not fits:
                continue
            continued.add(a)
            alias_edges.update((u, late.source) for u in readers if u != late.source)
            tensors[b] = Tensor(
                late.name,
                late.bytes,
                late.source,
                late.sinks,
                early.buffer,
                late.live_in,
                late.live_out,
                late.category,
            )
            break


def oracle_spans(graph: TensorGraph, order: list[int]) -> list[set[int]]:
    """The set of steps at which each tensor occupies memory, straight from the definition."""
    n = len(order)
    step = {v: t for t, v in enumerate(order)}
    spans = []
    for x in graph.tensors:
        users = [step[x.source], *(step[s] for s in x.sinks)]
        first = 0 if x.live_in else step[x.source]
        last = n - 1 if x.live_out else max(users)
        spans.append(set(range(first, last + 1)))
    for t, v in enumerate(order):
        born = [i for i, x in enumerate(graph.tensors) if x.source == v and not x.live_in]
        dying = [
            i
            for i, x in enumerate(graph.tensors)
            if x.source != v and not x.live_out and max(spans[i]) == t
        ]
        same = [
            (b, a)
            for b in born
            for a in dying
            if graph.tensors[a].buffer == graph.tensors[b].buffer
        ]
        used_a = {a for _, a in same}
        used_b = {b for b, _ in same}
        for b, a in graph.inplace:
            if b in born and a in dying and a not in used_a and b not in used_b:
                used_a.add(a)
                used_b.add(b)
        for a in used_a:
            spans[a].discard(t)
    return spans


def oracle_peak(graph: TensorGraph, order: list[int]) -> int:
    """Peak of one order, straight from the definition."""
    spans = oracle_spans(graph, order)
    return max(
        graph.operators[v].transient_bytes
        + sum(x.bytes for x, span in zip(graph.tensors, spans, strict=True) if t in span)
        for t, v in enumerate(order)
    )


def train_step(
    layers: int, *, activation: int = 64, weight: int = 40, momentum: bool = True
) -> TensorGraph:
    """A train step: forward, backward, weight gradients, updates of donated state.

    Layer `l` reads activation `l - 1` and weight `l`; its gradient needs both; the update frees
    the weight gradient. Ids are in the order: forward, backward with all weight gradients, updates.
    """
    make = GraphMaker()
    weights = [make.param(f"w{k}", weight + k % 3) for k in range(layers)]
    states = [make.param(f"m{k}", weight + k % 3) for k in range(layers if momentum else 0)]
    acts = [make.param("x", activation)]
    for k in range(layers):
        acts.append(make.op(f"fwd{k}", activation + 8 * (k % 5), [acts[k], weights[k]]))
    grad = make.op("loss", make.bytes[acts[-1]], [acts[-1]])
    grads = []
    for k in reversed(range(layers)):
        grads.append((k, make.op(f"dw{k}", make.bytes[weights[k]], [acts[k], grad])))
        if k:
            grad = make.op(f"dx{k}", make.bytes[acts[k]], [grad, weights[k], acts[k]])
    for k, dw in grads:
        if momentum:
            dw = make.update(f"m{k}", states[k], [dw])
        make.update(f"w{k}", weights[k], [dw])
    return make.graph()


class GraphMaker:
    """Builds a TensorGraph operator by operator; tensors are handled by id."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.bytes: list[int] = []
        self.rows: list[tuple[str, int, int, bool, bool]] = []  # name, source, buffer, in, out
        self.sinks: list[set[int]] = []
        self.alias: set[tuple[int, int]] = set()

    def param(self, name: str, size: int) -> int:
        return self._add(name, "parameter", size, [], None, live_in=True)

    def op(self, name: str, size: int, reads: list[int]) -> int:
        return self._add(name, "fusion", size, reads, None)

    def update(self, name: str, old: int, reads: list[int]) -> int:
        """A donated state's successor, in the same buffer; it reads the old value."""
        new = self._add(f"new_{name}", "fusion", self.bytes[old], [old, *reads], old)
        return new

    def _add(
        self, name: str, opcode: str, size: int, reads: list[int], old: int | None, live_in=False
    ) -> int:
        v, i = len(self.operators), len(self.bytes)
        self.operators.append(Operator(name, opcode, 0, live_in))
        for a in reads:
            self.sinks[a].add(v)
        self.bytes.append(size)
        self.rows.append((name, v, i if old is None else self.rows[old][2], live_in, False))
        self.sinks.append(set())
        if old is not None:
            self.rows[i] = (*self.rows[i][:4], True)
        return i

    def graph(self) -> TensorGraph:
        by_buffer = {row[2]: row[1] for row in self.rows}  # buffer -> its last tensor's source
        for i, (_, source, buffer, _, _) in enumerate(self.rows):
            last = by_buffer[buffer]
            if last != source:
                self.alias |= {(u, last) for u in {*self.sinks[i], source} if u != last}
        tensors = tuple(
            Tensor(name, self.bytes[i], source, tuple(sorted(self.sinks[i])), buffer, first, last)
            for i, (name, source, buffer, first, last) in enumerate(self.rows)
        )
        edges = tuple((t.source, s) for t in tensors for s in t.sinks)
        return TensorGraph(
            "train_step", tuple(self.operators), tensors, edges, tuple(sorted(self.alias))
        )
