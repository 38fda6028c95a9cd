"""One search's own account: the best order met, the limits, and what is near the least peak."""

import numpy as np
import pytest

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.stop_reason import StopReason
from olla_xla.schedule.search.limits import Stop
from olla_xla.schedule.search.run import Run, rank
from olla_xla.schedule.search.settings import SearchSettings
from tests.support.graphs import all_orders, train_step


@pytest.fixture
def graph():
    return GraphArrays.of(train_step(2))


def groups(run, order):
    return run.reduced.contract(np.asarray(order))


def test_the_best_order_is_kept_whatever_comes_after(graph):
    run = Run(graph, {"time_limit": 60.0})
    orders = [order for order, _ in zip(all_orders(train_step(2)), range(40), strict=False)]
    scored = [run.score(groups(run, order)) for order in orders]
    for order in orders:
        run.peak(groups(run, order))
    found = run.result(StopReason.STEP_LIMIT)
    assert run.best is not None and rank(run.best) == min(map(rank, scored))
    assert found.peak_bytes == peak_bytes(graph, found.order) == min(s.peak for s in scored)
    assert found.least_peak_bytes == min(s.peak for s in scored)
    assert found.bound_bytes <= found.least_peak_bytes
    assert found.stopped_by is StopReason.STEP_LIMIT
    for near in found.near_orders:
        limit = found.least_peak_bytes * run.settings.near
        assert found.least_peak_bytes <= peak_bytes(graph, near) <= limit


def test_an_objective_of_its_own_decides(graph):
    seen = []

    def objective(order, _):
        seen.append(order.tolist())
        return len(seen)  # the first is the best

    run = Run(graph, {"time_limit": 60.0, "objective": objective})
    orders = [order for order, _ in zip(all_orders(train_step(2)), range(5), strict=False)]
    for order in orders:
        run.score(groups(run, order))
        run.peak(groups(run, order))
    assert run.result(StopReason.NO_GAIN).order.tolist() == seen[0]
    assert run.result(StopReason.NO_GAIN).objective_bytes == 1


def test_steps_and_cuts_are_counted_against_the_limit(graph):
    run = Run(graph, {"time_limit": 60.0, "step_limit": 10 * SearchSettings().cut_steps})
    run.spend_cuts()
    run.spend_cuts(2)
    assert run.limits.steps == 3 * run.settings.cut_steps
    with pytest.raises(Stop) as stopped:
        run.spend_cuts(7)
    assert stopped.value.reason is StopReason.STEP_LIMIT
