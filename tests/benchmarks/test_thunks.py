"""Faults in executables of a GPU are all caught, and what XLA makes is accepted."""

import dataclasses
import json
import random

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.commands.thunks import faults, in_pairs, summary_table, thunks_table
from benchmarks.dumped_assignment import same_places
from benchmarks.thunks.critical_path import durations
from benchmarks.thunks.faults import faults_table
from benchmarks.thunks.mutants import KINDS, mutants
from benchmarks.thunks.rows import NotCompiledError, Row, is_worse, measured
from benchmarks.thunks.steps import Step, steps
from benchmarks.thunks.subject import Subject
from hlo.dumps.read import from_hlo_text
from hlo.gpu_executable import GpuExecutable, GpuThunk
from hlo.module import module_from_bytes
from hlo.slices import Access, Slice
from olla_xla.errors import InputError
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.path import path_seconds
from olla_xla.remat.cost.roofline import H100, CostModel
from tests.support.compiles import h100_device
from tests.support.gpu_executables import read

NAMES = ("chain", "scan", "exchanged", "branches", "solved")


@pytest.mark.cuda13
@pytest.mark.parametrize("name", [*NAMES, "offloaded"])
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


@pytest.mark.cuda13
def test_a_value_that_is_moved_by_xla_itself():
    """Assignment and thunks agree on it, and the schedule over its bytes is what is wrong."""
    subject = Subject("chain", *read("chain"))
    said = set()
    for value, place in subject.clashes():
        said.add(subject.verdict(subject.moved(value, place)).partition(" ")[0])
    assert said and "" not in said and "thunk" not in said


@pytest.mark.cuda13
def test_as_many_faults_as_wanted():
    subjects = [Subject(name, *read(name)) for name in ("chain", "scan")]
    found = faults(subjects, 30, seed=1)
    assert len(found) == 30 and found == faults(subjects, 30, seed=1)
    assert {kind for _, kind, *_ in found} >= {"slices exchanged", "a start's buffer reused"}
    rows = faults_table([*found, ("chain", "slices exchanged", "this one", "")]).rows
    assert rows[-1][-1] == "chain: this one"


@pytest.mark.cuda13
@pytest.mark.slow
def test_rows_of_a_step():
    h100_device()
    subjects = []
    options = PlanOptions(time_limit=20, step_limit=500)
    (step,) = steps(["mlp"], [4], "h100", 0)
    rows = measured(step, "h100", options, subjects)
    assert [row.way for row in rows] == ["XLA", "planned"] and len(subjects) == 2
    assert all(row.kinds["custom_kernel"] and not row.objection for row in rows)
    assert len(thunks_table(rows).rows) == 2
    (step,) = steps(["nothing"], [1], "h100", 0)
    with pytest.raises(InputError):
        measured(step, "h100", options)


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


@pytest.mark.cuda13
def test_what_runs_on_another_stream_hides_time():
    module, executable = read("scan")
    cost = CostModel(H100, "cuda")
    view = module_from_bytes(module)
    found = durations(executable, view, cost)
    assert 0 < found.chain <= found.issued < cost.step_seconds(view)


@pytest.mark.cuda13
@pytest.mark.parametrize("name", NAMES)
def test_thunks_take_as_long_as_their_module(name):
    module, executable = read(name)
    cost = CostModel(H100, "cuda")
    view = module_from_bytes(module)
    expected = pytest.approx(path_seconds(view, cost), rel=1e-9)
    assert durations(executable, view, cost).issued == expected


def test_a_plan_that_is_worse():
    row = _row()
    assert not is_worse(row, dataclasses.replace(row, issued_seconds=1.009, chain_seconds=2.0))
    assert is_worse(row, dataclasses.replace(row, issued_seconds=1.011))
    assert is_worse(row, dataclasses.replace(row, wrong=2))


def test_steps_by_name():
    names = [
        step.name for step in steps(["gpt", "resnet50/32/momentum", "fsdp"], [1, 2], "h100", 0)
    ]
    assert names == ["gpt/1/adam", "gpt/2/adam", "resnet50/32/momentum", "fsdp"]
    assert len(steps(["zoo"], [1, 32], "h100", 0)) == 40
    assert len(steps(["scans"], [1], "h100", 0)) == 4
    assert len(steps(["sharded"], [1], "h100", 0)) == 10
    found = [step.name for step in steps(["schedule"], [1], "h100", 0)]
    assert len(found) == 12 and "vgg11/32/sgd" in found
    assert [step.name for step in steps(["maxtext:model_name=llama2-7b"], [1], "h100", 0)] == [
        "maxtext:model_name=llama2-7b"
    ]
    first, second = (steps(["programs:3"], [1], "h100", seed) for seed in (1, 2))
    assert len(first) == 3 and first[0].name != second[0].name


@pytest.mark.parametrize("name", ["gpt/x/adam", "programs:many"])
def test_names_that_cannot_be_read(name):
    with pytest.raises(InputError, match="must read"):
        steps([name], [1], "h100", 0)


def test_a_step_that_xla_does_not_compile_is_said_to_be_none_of_ours():
    class Lowered:
        def compile(self, options):
            raise jax.errors.JaxRuntimeError("INTERNAL: no such library\nand more")

    step = Step("s", lambda: lambda options: Lowered())
    with pytest.raises(NotCompiledError, match="s: XLA does not compile it: .*library$"):
        measured(step, "h100", PlanOptions())


def _row(**changes):
    row = Row("s", "XLA", False, {"copy": 2}, (), 1, 1, 1, 10.0, 0.2, "", 1.0, 1.0, 4, 1)
    return dataclasses.replace(row, **changes)


def test_all_rows_together():
    planned = _row(way="planned", planned=True, kinds={"copy": 1, "gemm": 1}, unknown=("gemm",))
    planned = dataclasses.replace(planned, issued_seconds=1.02, seconds=0.4, wrong=3, objection="x")
    rows = [_row(), planned, _row(case="t"), _row(case="t", way="planned")]
    assert in_pairs(rows) == [(rows[0], planned), (rows[2], rows[3])]
    said: dict[str, str] = {name: text for name, text in summary_table(rows).rows}
    assert said["executables"] == "4" and said["of steps that are planned"] == "1"
    assert said["that the check rejects"] == "1"
    assert said["kinds of thunks"] == "copy 7, gemm 1" and said["kinds not known"] == "gemm"
    assert said["steps with more under the plan"] == "1"
    assert said["check, fraction of all compiles"] == "2.5%"
    assert said["check, largest fraction"] == "4.0%: s, planned"
    assert said["run planned, longest against XLA's"] == "+2.00%: s"


def test_rows_of_an_earlier_run(tmp_path, capsys):
    """A step whose rows are there is not compiled again, and counts."""
    path = tmp_path / "rows.json"
    rows = [_row(case="mlp/1/adam", unknown=("gemm",)), _row(case="mlp/1/adam", way="planned")]
    path.write_text(json.dumps({"rows": [dataclasses.asdict(row) for row in rows], "faults": []}))
    command = ["benchmarks", "thunks", "--steps=mlp", "--mutants=0", "--resume", f"--out={path}"]
    assert main(command) == 0
    assert "gemm" in capsys.readouterr().out
    path.write_text(
        json.dumps({"rows": [dataclasses.asdict(_row(objection="no", case="mlp/1/adam"))]})
    )
    assert main(command) == 1
    path.write_text("[]")
    assert main(command) == 2
    assert "holds no rows" in capsys.readouterr().err
    assert main(command[:-1]) == 2
    assert main(["benchmarks", "thunks", "--batch_sizes=1,none"]) == 2


@pytest.mark.cuda13
def test_places_are_held_to_the_dump():
    subject = Subject("chain", *read("chain"))
    module, executable = read("chain")
    count, difference = same_places(module, executable, module, executable.assignment)
    assert count > 10 and not difference
    value, place = next(subject.clashes())
    moved = subject.moved(value, place)
    found, difference = same_places(module, executable, module, moved.assignment)
    assert found == count - 1 and difference.startswith(value.name)
    thunks = [t for t in executable.thunks if any(a.writes and a.slice.size for a in t.accesses)]
    k = executable.thunks.index(thunks[0])
    row = tuple(dataclasses.replace(a, slice=Slice(0, 3, 5)) for a in thunks[0].accesses)
    changed = dataclasses.replace(thunks[0], accesses=row)
    thunks = (*executable.thunks[:k], changed, *executable.thunks[k + 1 :])
    other = dataclasses.replace(executable, thunks=thunks)
    _, difference = same_places(module, other, module, executable.assignment)
    assert difference == f"{changed.name} writes where the dump has no tensor"
