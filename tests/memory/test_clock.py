"""Compiling loops counts toward no limit of time."""

import importlib
import sys
import time

import numpy as np
import pytest

from olla_xla.memory import clock, jit
from olla_xla.place import PlacementProblem, place
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.problem.stop_reason import StopReason
from olla_xla.schedule.search import phases


@pytest.mark.parametrize("kind", ["jit", "loop"])
def test_the_clock_stands_still_while_a_loop_is_compiled(kind, tmp_path, monkeypatch):
    """On an empty cache: the loop is new."""
    monkeypatch.setattr(jit, "_patience", 0.0)  # a small step's plan leaves another
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
    monkeypatch.setattr(clock, "_state", clock._State())
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
