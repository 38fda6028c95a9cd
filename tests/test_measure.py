"""Planned and unplanned steps run in fresh processes and are compared."""

import dataclasses

import pytest

from olla_xla.errors import InputError, OllaError
from olla_xla.measure import Request, compare, measure
from tests.measurements import measured

REQUEST = Request("mlp", 8, "adam", steps=3, planned=True, time_limit=5.0, step_limit=2000)


def test_the_first_difference_is_named():
    assert compare(measured(), measured()) == ""
    other = measured(digests=(("a", "b"), ("c", "x")))
    assert compare(measured(), other) == "output loss differs after step 2"
    assert "structures" in compare(measured(), measured(leaves=("loss",)))
    assert compare(measured(), measured(digests=(("a", "b"),))) == "2 steps planned, 1 unplanned"


def test_real_processes_agree_bit_for_bit():
    stages = []
    result = measure(REQUEST, stages.append)
    assert result.difference == "" and result.time_ratio > 0
    assert result.planned.cached and result.unplanned.cached  # nothing compiled while measuring
    assert len(result.planned.digests) == 3 and len(result.planned.step_seconds) == 2
    assert result.planned.xla_bytes == result.unplanned.assigned_bytes
    assert result.planned.assigned_bytes <= result.unplanned.assigned_bytes
    assert result.planned.process_peak_bytes > result.planned.assigned_bytes
    digests = result.planned.digests
    assert digests[0] != digests[1]  # the state went around: the comparison sees later steps
    assert stages[0] == "unplanned: compiling" and stages[-1] == "planned: running 3 steps"


def test_misuse():
    with pytest.raises(InputError, match="steps=1 must be at least 2"):
        measure(dataclasses.replace(REQUEST, steps=1), print)
    with pytest.raises(InputError, match="unknown model 'nothing'"):
        measure(dataclasses.replace(REQUEST, model="nothing"), print)


def test_a_process_that_dies_is_reported(monkeypatch):
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "nonsense")
    with pytest.raises(OllaError, match="the unplanned process ended with code"):
        measure(REQUEST, print)
