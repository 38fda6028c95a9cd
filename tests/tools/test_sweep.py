"""Sweeps: the grid, rows that survive a kill, processes, a cluster."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from olla_xla.cli import main
from olla_xla.errors import InputError
from olla_xla.tools.sweep import process
from olla_xla.tools.sweep.grid import COLUMNS, Cell, Journal, SweepSettings, cells
from olla_xla.tools.sweep.process import KILLED, run_process

SETTINGS = SweepSettings(time_limit=2.0, step_limit=2000, seed=0, cell_timeout=300.0)
FLAGS = ("--batch_sizes=1,2", "--targets=cpu", "--time_limit=2", "--step_limit=2000")


def grid(models=("mlp", "lenet"), sizes=("1", "8"), modes=("order",)):
    return cells(models, sizes, ("cpu",), ("adam",), modes, targets=("cpu", "h100"))


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def untimed(rows):
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


def test_grid():
    assert [(c.model, c.batch_size) for c in grid()] == [
        ("mlp", 1), ("mlp", 8), ("lenet", 1), ("lenet", 8),
    ]  # fmt: skip
    assert str(grid()[1]) == "mlp, batch 8, cpu, adam, order"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"models": ()}, "--models is empty"),
        ({"models": ("mlp", "mlp")}, "--models contains a name twice"),
        ({"sizes": ("0",)}, "'0' is not a positive integer"),
        ({"modes": ("fast",)}, "--modes: 'fast' is not one of order, overhead"),
    ],
)
def test_grids_that_are_none(changed, message):
    with pytest.raises(InputError, match=message):
        grid(**changed)


def test_rows_come_in_the_order_of_the_grid(tmp_path):
    out, whole = tmp_path / "rows.csv", grid()
    journal = Journal(str(out), whole, SETTINGS)
    for cell in (whole[2], whole[0]):
        journal.add(cell, {"xla_bytes": 5, "error": ""})
    assert [row["model"] for row in read(out)] == ["mlp", "lenet"]
    assert tuple(read(out)[0]) == COLUMNS
    lines = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    assert [line["model"] for line in lines[1:]] == ["lenet", "mlp"]
    with pytest.raises(ValueError, match="no columns"):
        journal.add(whole[1], {"colour": 1})


def test_a_torn_line_is_dropped_and_nothing_doubled(tmp_path):
    out, whole = tmp_path / "rows.csv", grid()
    journal = Journal(str(out), whole, SETTINGS)
    journal.add(whole[0], {"xla_bytes": 5})
    lines = out.with_suffix(".jsonl")
    text = lines.read_text()
    lines.write_text(text + text.splitlines()[1][:30])
    again = Journal(str(out), whole, SETTINGS)
    assert again.missing == whole[1:] and lines.read_text() == text
    again.add(whole[1], {"xla_bytes": 6})
    assert [row["xla_bytes"] for row in read(out)] == ["5", "6"]
    lines.write_text("{")  # killed while the very first line was written
    assert Journal(str(out), whole, SETTINGS).missing == whole


def test_rows_of_a_wider_sweep_are_kept(tmp_path):
    out = tmp_path / "rows.csv"
    Journal(str(out), grid(), SETTINGS).add(grid()[3], {"xla_bytes": 5})
    narrow = Journal(str(out), grid()[:1], SETTINGS)
    assert narrow.missing == grid()[:1] and [row["xla_bytes"] for row in read(out)] == ["5"]


def test_files_of_something_else(tmp_path):
    out = tmp_path / "rows.csv"
    Journal(str(out), grid(), SETTINGS)
    other = SweepSettings(time_limit=3.0, step_limit=None, seed=0, cell_timeout=300.0)
    with pytest.raises(InputError, match="other limits or another seed"):
        Journal(str(out), grid(), other)
    out.with_suffix(".jsonl").write_text("a letter\n")
    with pytest.raises(InputError, match="was not written by a sweep"):
        Journal(str(out), grid(), SETTINGS)
    with pytest.raises(InputError, match="cannot write"):
        Journal(str(tmp_path / "no" / "rows.csv"), grid(), SETTINGS)
    with pytest.raises(InputError, match="must not end in .jsonl"):
        Journal(str(tmp_path / "rows.jsonl"), grid(), SETTINGS)


def test_a_real_cell_whose_total_quick_code_does_not_change(monkeypatch):
    """It compiles without optimizing machine code, unless told otherwise."""
    cell = Cell("mlp", 2, "cpu", "sgd", "order")
    row = run_process(cell, SETTINGS)
    assert "error" not in row and set(row) <= set(COLUMNS)
    assert 0 < row["planned_bytes"] <= row["xla_bytes"]
    assert abs(row["planned_error"]) <= 0.005 and row["bound_bytes"] <= row["planned_bytes"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    assert untimed([row]) == untimed([run_process(cell, SETTINGS)])


def test_failures_are_rows(monkeypatch):
    unknown = Cell("nothing", 1, "cpu", "adam", "order")
    assert "unknown model" in run_process(unknown, SETTINGS)["error"]
    hasty = SweepSettings(time_limit=2.0, step_limit=None, seed=0, cell_timeout=0.01)
    assert run_process(unknown, hasty)["error"] == "this row took longer than 0.01 s"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "ended with code 1" in run_process(unknown, SETTINGS)["error"]


@pytest.mark.cuda13
def test_a_batch_that_does_not_fit():
    row = run_process(Cell("resnet18", 1_000_000, "h100", "adam", "order"), SETTINGS)
    assert "does not fit: its arguments alone 560.9 GiB, h100 has 79.1 GiB" in row["error"]


def test_a_cell_killed_beside_others_runs_again_alone():
    calls = []

    def fake(cell, settings):
        calls.append(cell)
        time.sleep(0.05)
        greedy = cell.model == "lenet" and calls.count(cell) == 1
        return {"error": KILLED} if greedy else {"xla_bytes": 1}

    rows = dict(process.run_local(grid(), SETTINGS, workers=4, worker_bytes=0, run=fake))
    assert set(rows) == set(grid()) and not any("error" in row for row in rows.values())
    assert len(calls) == 6
    calls.clear()
    lone = [c for c in grid() if c.model == "lenet"][:1]
    rows = dict(process.run_local(lone, SETTINGS, workers=4, worker_bytes=0, run=fake))
    assert rows[lone[0]] == {"error": KILLED}  # it had the machine to itself


def test_one_process_runs_whatever_memory_is_left():
    running = []

    def fake(cell, settings):
        running.append(cell)
        assert len(running) == 1
        time.sleep(0.02)
        running.remove(cell)
        return {}

    rows = list(process.run_local(grid(), SETTINGS, workers=4, worker_bytes=1 << 60, run=fake))
    assert [cell for cell, _ in rows] == grid()


def test_killed_and_started_again(tmp_path, capsys):
    """Cells of models that do not exist are quick, and their rows as good as any."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    flags = ["--models=nothing0,nothing1", *FLAGS]
    out = tmp_path / "rows.csv"
    command = [sys.executable, "-m", "olla_xla", "sweep", *flags, f"--out={out}", "--workers=2"]
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 300
        while not (out.exists() and read(out)):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    done = read(out)
    assert 1 <= len(done) < 4
    code = main.main(["olla_xla", "sweep", *flags, f"--out={out}"])
    assert code == 1 and "4 failed" in capsys.readouterr().out
    rows = read(out)
    cell = [(f"nothing{k}", size) for k in range(2) for size in "12"]
    assert [(row["model"], row["batch_size"]) for row in rows] == cell
    assert all(row in rows for row in done)  # not run again
    own = ("model", "batch_size", "error")
    same = [untimed([{**row, **dict.fromkeys(own)}]) for row in rows]
    assert same == same[:1] * 4
    assert all(f"unknown model '{row['model']}'" in row["error"] for row in rows)


def test_a_dask_cluster(tmp_path, capsys):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster:
        out = tmp_path / "rows.csv"
        code = main.main(
            ["olla_xla", "sweep", "--models=nothing", *FLAGS, f"--out={out}", "--executor=dask",
             f"--scheduler={cluster.scheduler_address}"]
        )  # fmt: skip
    assert code == 1 and len(read(out)) == 2
    assert all("unknown model" in row["error"] for row in read(out))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--executor=dask"], "--executor=dask and --scheduler=ADDRESS go together"),
        (["--scheduler=tcp://x:1"], "--executor=dask and --scheduler=ADDRESS go together"),
        (["--workers=0"], "workers"),
        (["--targets=tpu"], "'tpu' is not one of"),
        (["--worker_memory=much"], "worker_memory='much'"),
        (["--out=/no/such/rows.csv"], "cannot write /no/such/rows.csv"),
    ],
)
def test_misuse(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code = main.main(["olla_xla", "sweep", "--models=nothing", "--batch_sizes=1", *arguments])
    assert code == 2 and message in capsys.readouterr().err.splitlines()[-1]
