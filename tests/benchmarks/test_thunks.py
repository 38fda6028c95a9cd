"""Faults in executables of a GPU are all caught, and what XLA makes is accepted."""

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.commands.thunks import faults
from benchmarks.report.thunks import faults_table, thunks_table
from benchmarks.thunks.critical_path import durations
from benchmarks.thunks.mutants import KINDS, mutants
from benchmarks.thunks.rows import Row, is_worse, measured
from benchmarks.thunks.subject import Subject
from hlo.gpu_executable import GpuExecutable, GpuThunk
from hlo.module import module_from_bytes
from hlo.read import from_hlo_text
from hlo.slices import Access, Slice
from olla_xla.errors import InputError
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.path import path_seconds
from olla_xla.remat.cost.roofline import H100, CostModel
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


def _thunk(k, *slices):
    """Reads all its slices but the last one, which it writes."""
    *read, written = (Slice(0, start, size) for start, size in slices)
    accesses = [Access(place, True, False) for place in read]
    return GpuThunk(f"t{k}", "custom_kernel", (*accesses, Access(written, False, True)))


class _Prices:
    """A cost model of one second for t0, two for t1, and so on."""

    device = H100

    def seconds(self, i):
        return 1.0 + int(i.name[1:])


SLICES = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=3)


@given(st.lists(SLICES, max_size=8))
def test_the_longest_chain_is_that_of_the_graph_of_conflicts(rows):
    thunks = tuple(_thunk(k, *slices) for k, slices in enumerate(rows))
    executable = GpuExecutable(thunks, b"", {}, {}, {}, 2)
    lines = [f"  t{k} = f32[] parameter({k})" for k in range(len(rows))] + ["  ROOT z = () tuple()"]
    text = "HloModule m, is_scheduled=true\nENTRY e {\n" + "\n".join(lines) + "\n}\n"
    module = module_from_bytes(from_hlo_text(text))
    found = durations(executable, module, _Prices())  # pyright: ignore[reportArgumentType]
    ends = []
    for k, thunk in enumerate(thunks):
        before = (
            ends[j]
            for j, other in enumerate(thunks[:k])
            for a in thunk.accesses
            for b in other.accesses
            if (a.writes or b.writes)
            and max(a.slice.offset, b.slice.offset) < min(a.slice.end, b.slice.end)
        )
        ends.append(1.0 + k + max(before, default=0.0))
    assert found.chain == max(ends, default=0.0)
    assert found.issued == sum(1.0 + k for k in range(len(rows)))


def test_what_runs_on_another_stream_hides_time():
    module, executable = read("scan")
    cost = CostModel(H100, "cuda")
    view = module_from_bytes(module)
    found = durations(executable, view, cost)
    assert 0 < found.chain <= found.issued < cost.step_seconds(view)


@pytest.mark.parametrize("name", NAMES)
def test_thunks_take_as_long_as_their_module(name):
    module, executable = read(name)
    cost = CostModel(H100, "cuda")
    view = module_from_bytes(module)
    expected = pytest.approx(path_seconds(view, cost), rel=1e-9)
    assert durations(executable, view, cost).issued == expected


def test_a_plan_that_is_worse():
    row = Row("s", "XLA", False, {}, (), 1, 1, 1, 1.0, 1.0, "", 1.0, 1.0, 4, 1)
    assert not is_worse(row, dataclasses.replace(row, issued_seconds=1.009, chain_seconds=2.0))
    assert is_worse(row, dataclasses.replace(row, issued_seconds=1.011))
    assert is_worse(row, dataclasses.replace(row, wrong=2))
