"""What `olla_xla plan` shows beside a plan, from compiles that are given; and its progress."""

import logging

import pytest

from olla_xla.errors import OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.targets import target
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
        "choosing scan residuals to recompute, attempt 1",
        "choosing operators to recompute",
        "checking the plan",
        "XLA compiles the step with its schedule",
        "checking XLA's buffer assignment",
    ]
    assert [line for line in dict.fromkeys(lines) if line in phases] == phases
