"""The evaluator against an oracle that follows the definition word by word."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.errors import GraphError
from olla_xla.memory import lifetimes
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from tests.support.graphs import all_orders, oracle_peak, oracle_spans, tensor_graphs, train_step


def _chain(inplace: bool) -> TensorGraph:
    operators = tuple(Operator(name, "fusion") for name in ("x", "relu", "out"))
    tensors = (
        Tensor("x", 8, 0, (1,), 0),
        Tensor("y", 8, 1, (2,), 1),
        Tensor("z", 4, 2, (), 2, live_out=True),
    )
    return TensorGraph("chain", operators, tensors, inplace=((1, 0),) if inplace else ())


def test_in_place_reuse_counts_the_memory_once():
    assert lifetimes.timeline(_chain(False), [0, 1, 2]).tolist() == [8, 16, 12]
    assert lifetimes.timeline(_chain(True), [0, 1, 2]).tolist() == [8, 8, 12]
    assert lifetimes.intervals(_chain(True), [0, 1, 2]).tolist() == [[0, 1], [1, 3], [2, 3]]


def test_donated_state_is_counted_once_at_its_update():
    graph = train_step(3)
    order = range(len(graph.operators))
    before = sum(t.bytes for t in graph.tensors if t.live_in)
    assert lifetimes.timeline(graph, order)[0] == before
    last = lifetimes.timeline(graph, order)[-1]
    assert last == sum(t.bytes for t in graph.tensors if t.live_out)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [0, 1, 2, 2]])
def test_an_order_must_be_a_permutation(order):
    with pytest.raises(GraphError, match="3 operators"):
        lifetimes.peak_bytes(_chain(False), order)


def test_empty_graph():
    assert lifetimes.peak_bytes(TensorGraph("empty", (), ()), []) == 0


@given(tensor_graphs(), st.data())
def test_agrees_with_the_definition(graph, data):
    graph.validate()
    orders = list(all_orders(graph))
    order = orders[data.draw(st.integers(0, len(orders) - 1))]
    spans = oracle_spans(graph, order)
    found = lifetimes.intervals(graph, order)
    assert [set(range(a, b)) for a, b in found.tolist()] == spans
    assert lifetimes.peak_bytes(graph, order) == oracle_peak(graph, order)
    total = lifetimes.timeline(graph, order)
    intervals = lifetimes.intervals(graph, order).tolist()
    for t in range(len(order)):
        live = [i for i, (begin, end) in enumerate(intervals) if begin <= t < end]
        assert live == [i for i, span in enumerate(spans) if t in span]
        transient = graph.operators[order[t]].transient_bytes
        assert total[t] == transient + sum(graph.tensors[i].bytes for i in live)


@given(tensor_graphs())
def test_arrays_are_reusable_and_orders_may_be_arrays(graph):
    arrays = lifetimes.GraphArrays.of(graph)
    order = np.arange(len(graph.operators))
    assert lifetimes.GraphArrays.of(arrays) is arrays
    assert lifetimes.peak_bytes(arrays, order) == lifetimes.peak_bytes(graph, order.tolist())
