"""Offsets of a graph's tensors under an order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.reordering.one_order import place_graph
from olla_xla.check.graph import check_placement
from olla_xla.errors import CheckError, InputError
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
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
    assert found.placement.total_bytes >= found.live_bytes >= peak_bytes(graph, order)
    assert all(offset % alignment == 0 for offset, _ in found.placement.offsets.values())


def test_in_place_output_lies_on_its_operand():
    graph = chain(8, 8, 8, inplace=[(2, 1)])
    found = place_graph(graph, [0, 1, 2], alignment=1)
    assert found.placement.total_bytes == found.live_bytes == 16
    assert found.placement.offsets["t1"] == found.placement.offsets["t2"]


def test_train_step_without_fragmentation():
    graph = train_step(6)
    found = place_graph(graph, range(len(graph.operators)), alignment=1)
    assert found.fragmentation == 0


def test_one_unit_of_damage_names_both_tensors():
    graph = chain(8, 8, 8)
    offsets = dict(place_graph(graph, [0, 1, 2], alignment=1).placement.offsets)
    above = max(("t0", "t1"), key=lambda name: offsets[name][0])
    offsets[above] = (offsets[above][0] - 1, 8)
    with pytest.raises(CheckError, match=r"t0 at .* and t1 at"):
        check_placement(graph, [0, 1, 2], offsets)


def test_pinned_arguments_leave_their_space_while_dead():
    graph = chain(8, 16, 8, 8)
    found = place_graph(graph, range(4), alignment=1, pinned={"t0": 16})
    assert found.placement.offsets["t0"] == (16, 8)
    assert found.placement.offsets["t1"][0] == 0
    assert found.placement.total_bytes == 24
    with pytest.raises(InputError, match="cannot pin nothing"):
        place_graph(graph, range(4), pinned={"nothing": 0})
    with pytest.raises(InputError, match="overlap"):
        place_graph(graph, range(4), alignment=1, pinned={"t0": 0, "t1": 4})


def test_called_computations_get_room():
    operators = (Operator("p", "parameter"), Operator("while", "while", transient_bytes=40))
    tensors = (Tensor("p", 8, 0, (1,), 0, True, True), Tensor("while", 8, 1, (), 1, False, True))
    found = place_graph(TensorGraph("main", operators, tensors, ((0, 1),)), [0, 1], alignment=1)
    offset, size = found.placement.offsets["while()"]
    assert size == 40
    assert np.all([o + s <= offset or offset + size <= o for o, s in
                   (found.placement.offsets["p"], found.placement.offsets["while"])])  # fmt: skip
