"""A limit of time holds for all of planning: what comes before a search counts too."""

import time

import jax
import pytest

from benchmarks.dropout_steps import layers_10
from hlo.parse import from_hlo_text
from olla_xla import planner
from olla_xla.memory import clock
from olla_xla.planner import orders, pipeline, warm_up
from olla_xla.planner.passes import order
from olla_xla.problem.options import PlanOptions
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
        raise LookupError(look.work.lowered.computation.name)

    monkeypatch.setattr(orders, "solve", asked)
    step, arguments, options = layers_10(batch_size=32, optimizer="sgd")
    module = xla_schedule(jax.jit(step, **options).lower(*arguments))
    plan = planner.plan_module(module, PlanOptions(), target="cpu", schedule_seconds=1.0)
    assert plan.predicted_bytes == plan.xla_predicted_bytes
    assert plan.lower_bound_bytes < plan.predicted_bytes < plan.lower_bound_bytes + 2**18
    assert set(plan.candidates) == {"xla"} and plan.steps == 0
    with pytest.raises(LookupError):
        planner.plan_module(module, PlanOptions(time_limit=1), target="cpu")
