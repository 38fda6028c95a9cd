"""Repair of order and packing together: never another live sum, never worse, never an overlap."""

from unittest import mock

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.papers.reordering.any_order import place_reordered
from benchmarks.papers.reordering.joint_repair import repaired_together
from benchmarks.papers.reordering.one_order import place_graph
from benchmarks.papers.reordering.orders import hastened
from benchmarks.placement_blocks import graph_problem, load_of
from olla_xla.check.graph import check_placement, check_schedule
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.place import place
from olla_xla.place.exact.restarts import Budget
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.solvers.linear import Status
from tests.place.test_dead_space import update
from tests.support.graphs import all_orders, tensor_graphs


def lives(*rows):
    """A graph of tensors (bytes, step made, step last used), each step one operator."""
    tensors = tuple(
        Tensor(f"t{k}", size, first, (last,), k) for k, (size, first, last) in enumerate(rows)
    )
    n = 1 + max(last for _, _, last in rows)
    operators = tuple(Operator(f"o{k}", "fusion") for k in range(n))
    edges = tuple(sorted({(first, last) for _, first, last in rows}))
    return TensorGraph("main", operators, tensors, edges)


@settings(deadline=None, max_examples=80, derandomize=True, database=None)
@given(
    tensor_graphs(),
    st.sampled_from([1, 2]),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
def test_random_graphs(graph, alignment, seed, rng):
    order = next(all_orders(graph))
    start = place_graph(graph, order, alignment=alignment, node_limit=500)
    # Repair begins with the tensors stacked in any order, which leaves it something to do.
    names = sorted(start.placement.offsets)
    stacked = {name: (k, 0) for k, name in enumerate(rng.sample(names, len(names)))}
    found = repaired_together(graph, order, stacked, alignment, Budget(60.0, 2000), seed)
    assume(found is not None)  # else the graph is not supported
    other, offsets, height = found
    sizes = {name: size for name, (_, size) in start.placement.offsets.items()}
    places = {name: (offset, sizes[name]) for name, offset in offsets.items()}
    assert places.keys() == sizes.keys()
    check_placement(graph, other, places, height)
    check_schedule(graph, other, peak_bytes(graph, other))
    problem = graph_problem(graph, other, alignment=alignment)
    assert load_of(problem) == start.live_bytes <= height
    assert all(offset % alignment == 0 for offset in offsets.values())


def test_a_hole_is_filled():
    graph = lives((64, 0, 3), (128, 2, 7), (128, 0, 1), (64, 4, 7))
    offsets = {"t0": (128, 64), "t1": (192, 128), "t2": (64, 128), "t3": (0, 64)}
    found = repaired_together(graph, range(8), offsets, 64, Budget(60.0, 20_000))
    assert found is not None
    assert found[2] == peak_bytes(graph, found[0]) == 192


def test_equal_seeds_give_equal_results():
    graph = lives(*(((7 * k) % 5 + 1, k, k + 2 + (3 * k) % 7) for k in range(30)))
    order = range(len(graph.operators))
    start = place(graph_problem(graph, order, alignment=1), method="greedy_span")
    names = [t.name for t in graph.tensors]
    offsets = {name: (int(x), 0) for name, x in zip(names, start.offsets, strict=True)}
    one, two = (
        repaired_together(graph, order, offsets, 1, Budget(60.0, 5000), seed=1) for _ in range(2)
    )
    assert one == two and one is not None


def test_operators_are_hastened_where_more_dies():
    # x is read at once by the reduction, which need not wait for the others.
    operators = tuple(Operator(f"o{k}", "fusion") for k in range(4))
    tensors = (
        Tensor("x", 100, 0, (3,), 0),
        Tensor("y", 50, 1, (2,), 1),
        Tensor("z", 10, 2, (), 2, False, True),
        Tensor("sum", 4, 3, (), 3, False, True),
    )
    graph = TensorGraph("main", operators, tensors, ((0, 3), (1, 2)))
    better = hastened(GraphArrays.of(graph), range(4))
    assert better == [0, 3, 1, 2]
    assert (peak_bytes(graph, range(4)), peak_bytes(graph, better)) == (160, 104)


@settings(deadline=None, max_examples=60, derandomize=True, database=None)
@given(tensor_graphs())
def test_hastened_orders_are_orders(graph):
    for order in (next(all_orders(graph)), range(len(graph.operators))):
        better = hastened(GraphArrays.of(graph), order)
        check_schedule(graph, better, peak_bytes(graph, better))


def test_dead_stretches_are_ended():
    # The packing under the given order is proven best; only an order with a later copy needs less.
    graph = update()
    kept = place_graph(graph, range(5), alignment=1)
    assert (kept.live_bytes, kept.placement.total_bytes) == (44, 52)
    assert kept.packing.status is Status.OPTIMAL
    found = repaired_together(graph, range(5), kept.placement.offsets, 1, Budget(60.0, 20_000))
    assert found is not None
    other, offsets, height = found
    assert other.index(2) > other.index(3) and height == 44
    sizes = {name: size for name, (_, size) in kept.placement.offsets.items()}
    check_placement(graph, other, {k: (x, sizes[k]) for k, x in offsets.items()}, height)


@settings(deadline=None, max_examples=50, derandomize=True, database=None)
@given(tensor_graphs())
def test_arena_is_never_larger_than_without(graph):
    order = next(all_orders(graph))
    kept = place_graph(graph, order, alignment=8, node_limit=2000)
    with mock.patch("benchmarks.papers.reordering.any_order._LEAST", 1):
        found = place_reordered(graph, order, alignment=8, node_limit=2000)
    assert found.placement.total_bytes <= kept.placement.total_bytes
    assert found.live_bytes <= kept.live_bytes
    check_schedule(graph, found.order, peak_bytes(graph, found.order))
