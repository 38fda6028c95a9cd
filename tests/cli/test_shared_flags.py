"""Flags that commands share, as options of a plan; sweeps filled from rows that are given."""

import pytest
from absl import flags

from olla_xla import targets
from olla_xla.cli.commands import max_batch, shared, sweep
from olla_xla.cli.report.tables import Table
from olla_xla.errors import InputError, LimitError
from olla_xla.tools.sweep.grid import Cell, Journal

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
        (["--memory=3GiB"], 3 * 2**30, "the step may use 3,072.0 MB"),
        (["--memory=3GiB", "--target=cpu"], 3 * 2**30, "the step may use 3,072.0 MB"),
        (
            ["--target=h100"],
            int(0.75 * targets.card("h100").memory_bytes),
            "75% of the device's memory",
        ),
        (["--target=v5e"], int(15.75 * 2**30), "100% of the device's memory"),
        (
            ["--target=v5e", "--memory_fraction=0.5"],
            int(7.875 * 2**30),
            "50% of the device's memory",
        ),
    ],
)
def test_the_memory_of_a_step(arguments, size, said):
    found, what = max_batch._memory(parsed([max_batch.define_flags], *arguments))
    assert found == size and what.endswith(said)


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
    assert "3 rows done, 0 failed" in out and "2 of 3 rows of the table are done" in err
    assert "3 of 3, about 0:00 left" in err
