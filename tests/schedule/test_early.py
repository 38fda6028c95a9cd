"""What comes early where that helps the packing: small values, ends of large arguments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.check.graph import check_schedule
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.assignment.heap import pack
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.schedule import by_priority
from olla_xla.schedule.early import arguments_first, small_first
from tests.support.graphs import tensor_graphs

pytestmark = pytest.mark.quick


def packed(spans, sizes, **options):
    """The size of a heap of values that live in [start, end], no two ticks alike; offsets."""
    start, end = (np.array(ticks, np.int64) for ticks in zip(*spans, strict=True))
    ids = np.arange(len(spans))
    heap, offsets = pack(ids, start, end, ids, np.array(sizes, np.int64), 1, **options)
    return heap, offsets.tolist()


def test_values_are_placed_as_they_come():
    spans, sizes = [(0, 10), (1, 4), (2, 12), (5, 11)], [1, 8, 1, 9]
    assert packed(spans, sizes)[0] == 11, "the most at once"
    dividing = packed(spans, sizes, as_they_come=True)
    assert dividing == (19, [0, 1, 9, 10]), "the third value divides the gap that the second leaves"
    before = [(0, 10), (2, 4), (1, 12), (5, 11)]
    assert packed(before, sizes, as_they_come=True) == (11, [0, 2, 1, 2])


def test_into_the_smallest_gap_that_is_free_then():
    spans = [(0, 20), (1, 8), (2, 21), (3, 7), (4, 22), (9, 18), (10, 19)]
    heap, offsets = packed(spans, [4, 6, 4, 3, 4, 3, 5], as_they_come=True)
    assert (heap, offsets) == (21, [0, 4, 10, 14, 17, 14, 4])


@given(tensor_graphs(), st.data())
def test_small_results_come_early_and_nothing_else_moves(graph, data):
    g = GraphArrays.of(graph)
    order = by_priority(g, np.array(data.draw(st.permutations(range(g.n)))))
    movable = np.array(data.draw(st.lists(st.booleans(), min_size=g.n, max_size=g.n)))
    most = data.draw(st.integers(0, 8))
    found = small_first(g, order, movable, most)
    check_schedule(graph, found.tolist(), peak_bytes(g, found))
    sizes = {}
    for t in graph.tensors:
        sizes[t.buffer] = max(sizes.get(t.buffer, 0), t.bytes)
    written = [sum(sizes[t.buffer] for t in graph.tensors if t.source == k) for k in range(g.n)]
    small = {k for k in range(g.n) if movable[k] and 0 < written[k] <= most}
    others = [k for k in order if k not in small]
    assert [k for k in found if k not in small] == others
    added = sum(written[k] for k in small)
    assert peak_bytes(g, found) <= peak_bytes(g, order) + added


def test_large_arguments_die_first():
    """Each is copied; the copy of the largest leaves room for the others, those before it none."""
    sizes = [3, 40, 20, 50]
    n = len(sizes)
    operators = [Operator(f"p{k}", "parameter", 0, True) for k in range(n)]
    operators += [Operator(f"copy{k}", "copy", 0, False) for k in range(n)]
    operators.append(Operator("sum", "fusion", 0, False))
    given_ones = [Tensor(f"p{k}", sizes[k], k, (n + k,), k, live_in=True) for k in range(n)]
    copies = [Tensor(f"copy{k}", sizes[k], n + k, (2 * n,), n + k) for k in range(n)]
    g = GraphArrays.of(TensorGraph("copies", tuple(operators), (*given_ones, *copies), (), (), ()))
    found = arguments_first(g, np.arange(g.n), 10)
    assert [k for k in found.tolist() if k >= n] == [n + 3, n + 1, n + 2, n, 2 * n]


@given(tensor_graphs(), st.data())
def test_orders_in_which_arguments_die_early_are_legal(graph, data):
    g = GraphArrays.of(graph)
    order = by_priority(g, np.array(data.draw(st.permutations(range(g.n)))))
    found = arguments_first(g, order, data.draw(st.integers(0, 8)))
    check_schedule(graph, found.tolist(), peak_bytes(g, found))
