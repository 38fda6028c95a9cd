"""Heuristics and search: legal, deterministic, never worse than their start, as good as it gets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla import schedule
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes, timeline
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.problem.plan_parts import StopReason
from olla_xla.schedule.condense import reduce_graph
from olla_xla.schedule.search import phases
from olla_xla.schedule.search.branch import branch
from olla_xla.schedule.search.cuts import Cuts, prove_together
from olla_xla.schedule.search.moves import late_acceptance_search
from olla_xla.schedule.search.state import new_state
from tests.support.graphs import all_orders, oracle_peak, tensor_graphs, train_step


def _is_legal(graph: TensorGraph, order) -> bool:
    step = {int(v): t for t, v in enumerate(order)}
    return sorted(step) == list(range(len(graph.operators))) and all(
        step[u] < step[v] for v, us in enumerate(graph.predecessors) for u in us
    )


def _search(graph, starts=None, **options):
    defaults = {
        "objective": None,
        "time_limit": 60.0,
        "step_limit": 20_000,
        "seed": 0,
        "bound_bytes": forced_live_bound(graph)[0],
        "progress": None,
    }
    starts = starts or {"xla": np.arange(len(graph.operators))}
    return phases.search(graph, starts, **{**defaults, **options})


@given(tensor_graphs(), st.data())
def test_condensing_loses_nothing(graph, data):
    reduced = reduce_graph(GraphArrays.of(graph))
    orders = list(all_orders(graph))
    order = orders[data.draw(st.integers(0, len(orders) - 1))]
    groups = reduced.contract(order)
    expanded = reduced.expand(groups)
    assert _is_legal(graph, expanded)
    assert peak_bytes(reduced.arrays, groups) == peak_bytes(graph, expanded)
    assert peak_bytes(graph, expanded) <= peak_bytes(graph, order)
    assert (reduced.contract(expanded) == groups).all()


@given(tensor_graphs(max_operators=12))
def test_candidates_are_legal(graph):
    found = schedule.candidates(graph)
    assert set(found) == {"list", "least_peak", "backward_list", "dfs", "post_order"}
    for order in found.values():
        assert _is_legal(graph, order)


@given(tensor_graphs())
def test_branching_finds_and_proves_the_least_peak_of_small_graphs(graph):
    arrays = GraphArrays.of(graph)
    start = np.arange(arrays.n)
    met = [(peak_bytes(arrays, start), start)]
    cuts = Cuts(arrays)
    branch(cuts, start, lambda order, peak: met.append((peak, order)), lambda _: None)
    for peak, order in met:
        assert _is_legal(graph, order)
        assert peak == peak_bytes(arrays, order)
    least = min(oracle_peak(graph, order) for order in all_orders(graph))
    assert cuts.bound == least == min(peak for peak, _ in met)


def test_branching_proves_what_single_cuts_cannot():
    # Two chains of 3 bytes, then 1: at each operator the other chain may not have begun, but
    # whichever comes second has the first's byte beside it.
    operators = tuple(Operator(name, "op") for name in ("p1", "q1", "p2", "q2", "sum"))
    sizes, sinks = (3, 1, 3, 1, 1), ((1,), (4,), (3,), (4,), ())
    tensors = tuple(
        Tensor(f"t{k}", size, k, reads, k, live_out=not reads)
        for k, (size, reads) in enumerate(zip(sizes, sinks, strict=True))
    )
    arrays = GraphArrays.of(TensorGraph("chains", operators, tensors))
    alone = Cuts(arrays)
    assert max(alone[v].bytes for v in range(arrays.n)) == alone.bound == 4
    cuts = Cuts(arrays)
    branch(cuts, np.arange(arrays.n), lambda *_: None, lambda _: None)
    assert cuts.bound == 5

    together = Cuts(arrays)
    prove_together(together, lambda: None)
    assert together.bound == 5 and together.at < 0
    sizes = [together[v].bytes for v in range(arrays.n)]
    assert sizes[together.at] == max(sizes) == 4 and together.bound == 5


def test_branching_ends_when_it_is_told_to():
    class Stop(Exception):
        pass

    def spend(cuts):
        spent.append(cuts)
        if len(spent) == 3:
            raise Stop

    spent = []
    arrays = GraphArrays.of(train_step(3))
    cuts = Cuts(arrays)
    with pytest.raises(Stop):
        branch(cuts, np.arange(arrays.n), lambda *_: None, spend)
    assert cuts.bound <= peak_bytes(arrays, _search(train_step(3)).order)


@given(tensor_graphs(), st.integers(0, 5))
def test_search_finds_the_optimum_of_small_graphs(graph, seed):
    found = _search(graph, seed=seed)
    assert _is_legal(graph, found.order)
    assert found.peak_bytes == oracle_peak(graph, found.order.tolist())
    assert found.peak_bytes == min(oracle_peak(graph, order) for order in all_orders(graph))
    assert found.objective_bytes == found.peak_bytes


@given(tensor_graphs(max_operators=12), st.integers(1, 300), st.integers(0, 3))
def test_incremental_evaluation_agrees_with_the_evaluator(graph, steps, seed):
    arrays = GraphArrays.of(graph)
    state = new_state(arrays, np.arange(arrays.n), seed)
    assert (state.live == timeline(arrays, state.order)).all()
    best = np.empty(arrays.n, np.int64)
    moves = steps if arrays.n > 1 else 0
    peak, _ = late_acceptance_search(arrays, state, 0, 0, moves, np.empty(20), best, 0)
    assert (state.live == timeline(arrays, state.order)).all()
    assert peak == peak_bytes(graph, best) <= peak_bytes(graph, range(arrays.n))
    assert _is_legal(graph, state.order)


def test_search_uses_the_objective_and_keeps_the_best_start():
    graph = train_step(6)
    n = len(graph.operators)

    def objective(order, most=None):  # as late as possible
        return 10_000 - int(np.flatnonzero(order == n - 2)[0])

    found = _search(graph, objective=objective, bound_bytes=0, step_limit=2_000_000)
    assert found.objective_bytes == objective(found.order) <= 10_000 - (n - 4)
    worst = _search(graph, objective=objective, bound_bytes=0, step_limit=1)
    assert worst.objective_bytes == objective(range(n) - np.zeros(n, np.int64))
    assert worst.stopped_by is StopReason.STEP_LIMIT


def test_equal_seeds_and_step_limits_give_equal_orders():
    graph = train_step(15)

    def objective(order, most):
        return 2 * peak_bytes(graph, order) + int(order[5])

    runs = [
        _search(graph, objective=objective, bound_bytes=0, step_limit=50_000, seed=s)
        for s in (3, 3)
    ]
    assert (runs[0].order == runs[1].order).all()
    assert runs[0].steps == runs[1].steps
    assert runs[0].stopped_by is StopReason.STEP_LIMIT


def test_what_is_of_no_interest_need_not_be_exact():
    graph = train_step(15)

    def search(cheat):
        def objective(order, most):
            value = 2 * peak_bytes(graph, order) + int(order[5])
            return most + 1 if cheat and most is not None and value > most else value

        return _search(graph, objective=objective, bound_bytes=0, step_limit=50_000)

    exact, rough = search(False), search(True)
    assert (exact.order == rough.order).all()
    assert exact.steps == rough.steps


def test_the_clock_stops_the_search():
    graph = train_step(30)
    found = _search(
        graph,
        objective=lambda order, most: 2 * peak_bytes(graph, order),
        step_limit=None,
        bound_bytes=0,
        time_limit=0.01,
    )
    assert found.stopped_by is StopReason.TIME_LIMIT
    assert _is_legal(graph, found.order)


def test_progress_is_reported():
    lines: list[str] = []
    _search(train_step(5), bound_bytes=0, step_limit=None, progress=lines.append)
    assert lines and all(" MB" in line for line in lines)


@pytest.mark.parametrize("n", [0, 1])
def test_tiny_graphs(n):
    operators = tuple(Operator(f"op{v}", "fusion") for v in range(n))
    graph = TensorGraph("tiny", operators, tuple(Tensor(f"x{v}", 4, v, (), v) for v in range(n)))
    assert all(len(order) == n for order in schedule.candidates(graph).values())
    assert _search(graph, bound_bytes=0).peak_bytes == 4 * n


@pytest.mark.parametrize("layers", [4, 8, 12])
def test_orders_met_on_the_way_to_the_least_peak_are_told(layers):
    """Their total may be smaller than that of the order of least peak."""
    graph = train_step(layers)
    found = _search(graph)
    assert found.stopped_by is StopReason.PROOF
    peaks = [peak_bytes(graph, order) for order in found.near_orders]
    assert peaks and peaks == sorted(peaks)
    assert found.least_peak_bytes < peaks[0] and peaks[-1] <= 1.03 * found.least_peak_bytes
    assert all(_is_legal(graph, order) for order in found.near_orders)
