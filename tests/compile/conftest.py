"""Fixtures of the tests of planned compiles."""

import jax
import pytest

from olla_xla import planner
from olla_xla.remat.cost.calibrate import is_measuring
from tests.support.planned_steps import depth_first


@pytest.fixture
def depth_first_planner(monkeypatch):
    monkeypatch.setattr(planner, "plan_module", depth_first)


@pytest.fixture
def compiles():
    """Counts XLA compiles, but for those of the benchmarks that measure a machine once."""
    count = []

    def listener(event, duration, **kwargs):
        if event.endswith("backend_compile_duration") and not is_measuring():
            count.append(kwargs.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listener)
    return count
