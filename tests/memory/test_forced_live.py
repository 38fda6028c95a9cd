"""The lower bounds against the best of all orders."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.errors import GraphError
from olla_xla.memory import forced_live, lifetimes
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from tests.support.graphs import all_orders, oracle_peak, tensor_graphs, train_step


def _plain_forced(graph: TensorGraph) -> list[int]:
    """The forced-live bytes at each operator, without subtracting anything."""
    n = len(graph.operators)
    before = [{v} for v in range(n)]
    for v, us in enumerate(graph.predecessors):
        for u in us:
            before[v] |= before[u]
    forced = [op.transient_bytes for op in graph.operators]
    for x in graph.tensors:
        for v in range(n):
            begun = x.live_in or x.source in before[v]
            needed = x.live_out or any(v in before[s] for s in (x.source, *x.sinks))
            forced[v] += x.bytes if begun and needed else 0
    return forced


@given(tensor_graphs())
def test_no_order_is_below_the_bound(graph):
    bound, v = forced_live.forced_live_bound(graph)
    assert bound <= min(oracle_peak(graph, order) for order in all_orders(graph))
    assert 0 <= v < len(graph.operators)


@given(tensor_graphs())
def test_at_each_operator(graph):
    forced, arrays = forced_live.forced_live_bytes(graph), lifetimes.GraphArrays.of(graph)
    for order in all_orders(graph):
        assert (forced[order] <= lifetimes.timeline(arrays, order)).all()


@given(tensor_graphs(max_operators=12))
def test_is_the_forced_sum_where_nothing_can_be_shared(graph):
    arrays = lifetimes.GraphArrays.of(graph)
    forced = forced_live.forced_live_bytes(graph)
    for v, plain in enumerate(_plain_forced(graph)):
        if arrays.pair_ptr[v] == arrays.pair_ptr[v + 1]:
            assert forced[v] == plain
        else:
            assert forced[v] <= plain


def test_blocks_of_operators_agree(monkeypatch):
    graph = train_step(60)
    whole = forced_live.forced_live_bytes(graph)
    monkeypatch.setattr(forced_live, "_BLOCK_WORDS", 1)
    assert (forced_live.forced_live_bytes(graph) == whole).all()


@given(tensor_graphs(max_operators=12), st.randoms(use_true_random=False))
def test_the_numbers_of_operators_do_not_matter(graph, rng):
    new = rng.sample(range(len(graph.operators)), len(graph.operators))
    tensors = [
        dataclasses.replace(x, source=new[x.source], sinks=tuple(sorted(new[s] for s in x.sinks)))
        for x in graph.tensors
    ]
    operators = [graph.operators[k] for k in np.argsort(new)]
    edges, alias_edges = (
        tuple((new[u], new[v]) for u, v in old) for old in (graph.edges, graph.alias_edges)
    )
    other = TensorGraph(
        "other", tuple(operators), tuple(tensors), edges, alias_edges, graph.inplace
    )
    forced = forced_live.forced_live_bytes(other)[np.array(new, np.int64)]
    assert (forced == forced_live.forced_live_bytes(graph)).all()


def test_a_block_looks_at_what_may_be_live_there(monkeypatch):
    """Planning of 100,000 operators looked at all tensors in each of 100 blocks."""
    seen, account = [], forced_live._account
    monkeypatch.setattr(forced_live, "_BLOCK_WORDS", 1)
    monkeypatch.setattr(
        forced_live,
        "_account",
        lambda g, block, *a: seen.append(block.near) or account(g, block, *a),
    )
    graph = train_step(60)
    forced_live.forced_live_bytes(graph)
    assert len(seen) > 2 and sum(map(len, seen)) < len(seen) * len(graph.tensors) / 2


def test_a_chain_meets_its_bound():
    operators = tuple(Operator(f"op{v}", "fusion", 2 * v) for v in range(4))
    tensors = tuple(Tensor(f"x{v}", 10, v, (v + 1,) if v < 3 else (), v) for v in range(4))
    graph = TensorGraph("chain", operators, tensors)
    assert forced_live.forced_live_bound(graph) == (26, 3)
    assert lifetimes.peak_bytes(graph, range(4)) == 26


def test_empty_and_cyclic_graphs():
    assert forced_live.forced_live_bound(TensorGraph("empty", (), ())) == (0, -1)
    operators = (Operator("a", "fusion"), Operator("b", "fusion"))
    with pytest.raises(GraphError, match="cycle"):
        forced_live.forced_live_bound(TensorGraph("loop", operators, (), edges=((0, 1), (1, 0))))
