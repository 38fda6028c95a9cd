"""What `olla_xla plan` shows beside a plan, from compiles that are given; and its progress."""

import logging
import time
import types

import pytest

from olla_xla.compile.captured import Captured
from olla_xla.errors import OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.targets import target
from olla_xla.tools import step as steps
from olla_xla.tools.models import BuiltModel
from olla_xla.tools.step import _beside, _Outcome, plan_model, plan_progress
from tests.support.loops import STEPS
from tests.support.plans import made_plan as plan

pytestmark = pytest.mark.quick


def test_progress_is_what_the_planner_logs():
    logger, lines = logging.getLogger("olla_xla"), []
    before = logger.level, logger.propagate, list(logger.handlers)
    with plan_progress(lines.append):
        logging.getLogger("olla_xla.search").debug("%s bytes", 12)
        logger.info("done")
    assert lines == ["12 bytes", "done"]
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_progress_ends_where_planning_fails():
    logger, lines = logging.getLogger("olla_xla"), []
    handlers = list(logger.handlers)
    with pytest.raises(OllaError), plan_progress(lines.append):
        raise OllaError("planning failed")
    logger.warning("later")
    assert not lines and logger.handlers == handlers


@pytest.fixture
def beside(monkeypatch):
    """`_beside` for an outcome, with the stages that it told of."""
    monkeypatch.setattr(steps, "final_module", lambda compiled: b"final")
    monkeypatch.setattr(steps, "assigned_bytes", lambda compiled: compiled)
    own = types.SimpleNamespace(assigned_bytes=77, module=b"own", is_refused=True)

    def run(target, planned=True, optimized=lambda options: 55):
        outcome = _Outcome(plan(), planned, "why", "compiled", "report", "assignment")
        stages, seen = [], []

        def with_options(options):
            seen.append(options)
            return optimized(options)

        found = _beside(
            outcome, types.SimpleNamespace(platform=target), stages.append, time.monotonic(),
            lambda: own, None if optimized is None else with_options,
        )  # fmt: skip
        return found, stages, seen

    return run


def test_a_plan_stands_beside_xlas_own_order_and_its_order_for_memory(beside):
    found, stages, seen = beside("cpu")
    assert found.plan.xla_bytes == 77 and found.memory_optimized_bytes == 55
    assert (found.scheduled, found.refused, found.module) == (b"own", True, b"final")
    assert len(stages) == 2 and seen and all(isinstance(options, dict) for options in seen)
    assert found.plan.predicted_bytes == plan().predicted_bytes


def test_where_xlas_order_is_kept_it_is_not_compiled_again(beside):
    found, stages, _ = beside("cpu", planned=False, optimized=None)
    assert found.plan == plan() and not stages
    assert (found.scheduled, found.refused, found.memory_optimized_bytes) == (b"", False, None)


def test_a_gpu_has_no_scheduler_for_memory(beside):
    found, stages, seen = beside("cuda")
    assert found.memory_optimized_bytes is None and not seen and len(stages) == 1


def test_a_step_that_does_not_fit_has_the_total_that_xla_had_assigned(monkeypatch):
    class Compiles:
        def __init__(self, lowered, options, kwargs):
            pass

        def capture(self):
            return Captured("cuda", b"scheduled", None, device_kind="card")

    def refuse(lowered):
        raise RuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(steps, "capture", refuse)
    monkeypatch.setattr(steps, "Compiles", Compiles)
    monkeypatch.setattr(
        steps, "refused_executable",
        lambda lowered, platform, options: (b"final", types.SimpleNamespace(total_bytes=9)),
    )  # fmt: skip
    monkeypatch.setattr(steps, "is_refusal", lambda error, platform: platform == "cuda")
    found = steps._own("lowered", types.SimpleNamespace(platform="cuda"))
    assert (found.assigned_bytes, found.module, found.final) == (9, b"scheduled", b"final")
    assert found.is_refused and found.device_kind == "card"
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        steps._own("lowered", types.SimpleNamespace(platform="cpu"))


def test_each_phase_of_planning_is_named_while_it_runs():
    """XLA's compile before and after too; what ran last has the shortest clock."""
    step, arguments = STEPS["gated"]()
    model = BuiltModel("step", 1, "none", step, arguments, {}, make=step)
    lines = []
    plan_model(
        model,
        target("cpu"),
        PlanOptions(max_overhead=1.0, step_limit=50),
        stage=lines.append,
        progress=lines.append,
        compare=False,
    )
    phases = [
        "tracing",
        "XLA compiles the step",
        "searching for an order",
        "choosing scan residuals to recompute, choice 1",
        "choosing operators to recompute",
        "checking the plan",
        "XLA compiles the step with its schedule",
        "checking XLA's buffer assignment",
    ]
    assert [line for line in dict.fromkeys(lines) if line in phases] == phases
