"""Compiling loops counts toward no limit of time."""

import importlib
import sys
import time

import numpy as np
import pytest

from hlo.text import from_hlo_text
from olla_xla import planner
from olla_xla.memory import clock
from olla_xla.place import PlacementProblem, place
from olla_xla.planner import pipeline, warm_up
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import StopReason
from olla_xla.schedule.search import phases


@pytest.mark.parametrize("kind", ["jit", "loop"])
def test_the_clock_stands_still_while_a_loop_is_compiled(kind, tmp_path, monkeypatch):
    """On an empty cache: the loop is new."""
    (tmp_path / f"new_{kind}.py").write_text(
        f"from olla_xla.memory.jit import {kind}\n\n\n@{kind}\ndef total(x):\n"
        "    sum = 0\n    for k in range(len(x)):\n        sum += x[k]\n    return sum\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    total = importlib.import_module(f"new_{kind}").total
    began, counted = time.monotonic(), clock.now()
    assert total(np.arange(4)) == 6
    assert clock.now() - counted < 0.1 * (time.monotonic() - began)


def test_it_goes_on_once_all_have_started_it_again(monkeypatch):
    at = [10.0]
    monkeypatch.setattr(clock, "time", type("", (), {"monotonic": lambda: at[0]}))
    monkeypatch.setattr(clock, "_state", clock._ClockStops())
    seen = [clock.now()]

    def passes(seconds):
        at[0] += seconds
        seen.append(clock.now())

    passes(1.0)
    with clock.stopped():
        passes(2.0)
        with clock.stopped():
            passes(4.0)
        passes(8.0)
    passes(16.0)
    with pytest.raises(KeyError), clock.stopped():
        at[0] += 32.0
        raise KeyError
    passes(64.0)
    assert np.diff(seen).tolist() == [1.0, 0.0, 0.0, 0.0, 16.0, 64.0]


def test_searches_go_by_it(monkeypatch):
    at = [0.0]

    def later():
        at[0] += 1e6
        return at[0]

    monkeypatch.setattr(clock, "now", later)
    problem = PlacementProblem.of([0, 0, 2], [2, 4, 4], [4, 2, 3])
    assert place(problem, method="search").stopped_by is StopReason.TIME_LIMIT
    operators = tuple(Operator(f"o{k}", "add") for k in range(4))
    tensors = tuple(Tensor(f"t{k}", 1 + k, source=k, sinks=(3,), buffer=k) for k in range(3))
    graph = TensorGraph("", operators, tensors)
    found = phases.search(graph, {"own": range(4)}, time_limit=60.0)
    assert found.stopped_by is StopReason.TIME_LIMIT


def test_by_processor_other_programs_take_no_time(monkeypatch):
    at = {"monotonic": 10.0, "thread_time": 3.0}
    fields = {name: (lambda name=name: at[name]) for name in at}
    monkeypatch.setattr(clock, "time", type("", (), fields))
    monkeypatch.setattr(clock, "_state", clock._ClockStops())
    seen = [clock.now()]

    def passes(wall, processor):
        at["monotonic"] += wall
        at["thread_time"] += processor
        seen.append(clock.now())

    with clock.by_processor():
        passes(1.0, 1.0)
        passes(6.0, 1.0)  # five others at the same time
        with clock.by_processor():
            passes(1.0, 1.0)
        with clock.stopped(), clock.stopped():
            passes(9.0, 7.0)
        passes(2.0, 2.0)
        passes(800.0, 0.0)  # it waits, and is over at some time all the same
    passes(1.0, 1.0)
    assert np.diff(seen).tolist() == [1.0, 1.0, 1.0, 0.0, 2.0, 810 / 8 - 5, 811 - 810 / 8]


@pytest.mark.parametrize(("options", "counts"), [({}, False), ({"time_limit": 60.0}, True)])
def test_a_limit_that_nobody_set_does_not_count_what_a_plan_waits(options, counts, monkeypatch):
    read, passed = pipeline.scheduled_module, []

    def waits(*args):
        began = clock.now()
        time.sleep(0.4)
        passed.append(clock.now() - began)
        return read(*args)

    monkeypatch.setattr(pipeline, "scheduled_module", waits)
    module = from_hlo_text(warm_up._text())
    plan = planner.plan_module(module, PlanOptions(**options), target="cpu")
    assert (passed[0] > 0.3) == counts
    assert plan.seconds > 0.4
