"""Local search for the peak: legal orders, no worse than the start, mostly the least of all."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.schedule.search.limits import Stop
from olla_xla.schedule.search.local import _patience, lower_peak, towards_objective
from olla_xla.schedule.search.run import Run
from tests.support.graphs import all_orders, oracle_peak, tensor_graphs


def run_of(graph, **options):
    return Run(GraphArrays.of(graph), {"time_limit": 60.0, "step_limit": 10**6, **options})


def started(graph, **options):
    """A search that has scored program order."""
    run = run_of(graph, **options)
    order = np.arange(run.reduced.arrays.n, dtype=np.int64)
    run.peak(order)
    run.score(order)
    return run, order


@settings(max_examples=40, deadline=None)
@given(tensor_graphs())
def test_the_peak_of_a_small_graph(graph):
    run, order = started(graph)
    assume(len(order) - run.first >= 2)  # else there is nothing to move, and nobody asks
    found = lower_peak(run, run.problem, order, seed=1)
    arrays = run.reduced.arrays
    assert sorted(found.tolist()) == list(range(arrays.n))
    peak = peak_bytes(arrays, found)
    assert peak == run.least.peak <= peak_bytes(arrays, order)
    whole = run.reduced.expand(found).tolist()
    assert any(whole == list(legal) for legal in all_orders(graph)), "it is a legal order"
    assert oracle_peak(graph, whole) == min(oracle_peak(graph, o) for o in all_orders(graph))


def branches(count):
    """Two rows of operators: program order makes all wide tensors first, which need not be."""
    names = [f"wide{k}" for k in range(count)] + [f"thin{k}" for k in range(count)] + ["sum"]
    wide = [Tensor(f"w{k}", 100, k, (count + k,), k, False, False) for k in range(count)]
    thin = [
        Tensor(f"t{k}", 1, count + k, (2 * count,), count + k, False, False) for k in range(count)
    ]
    last = Tensor("s", 1, 2 * count, (), 2 * count, False, True)
    operators = tuple(Operator(name, "fusion", 0, False) for name in names)
    return TensorGraph("branches", operators, (*wide, *thin, last), (), (), ())


def test_branches_run_one_after_the_other():
    graph = branches(6)
    run, order = started(graph)
    assert peak_bytes(run.full, np.arange(13)) == 601, "six wide tensors and the first thin one"
    found = lower_peak(run, run.problem, order, seed=1)
    assert peak_bytes(run.reduced.arrays, found) == 106, "five thin ones, a wide one, its thin one"


def test_an_objective_decides():
    """The objective is least where thin tensors are made in falling order."""

    def objective(order, most):
        position = np.argsort(order)[6:12]
        return int(1000 + sum(position[k] < position[k + 1] for k in range(5)))

    run, _ = started(branches(6), objective=objective)
    assert run.best.objective == 1005
    towards_objective(run)
    assert run.best.objective < 1005
    order = run.best_order
    assert objective(order, None) == run.best.objective == run.best_exact[0]


def test_a_step_limit_ends_it_and_keeps_the_best():
    run, order = started(branches(6), step_limit=50)
    with pytest.raises(Stop):
        for seed in range(100):
            lower_peak(run, run.problem, order, seed)
    assert run.least.peak <= 601


@settings(deadline=None)
@given(st.floats(0.0, 10.0), st.integers(0, 12))
def test_patience_stays_within_its_limits(gap, fruitless):
    run = run_of(branches(6))
    s = run.settings
    found = _patience(run, gap, fruitless)
    assert s.least_patience <= found <= max(s.most_patience, s.least_patience)
    assert found <= _patience(run, gap, fruitless + 1) and found <= _patience(
        run, gap + 1, fruitless
    )
    assert _patience(run, 0.0, fruitless) == s.least_patience
