"""The planner inside XLA's compile, and trouble in it."""

import dataclasses
import re

import numpy as np

from olla_xla import planner
from olla_xla.compile import session
from olla_xla.errors import LimitError
from olla_xla.tools.capture import capture
from tests.support.planned_steps import (
    OPTIONS,
    arguments,
    assert_hook_idle,
    branches,
    compile_planned,
    depth_first,
    fresh,
)


def test_orders_of_xlas_scheduler_for_memory(monkeypatch):
    lowered = fresh(branches).lower(*arguments())
    captured = capture(lowered)
    assert captured.alternative_orders is not None
    orders = captured.alternative_orders()
    assert_hook_idle()
    own = planner.module_order(captured.module)
    assert {k: set(v) for k, v in orders.items()} == {k: set(v) for k, v in own.items()}
    assert orders != own
    assert lowered.compile()(*arguments())  # the compile that was ended left nothing behind
    # Asked for, it is one of the orders that compete.
    asked = []
    found = planner.plan_module(
        captured.module, OPTIONS, target="cpu", alternative_orders=lambda: asked.append(1) or orders
    )
    assert not asked and "xla_memory" not in found.candidates
    monkeypatch.setattr("olla_xla.planner.computation._MORE", -1.0)
    options = dataclasses.replace(OPTIONS, step_limit=1)
    found = planner.plan_module(
        captured.module, options, target="cpu", alternative_orders=lambda: orders
    )
    assert found.predicted_bytes <= found.candidates["xla_memory"][0]


def test_a_limit_that_reading_the_module_foretells_to_be_too_short_is_kept(monkeypatch, compiles):
    monkeypatch.setattr(session, "_ALL_OF_PLANNING", 1e9)
    monkeypatch.setattr(planner, "plan_module", None)  # would be called
    outcome = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments()))
    assert isinstance(outcome.error, LimitError) and outcome.fell_back
    assert re.fullmatch(
        r"time_limit=2.0 is too short: planning this step takes at least [\d.]+ s, so ask for "
        r"time_limit=\d+ or more",
        outcome.reason,
    )
    assert len(compiles) == 1


def test_an_illegal_order_never_runs(monkeypatch, tmp_path):
    monkeypatch.setattr("olla_xla.compile.objection.user_cache", lambda: tmp_path)

    def backwards(module, options, **kwargs):
        plan = depth_first(module, options, **kwargs)
        return dataclasses.replace(plan, order={k: v[::-1] for k, v in plan.order.items()})

    monkeypatch.setattr(planner, "plan_module", backwards)
    outcome = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments()))
    assert "whose result it needs" in outcome.objection == outcome.reason and not outcome.planned
    for a, b in zip(outcome.compiled(*arguments()), branches(*arguments()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
