"""Faults in executables of a GPU are all caught, and what XLA makes is accepted."""

import random

import pytest

from benchmarks.commands.thunks import faults
from benchmarks.report.thunks import faults_table, thunks_table
from benchmarks.thunks.mutants import KINDS, mutants
from benchmarks.thunks.rows import measured
from benchmarks.thunks.subject import Subject
from olla_xla.errors import InputError
from olla_xla.problem.options import PlanOptions
from tests.support.compiles import h100_device
from tests.support.gpu_executables import read

NAMES = ("chain", "scan", "exchanged", "branches", "solved")


@pytest.mark.parametrize("name", NAMES)
def test_every_fault_is_caught(name):
    subject = Subject(name, *read(name))
    assert not subject.verdict(subject.executable)
    kinds = set()
    for kind in KINDS:
        for made, _ in zip(mutants(subject, kind, random.Random(0)), range(12), strict=False):
            assert made.executable != subject.executable
            assert subject.verdict(made.executable), f"{kind}: {made.what}"
            kinds.add(kind)
    assert len(kinds) >= 4


def test_a_value_that_is_moved_by_xla_itself():
    """Assignment and thunks agree on it, and the schedule over its bytes is what is wrong."""
    subject = Subject("chain", *read("chain"))
    said = set()
    for value, place in subject.clashes():
        said.add(subject.verdict(subject.moved(value, place)).partition(" ")[0])
    assert said and "" not in said and "thunk" not in said


def test_as_many_faults_as_wanted():
    subjects = [Subject(name, *read(name)) for name in ("chain", "scan")]
    found = faults(subjects, 30, seed=1)
    assert len(found) == 30 and found == faults(subjects, 30, seed=1)
    assert {kind for _, kind, *_ in found} >= {"slices exchanged", "a start's buffer reused"}
    rows = faults_table([*found, ("chain", "slices exchanged", "this one", "")]).rows
    assert rows[-1][-1] == "chain: this one"


@pytest.mark.slow
def test_rows_of_a_step():
    h100_device()
    subjects = []
    options = PlanOptions(time_limit=20, step_limit=500)
    rows = list(measured("mlp", 4, "h100", options, subjects))
    assert [row.way for row in rows] == ["XLA", "planned"] and len(subjects) == 2
    assert all(row.kinds["custom_kernel"] and not row.objection for row in rows)
    assert len(thunks_table(rows).rows) == 2
    with pytest.raises(InputError):
        list(measured("nothing", 1, "h100", options, subjects))
