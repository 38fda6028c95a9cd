"""What a user sees of a plan that failed: in the function's text, in errors, and in logs."""

import logging
import traceback

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla.compile import session
from olla_xla.compile.compiles import Compiles
from olla_xla.problem import refusals

ARGUMENTS = jnp.ones((6, 64, 64)), jnp.ones((512, 64))


def step(w, x):
    def loss(w):
        return (jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0] ** 2).mean()

    return w - jax.grad(loss)(w)


def test_a_failed_plan_is_told_by_the_function(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("the planner broke")

    monkeypatch.setattr(session, "planned_within", broken)
    planned = olla_xla.plan(step, time_limit=1)
    assert "nothing planned yet" in repr(planned)
    with pytest.raises(IndexError, match="step has no plan: call or compile"):
        planned.plans[0]
    with pytest.warns(olla_xla.PlanWarning, match="the planner broke"):
        planned(*ARGUMENTS)
    assert "not planned: RuntimeError: the planner broke" in repr(planned)
    with pytest.raises(IndexError, match="step has no plan: RuntimeError: the planner broke"):
        planned.plans[-1]


def test_where_xla_refuses_changed_loops_the_rest_is_planned(monkeypatch, caplog):
    write, refused = Compiles.write, []

    def some(self, module, plan):
        if not plan.loops:
            return write(self, module, plan)
        refused.append(plan)
        return b"no module", ""

    monkeypatch.setattr(Compiles, "write", some)
    planned = olla_xla.plan(step, max_overhead=0.5, step_limit=1000)
    compiled = planned.lower(*ARGUMENTS).compile()
    assert len(refused) == 1 and "XLA refuses to compile the plan's loops" in caplog.text
    assert compiled.plan is not None and not compiled.plan.loops
    assert (compiled(*ARGUMENTS) == jax.jit(step)(*ARGUMENTS)).all()


@pytest.mark.parametrize(
    "use", [lambda f: f(*ARGUMENTS), lambda f: f.lower(*ARGUMENTS).compile()], ids=["call", "lower"]
)
def test_a_budget_that_cannot_be_met_is_said_at_the_caller_s_line(use):
    planned = olla_xla.plan(step, time_limit=1, memory_budget="1KiB")
    with pytest.raises(olla_xla.BudgetError) as caught:
        use(planned)
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert len(lines) <= 12, "\n".join(lines)
    assert any("test_failures_are_seen.py" in line for line in lines)
    assert "so ask for memory_budget=" in lines[-1]


@pytest.mark.refused
def test_a_refusal_is_no_warning(caplog):
    with caplog.at_level(logging.INFO, "olla_xla"):
        refusals.note("a change of loops", ValueError("reason"))
    (record,) = caplog.records
    assert record.levelno == logging.INFO and "a change of loops" in record.getMessage()
