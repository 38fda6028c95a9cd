"""The spans of the paper's section 4.1 hold in every order, by looking at all of them."""

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.papers.ilp_forms.equations import widened
from olla_xla.memory.arrays import GraphArrays
from olla_xla.solvers.programs.running_ilp import RunningIlp
from olla_xla.solvers.programs.spans import Reach, coefficients, spans
from tests.support.graphs import all_orders, oracle_spans, tensor_graphs, train_step


@settings(deadline=None, max_examples=60)
@given(tensor_graphs(max_operators=6))
def test_operators_run_and_tensors_live_within_their_spans(graph):
    g = GraphArrays.of(graph)
    reach = Reach.of(g)
    found = spans(g, reach)
    wide = widened(g, found, ())
    assert coefficients(g) >= 0
    assert (wide.first == 0).all() and (wide.last == g.n - 1).all()
    for order in all_orders(graph):
        step = np.argsort(order)
        assert (found.first <= step).all() and (step <= found.last).all()
        assert all(step[u] < step[v] for u, v in reach.direct(g))
        for e, live in enumerate(oracle_spans(graph, order)):
            if graph.tensors[e].live_out:
                continue
            held = range(int(found.held_first[e]), int(found.held_last[e]) + 1)
            kept = {t for t in live if t > step[g.source[e]] or g.live_in[e]}
            assert set(held) <= live
            assert all(found.useful_first[e] <= t <= found.useful_last[e] for t in kept)


@pytest.mark.parametrize("layers", [3, 8, 12])
def test_the_size_of_a_program_is_known_before_it_is_built(layers):
    """It is built where that is below a limit; at most twice what there is."""
    g = GraphArrays.of(train_step(layers))
    there = len(RunningIlp(g).model.arrays().row_val)
    assert there <= coefficients(g) <= 2 * there
