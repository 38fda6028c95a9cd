"""What a plan must not make worse on a GPU, and what comes of one that does."""

import dataclasses
import functools
import logging

import jax
import jax.numpy as jnp
import pytest

from benchmarks.sharded.steps import STEPS, Sizes
from hlo.dumps.read import from_hlo_text
from hlo.gpu_executable import GpuExecutable, GpuThunk
from hlo.module import module_from_bytes
from olla_xla import targets
from olla_xla.compile import gpu_limits
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.gpu_limits import Ran, reason_of_plan, worse
from olla_xla.planner import pipeline
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import dumps, loads
from olla_xla.remat.cost.path import path_seconds
from olla_xla.remat.cost.roofline import H100, CostModel
from tests.compile.test_gpu_code import lowered
from tests.support.compiles import h100_device, on_h100
from tests.support.plans import made_plan

COST = CostModel(H100, "cuda")

_TEXT = """HloModule m, is_scheduled=true
fused {
  p = f32[8] parameter(0)
  ROOT n = f32[8] negate(p)
}
ENTRY e {
  p = f32[8] parameter(0)
  one = f32[8] fusion(p), kind=kLoop, calls=fused
  two = f32[8] fusion(one), kind=kLoop, calls=fused, MARK
  ROOT three = f32[8] fusion(two), kind=kLoop, calls=fused
}
"""
MARKED = _TEXT.replace("MARK", 'frontend_attributes={xla.no_invariant_operands="0"}')
PLAIN = _TEXT.replace(", MARK", "")


def ran(text):
    thunks = tuple(GpuThunk(n, "custom_kernel", kernel="one") for n in ("one", "two", "three"))
    return Ran(from_hlo_text(text), GpuExecutable(thunks, b"", {}, {}, {}, 2))


plan = functools.partial(made_plan, target="cuda")


def never():
    raise AssertionError("XLA's own executable is compiled for nothing")


def longer(text):
    return text.replace(
        "ROOT three", "more = f32[8] fusion(two), kind=kLoop, calls=fused\n  ROOT three"
    )


def test_what_is_as_good_needs_no_comparison():
    seconds = path_seconds_of(PLAIN)
    found = plan(path_seconds=seconds, xla_path_seconds=seconds)
    assert worse(found, ran(PLAIN), never, COST, as_it_is=False) == ""


def path_seconds_of(text):
    return path_seconds(module_from_bytes(from_hlo_text(text)), COST)


def test_an_executable_that_takes_longer_than_xlas_own():
    seconds = path_seconds_of(PLAIN)
    found = plan(path_seconds=seconds, xla_path_seconds=seconds)
    more = longer(PLAIN)
    text = worse(found, ran(more), lambda: ran(PLAIN), COST, as_it_is=False)
    assert "the plan is predicted to take" in text
    # What XLA adds to both is not the plan's.
    assert worse(found, ran(more), lambda: ran(more), COST, as_it_is=False) == ""
    # What was asked for may take its time.
    allowed = dataclasses.replace(found, added_seconds=seconds)
    assert worse(allowed, ran(more), never, COST, as_it_is=False) == ""


def test_more_loads_that_are_taken_for_invariant():
    found = plan()
    text = worse(found, ran(MARKED), lambda: ran(PLAIN), COST, as_it_is=True)
    assert text.startswith("1 fusions would read memory with invariant loads") and "two" in text
    assert worse(found, ran(MARKED), lambda: ran(MARKED), COST, as_it_is=True) == ""
    assert worse(found, Ran(b"", None), never, COST, as_it_is=True) == ""


def test_a_plan_says_itself_that_it_takes_longer():
    assert reason_of_plan(plan()) == ""
    assert reason_of_plan(plan(path_seconds=1.01, xla_path_seconds=1.0)) == ""
    slow = plan(path_seconds=1.02, xla_path_seconds=1.0)
    assert "2.0 % longer" in reason_of_plan(slow)
    assert reason_of_plan(dataclasses.replace(slow, added_seconds=0.02)) == ""
    assert loads(dumps(slow)) == slow and slow.slowdown == pytest.approx(0.02)
    assert "time of a run" in slow.summary() and "+2.00 %" in slow.summary()
    assert "time of a run" not in plan().summary()


@pytest.mark.cuda13
def test_a_plan_has_the_time_of_a_run_before_and_after():
    found = lowered().compile()
    assert found.planned and found.plan is not None, found.reason
    assert 0 < found.plan.path_seconds <= 1.01 * found.plan.xla_path_seconds


@pytest.mark.cuda13
@pytest.mark.parametrize("when", ["planned", "compiled"])
def test_a_plan_that_takes_longer_is_not_used(monkeypatch, when):
    if when == "planned":
        finished = pipeline.ModuleState.finished
        monkeypatch.setattr(
            pipeline.ModuleState,
            "finished",
            lambda self: dataclasses.replace(finished(self), path_seconds=1.0),
        )
    else:
        seen = []
        wrong = "2 fusions would read memory with invariant loads while a kernel writes it (0 "

        def found(*args, **kwargs):
            seen.append(args)
            return wrong

        monkeypatch.setattr("olla_xla.compile.compiles.worse", found)
    result = lowered(seed=7).compile()
    assert not result.planned and result.plan is not None
    assert ("longer" if when == "planned" else "invariant") in result.reason
    assert result.plan.keeps_xla and result.plan.slowdown == 0.0
    assert gpu_limits.reason_of_plan(result.plan) == ""


def _scanned(weights, x):
    """Its loops store what they keep on streams of their own."""

    def loss(weights):
        layer = lambda c, w: (jnp.tanh(jnp.sin(c @ w) * c), None)  # noqa: E731
        return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


SCANNED = (
    jax.ShapeDtypeStruct((6, 256, 256), jnp.float32),
    jax.ShapeDtypeStruct((1024, 256), jnp.float32),
)


@pytest.mark.cuda13
def test_time_that_residuals_add_is_that_on_the_streams():
    lowered = jax.jit(_scanned, donate_argnums=0).lower(*on_h100(SCANNED))
    module = Compiles(lowered, None, {}).capture().module

    def planned(overhead):
        options = PlanOptions(step_limit=500, max_overhead=overhead)
        return pipeline.plan_module(module, options, target="cuda")

    found, less = planned(0.3), planned(0.1)
    assert found.loops and found.predicted_bytes < 0.6 * found.xla_predicted_bytes
    added = found.path_seconds - found.xla_path_seconds
    assert 0.1 * found.step_seconds < added == pytest.approx(found.added_seconds)
    assert not less.loops, "one after the other it would take no longer; on the streams it does"


@pytest.mark.cuda13
def test_residuals_that_were_stored_beside_other_work_are_no_gain(caplog):
    h100_device()
    caplog.set_level(logging.INFO, "olla_xla")
    step = STEPS["fsdp scanned"](targets.target("h100", 8).devices, Sizes())
    lowered = jax.jit(step.function, donate_argnums=(0, 1)).lower(*step.shapes)
    module = Compiles(lowered, None, {}).capture().module
    found = pipeline.plan_module(module, PlanOptions(step_limit=500), target="cuda")
    assert "with loops the predicted time is 3.6 % above XLA's order" in caplog.text
    assert found.loops and found.slowdown <= 0.01 and found.added_seconds <= 0
    assert found.predicted_bytes < 0.95 * found.xla_predicted_bytes
