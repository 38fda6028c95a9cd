"""What `olla_xla plan` shows beside a plan, from compiles that are given; and its progress."""

import logging
import types

import pytest

from olla_xla.compile.captured import Captured
from olla_xla.errors import OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.targets import target
from olla_xla.tools import step as steps
from olla_xla.tools.models import BuiltModel
from olla_xla.tools.step import plan_model, plan_progress
from tests.support.loops import STEPS

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
