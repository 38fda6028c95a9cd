"""A limit of time holds for all of planning: what comes before a search counts too."""

import time

import jax
import pytest

from benchmarks.dropout_steps import layers_10
from hlo.text import from_hlo_text
from olla_xla import planner
from olla_xla.memory import clock
from olla_xla.planner import estimate, orders, pipeline, warm_up
from olla_xla.planner.passes import order
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import StopReason
from tests.support.compiles import xla_schedule


def test_what_comes_before_the_search_counts(monkeypatch):
    read, plan_order = pipeline.scheduled_module, order.plan_order
    spent = []

    def slow(*args, **kwargs):
        time.sleep(0.2)
        return read(*args, **kwargs)

    def measured(*args, timing, **kwargs):
        spent.append(clock.now() - timing.began)
        return plan_order(*args, timing=timing, **kwargs)

    monkeypatch.setattr(pipeline, "scheduled_module", slow)
    monkeypatch.setattr(order, "plan_order", measured)
    module = from_hlo_text(warm_up._text())
    plan = planner.plan_module(module, PlanOptions(time_limit=1), target="cpu")
    assert spent[0] >= 0.2
    assert plan.seconds >= 0.2
    assert plan.time_limit == 1


def test_loops_that_may_gain_a_little_are_left_where_the_whole_is_near_its_bound(monkeypatch):
    def asked(look, *_):
        raise LookupError(look.lowered.computation.name)

    monkeypatch.setattr(orders, "solve", asked)
    step, arguments, options = layers_10(batch_size=32, optimizer="sgd")
    module = xla_schedule(jax.jit(step, **options).lower(*arguments))
    plan = planner.plan_module(module, PlanOptions(), target="cpu", schedule_seconds=1.0)
    assert plan.predicted_bytes == plan.xla_predicted_bytes
    assert plan.lower_bound_bytes < plan.predicted_bytes < plan.lower_bound_bytes + 2**18
    assert set(plan.candidates) == {"xla"} and plan.steps == 0
    with pytest.raises(LookupError):
        planner.plan_module(module, PlanOptions(time_limit=60), target="cpu")
    # A budget that XLA's order meets asks for no more.
    own = plan.xla_predicted_bytes
    for overhead in (None, 0.2):
        met = PlanOptions(memory_budget=own, max_overhead=overhead)
        again = planner.plan_module(module, met, target="cpu", schedule_seconds=1.0)
        assert again.order == plan.order and again.steps == 0 and not again.loops
    with pytest.raises(LookupError):
        missed = PlanOptions(memory_budget=own - 1)
        planner.plan_module(module, missed, target="cpu", schedule_seconds=1.0)


def test_where_the_limit_is_over_nothing_is_searched(monkeypatch):
    """Reading and estimates may take all of it; XLA's order is what is left."""
    module = from_hlo_text(warm_up._text())
    at, estimates, asked = [clock.now()], orders._estimates, []
    monkeypatch.setattr(clock, "now", lambda: at[0])
    monkeypatch.setattr(orders, "solve", lambda look, *_: asked.append(look) or 1 / 0)

    def slow(*args, **kwargs):
        at[0] += 6.0
        return estimates(*args, **kwargs)

    monkeypatch.setattr(orders, "_estimates", slow)
    monkeypatch.setattr(estimate, "with_recomputation", lambda *_: asked.append("estimate"))
    monkeypatch.setattr(pipeline, "_LITTLE_BYTES", 0)
    plan = planner.plan_module(module, PlanOptions(time_limit=5, tolerance=0), target="cpu")
    assert not asked and plan.steps == 0 and plan.stopped_by is StopReason.TIME_LIMIT
    assert plan.predicted_bytes == plan.xla_predicted_bytes and plan.source == "xla"
    with pytest.raises(ZeroDivisionError):
        planner.plan_module(module, PlanOptions(time_limit=7, tolerance=0), target="cpu")
    plan = planner.plan_module(module, PlanOptions(time_limit=7), target="cpu")
    assert plan.stopped_by is StopReason.NO_GAIN  # XLA's order is within the tolerance
