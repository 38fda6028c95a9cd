"""The min-cut bound: valid for every order, exact at one operator; the search proves by it."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla import schedule
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bytes
from olla_xla.memory.lifetimes import peak_bytes, timeline
from olla_xla.memory.mincut import least_live
from olla_xla.problem.graph import Tensor
from olla_xla.problem.plan_parts import StopReason
from olla_xla.schedule.search import phases
from olla_xla.schedule.search.cuts import Cuts, improve, prove, prove_together
from tests.support.graphs import GraphMaker, all_orders, oracle_peak, tensor_graphs, train_step


def _least_by_operator(graph) -> np.ndarray:
    """By brute force: the least live bytes at each operator over all orders."""
    least, arrays = np.full(len(graph.operators), 2**62), GraphArrays.of(graph)
    for order in all_orders(graph):
        least[order] = np.minimum(least[order], timeline(arrays, order))
    return least


@given(tensor_graphs())
def test_bound_holds_at_every_operator_of_every_order(graph):
    arrays = GraphArrays.of(graph)
    least = _least_by_operator(graph)
    for v in range(arrays.n):
        closure = least_live(arrays, v)
        assert closure.bytes <= least[v]
        assert not closure.before[v]


@given(tensor_graphs())
def test_bound_is_exact_at_an_operator_without_in_place_pairs(graph):
    graph = dataclasses.replace(graph, inplace=())
    arrays = GraphArrays.of(graph)
    bounds = [least_live(arrays, v).bytes for v in range(arrays.n)]
    if not arrays.pair_must.any():
        assert bounds == _least_by_operator(graph).tolist()
    assert (np.array(bounds) >= forced_live_bytes(arrays)).all()


@given(tensor_graphs(), st.integers(0, 10**6))
def test_proofs_hold_for_every_order(graph, draw):
    orders = list(all_orders(graph))
    start = np.array(orders[draw % len(orders)])
    least = min(oracle_peak(graph, order) for order in orders)
    cuts = Cuts(GraphArrays.of(graph))
    prove_together(cuts, lambda: None)
    assert cuts.bound <= least
    prove(cuts, start, lambda: None)
    prove_together(cuts, lambda: None)
    assert cuts.bound <= least


@pytest.mark.parametrize("inputs", [{2: 12}, {2: 13}, {2: 4, 3: 4}])
def test_more_choices_of_what_passes_on_than_are_tried(inputs):
    """All inputs are live and outputs take memory over: one of each size, whichever gives it."""
    make = GraphMaker()
    given = [make.op("given", size, []) for size, count in inputs.items() for _ in range(count)]
    make.op("all", 2, given)
    graph = make.graph()
    v = len(given)
    outputs = [Tensor("all", size, v, (), v + k, False, False) for k, size in enumerate(inputs)]
    pairs = [(v + k, a) for k, t in enumerate(outputs) for a in given if make.bytes[a] == t.bytes]
    chain = tuple((a, a + 1) for a in given)
    tensors = (*graph.tensors[:v], *outputs)
    graph = dataclasses.replace(graph, tensors=tensors, edges=chain, inplace=tuple(pairs))
    total = sum(size * count for size, count in inputs.items())
    assert least_live(GraphArrays.of(graph), v).bytes == _least_by_operator(graph)[v] == total


def test_of_two_that_need_much_one_comes_first():
    """Each of two sums needs all its terms; while the first is made, the other's input is live."""
    make = GraphMaker()
    x = make.param("x", 6)
    sources = [make.op(name, 3, [x]) for name in "ab"]
    for source in sources:
        make.op("sum", 1, [make.op("term", 5, [source]) for _ in range(4)])
    graph = make.graph()
    arrays = GraphArrays.of(graph)
    cuts, start = Cuts(arrays), np.arange(arrays.n)
    prove(cuts, start, lambda: None)
    alone = cuts.bound
    prove_together(cuts, lambda: None)
    assert alone < cuts.bound == 24 <= oracle_peak(graph, start.tolist())


@given(tensor_graphs(), st.integers(0, 10**6))
def test_improving_by_cuts_is_legal_and_bounded_by_the_optimum(graph, draw):
    orders = list(all_orders(graph))
    start = np.array(orders[draw % len(orders)])
    arrays = GraphArrays.of(graph)
    cuts = Cuts(arrays)
    met = []
    order, peak = improve(cuts, start, lambda o, p: met.append((o.tolist(), p)))
    optimum = min(oracle_peak(graph, o) for o in orders)
    legal = {tuple(o) for o in orders}
    assert all(tuple(o) in legal and p == peak_bytes(graph, o) for o, p in met)
    assert cuts.bound <= optimum <= peak == peak_bytes(graph, order) <= peak_bytes(graph, start)


@pytest.mark.parametrize("layers", [4, 12, 40])
def test_train_steps_are_proven_at_once(layers):
    graph = train_step(layers)
    found = phases.search(graph, schedule.candidates(graph), time_limit=60, step_limit=50_000)
    assert (
        found.least_peak_bytes
        == found.bound_bytes
        == oracle_peak(graph, found.lifetime_order.tolist())
    )
    assert found.stopped_by is StopReason.PROOF
