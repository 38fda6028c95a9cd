"""Offsets of a graph's tensors under an order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.placed_orders import place_graph, place_reordered
from benchmarks.papers.relieved_orders import relieved
from benchmarks.placement_blocks import graph_problem
from olla_xla.check.graph import check_placement, check_schedule
from olla_xla.errors import CheckError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.solvers.linear import Status
from tests.support.graphs import all_orders, tensor_graphs, train_step


def chain(*sizes, inplace=()):
    """Each tensor is made from the one before; the first is an argument, the last the output."""
    n = len(sizes)
    tensors = tuple(
        Tensor(f"t{k}", size, k, (k + 1,) if k + 1 < n else (), k, k == 0, k == n - 1)
        for k, size in enumerate(sizes)
    )
    operators = tuple(Operator(f"o{k}", "fusion") for k in range(n))
    edges = tuple((k, k + 1) for k in range(n - 1))
    return TensorGraph("main", operators, tensors, edges, (), tuple(inplace))


@given(tensor_graphs(), st.sampled_from([1, 8]), st.integers(0, 3))
def test_random_graphs(graph, alignment, skip):
    orders = all_orders(graph)
    order = next(orders)
    for _ in range(skip):
        order = next(orders, order)
    found = place_graph(graph, order, alignment=alignment, node_limit=2000)  # referees run inside
    assert found.arena_bytes >= found.live_bytes >= peak_bytes(graph, order)
    assert all(offset % alignment == 0 for offset, _ in found.offsets.values())


def test_in_place_output_lies_on_its_operand():
    graph = chain(8, 8, 8, inplace=[(2, 1)])
    found = place_graph(graph, [0, 1, 2], alignment=1)
    assert found.arena_bytes == found.live_bytes == 16
    assert found.offsets["t1"] == found.offsets["t2"]


def test_train_step_without_fragmentation():
    graph = train_step(6)
    found = place_graph(graph, range(len(graph.operators)), alignment=1)
    assert found.fragmentation == 0


def test_one_unit_of_damage_names_both_tensors():
    graph = chain(8, 8, 8)
    offsets = dict(place_graph(graph, [0, 1, 2], alignment=1).offsets)
    above = max(("t0", "t1"), key=lambda name: offsets[name][0])
    offsets[above] = (offsets[above][0] - 1, 8)
    with pytest.raises(CheckError, match=r"t0 at .* and t1 at"):
        check_placement(graph, [0, 1, 2], offsets)


def test_called_computations_get_room():
    operators = (Operator("p", "parameter"), Operator("while", "while", transient_bytes=40))
    tensors = (Tensor("p", 8, 0, (1,), 0, True, True), Tensor("while", 8, 1, (), 1, False, True))
    found = place_graph(TensorGraph("main", operators, tensors, ((0, 1),)), [0, 1], alignment=1)
    offset, size = found.offsets["while()"]
    assert size == 40
    assert np.all([o + s <= offset or offset + size <= o for o, s in
                   (found.offsets["p"], found.offsets["while"])])  # fmt: skip


@settings(deadline=None, max_examples=80, derandomize=True, database=None)
@given(tensor_graphs())
def test_other_orders_never_need_more(graph):
    order = next(all_orders(graph))
    kept = place_graph(graph, order, alignment=8, node_limit=2000)
    found = place_reordered(graph, order, alignment=8, node_limit=2000)
    assert found.arena_bytes <= kept.arena_bytes
    assert found.live_bytes <= kept.live_bytes
    check_schedule(graph, found.order, peak_bytes(graph, found.order))


def test_what_sticks_out_of_a_dead_place_is_brought_into_it():
    # p is made right before w is copied for the last time, so that it cannot lie in w's place;
    # the copy cannot wait, since the peak ("grow") reads it.
    operators = tuple(
        Operator(name, "fusion") for name in ("w", "x", "p", "copy", "grow", "update")
    )
    tensors = (
        Tensor("w", 8, 0, (3,), 0, True, False),
        Tensor("x", 8, 1, (2,), 1, True, False),
        Tensor("p", 8, 2, (4,), 2),
        Tensor("copy", 8, 3, (4, 5), 3),
        Tensor("grow", 20, 4, (5,), 4),
        Tensor("update", 8, 5, (), 0, False, True),
    )
    edges = ((0, 3), (1, 2), (2, 4), (3, 4), (3, 5), (4, 5))
    graph = TensorGraph("main", operators, tensors, edges, ((3, 5),))
    order = range(6)
    kept = place_graph(graph, order, alignment=1)
    assert (kept.live_bytes, kept.arena_bytes) == (36, 44)
    assert kept.packing.status is Status.OPTIMAL

    def problem_of(order):
        return graph_problem(graph, order, alignment=1)

    better = relieved(GraphArrays.of(graph), order, problem_of, 10.0)
    assert better.index(3) < better.index(2)
    found = place_reordered(graph, order, alignment=1)
    assert (found.live_bytes, found.arena_bytes) == (36, 36)
