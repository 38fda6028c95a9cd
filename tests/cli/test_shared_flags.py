"""Flags that commands share, as options of a plan; sweeps filled from rows that are given."""

import contextlib
import itertools

import pytest
from absl import flags

from olla_xla import targets
from olla_xla.cli.commands import max_batch, shared, sweep
from olla_xla.cli.report.tables import Table
from olla_xla.errors import InputError, LimitError
from olla_xla.tools.sweep.grid import Cell
from olla_xla.tools.sweep.journal import Journal

pytestmark = pytest.mark.quick


def parsed(define, *arguments):
    values = flags.FlagValues()
    for one in define:
        one(values)
    values(["made", *arguments])
    return values


ALL = (shared.define_limits, shared.define_recomputation, shared.define_method)


def test_options_are_those_of_the_flags_that_there_are():
    found = shared.options(parsed([shared.define_limits], "--time_limit=3", "--seed=5"))
    assert (found.time_limit, found.seed, found.memory_budget, found.loops) == (3.0, 5, None, True)
    found = shared.options(
        parsed(ALL, "--memory_budget=1KiB", "--max_overhead=0.1", "--collectives", "--step_limit=9")
    )
    assert (found.budget_bytes, found.max_overhead, found.step_limit) == (1024, 0.1, 9)
    both = shared.options(parsed(ALL, "--step_limit=9", "--time_limit=3"))
    assert found.time_limit is None and (both.time_limit, both.step_limit) == (3.0, 9)
    assert found.loops and found.collectives and not shared.options(parsed(ALL, "--noloops")).loops
    found = shared.options(parsed(ALL, "--method=ilp", "--backend=cpsat", "--early_updates"))
    assert (found.method, found.backend, found.early_updates) == ("ilp", "cpsat", True)


@pytest.mark.parametrize(
    ("argument", "error"),
    [("--time_limit=0", LimitError), ("--memory_budget=much", InputError),
     ("--max_overhead=-1", LimitError), ("--step_limit=0", LimitError)],
)  # fmt: skip
def test_options_that_are_none(argument, error):
    with pytest.raises(error):
        shared.options(parsed(ALL, argument))


def overheads(*arguments):
    return shared.overheads(parsed([lambda v: shared.define_overheads(v, "0,0.05")], *arguments))


def test_overheads():
    assert overheads() == [0.0, 0.05] and overheads("--overheads=0.2,5%") == [0.2, 0.05]
    with pytest.raises(InputError, match="'five' is not a number"):
        overheads("--overheads=0.1,five")
    with pytest.raises(LimitError):
        overheads("--overheads=-0.1")


def test_tables_are_printed_as_asked_for(capsys):
    table = Table(("name:", "MB"), [("a|b", "1.5")], "title")
    shared.print_table(parsed([shared.define_format], "--format=markdown"), table)
    assert capsys.readouterr().out == "title\n\n| name | MB |\n| --- | ---: |\n| a\\|b | 1.5 |\n\n"
    shared.print_table(parsed([shared.define_format]), table)
    out = capsys.readouterr().out
    assert out.startswith("title\n") and "|" not in out.replace("a|b", "")


@pytest.mark.parametrize(
    ("arguments", "size", "said"),
    [
        (["--memory=3GiB"], 3 * 2**30, "3,072.0 MB for the step"),
        (["--memory=3GiB", "--target=cpu"], 3 * 2**30, "3,072.0 MB for the step"),
        (["--target=h100"], int(0.75 * targets.card("h100").memory_bytes), "75% of the device's"),
        (["--target=v5e"], int(15.75 * 2**30), "100% of the device's"),
        (["--target=v5e", "--memory_fraction=0.5"], int(7.875 * 2**30), "50% of the device's"),
    ],
)
def test_the_memory_of_a_step(arguments, size, said):
    found, what = max_batch._memory(parsed([max_batch.define_flags], *arguments))
    assert found == size and what.endswith(said)


@pytest.mark.parametrize(
    ("argument", "error", "said"),
    [
        ("--target=cpu", InputError, "give --memory"),
        ("--memory_fraction=0", LimitError, "above 0 and at most 1"),
        ("--memory_fraction=1.01", LimitError, "above 0 and at most 1"),
        ("--memory=x", InputError, "--memory"),
    ],
)
def test_what_is_no_memory(argument, error, said):
    with pytest.raises(error, match=said):
        max_batch._memory(parsed([max_batch.define_flags], argument))


GRID = [Cell("mlp", k, "cpu", "adam", "order") for k in (1, 2, 3)]


def fill(tmp_path, rows):
    """(exit code, cells that were run) of a sweep; `rows`: cell -> row."""
    values = parsed([sweep.define_flags], f"--out={tmp_path / 'sweep.csv'}")
    seen = []

    def run(values, missing):
        for cell in missing:
            seen.append(cell)
            if rows[cell] is None:
                raise KeyboardInterrupt
            yield cell, rows[cell]

    def table(found):
        return Table(("batch", "MB"), [(str(r["batch_size"]), str(r["xla_bytes"])) for r in found])

    journal = Journal(values.out, GRID, sweep.settings(values))
    try:
        code = sweep.fill(journal, values, run, table, lambda found: [f"{len(found)} rows"])
    except KeyboardInterrupt:
        code = None
    return code, seen


def test_a_sweep_goes_on_where_it_was(tmp_path, capsys):
    rows = {cell: {"xla_bytes": 10 * cell.batch_size, "error": ""} for cell in GRID}
    assert fill(tmp_path, {**rows, GRID[2]: None}) == (None, GRID)
    capsys.readouterr()
    assert fill(tmp_path, rows) == (0, GRID[2:])
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert ["1", "10"] in lines and ["3", "30"] in lines and ["3", "rows"] in lines
    assert "3 rows done, 0 failed" in out and "2 of 3 rows are done" in err
    assert "3 of 3, about 0:00 left" in err


def test_the_time_that_is_left(tmp_path, capsys, monkeypatch):
    """Each cell takes ten seconds, by a clock that says so whenever it is asked."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr(sweep.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sweep, "Progress", lambda: contextlib.nullcontext(Stages()))
    fill(tmp_path, {cell: {"xla_bytes": 1, "error": ""} for cell in GRID})
    said = capsys.readouterr().out
    assert "1 of 3, about 0:20 left" in said and "2 of 3, about 0:10 left" in said


class Stages:
    def stage(self, line):
        print(line)


def test_a_cell_that_fails_fails_the_sweep(tmp_path, capsys):
    rows = {cell: {"xla_bytes": 1, "error": "no" if cell is GRID[1] else ""} for cell in GRID}
    assert fill(tmp_path, rows)[0] == 1
    out, err = capsys.readouterr()
    assert "2 rows done, 1 failed" in out and ": no" in err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3600 + 62, "1:01:02")]
)
def test_times(seconds, text):
    assert sweep._time(seconds) == text


def test_a_sweep_runs_the_models_that_are_named():
    assert sweep.model_names(parsed([sweep.define_flags], "--models=a,b")) == ["a", "b"]
    values = parsed([sweep.define_flags], "--executor=dask")
    with pytest.raises(InputError, match="go together"):
        sweep.run(values)
