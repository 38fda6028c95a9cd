"""Jobs of real processes on this machine's CPU: all run the plan, or none."""

import pytest

from benchmarks.together.cases import CASES, Case, parse_cases
from benchmarks.together.job import run_cases
from olla_xla.errors import InputError

OPTIONS = {"time_limit": 60, "step_limit": 50}


def rows(names, processes=2, patience=20.0):
    found = list(run_cases(parse_cases(names), processes, 1, patience, OPTIONS))
    assert not [row for row in found if row.wrong], found
    return {row.case: row for row in found}


def test_two_processes_run_one_plan_or_none():
    objects, dies = "the referee objects in one", "one is killed before its vote"
    found = rows(["planned", "another jax", objects, dies], patience=8.0)
    planned = found["planned"]
    assert planned.planned == 2 and planned.searches == 1 and planned.bytes < planned.xla_bytes
    assert "in process 1: olla_xla's check failed" in found[objects].message
    assert "0.11.2" in found["another jax"].message
    assert found[dies].planned == 0
    assert "process 1 sent no sign of life for 8 s" in found[dies].message


def test_cases_cover_the_first_and_the_last_process():
    assert {k for case in CASES.values() for k in case.troubles} == {0, -1}
    with pytest.raises(InputError, match="no case 'none'"):
        parse_cases(["none"])
    assert CASES["planned"] == Case(planned=True)
