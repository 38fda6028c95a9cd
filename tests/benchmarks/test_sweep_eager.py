"""A sweep of unfused graphs, as the command runs it."""

import csv
import functools

import pytest

from benchmarks.__main__ import main
from benchmarks.papers.eager import unfused
from benchmarks.papers.figures import curves
from benchmarks.papers.figures.sweep_figures import FIGURES, read_rows, series


def test_rows_of_a_sweep_are_drawn(tmp_path, capsys, monkeypatch):
    out = tmp_path / "eager.csv"
    flags = ["--models=mlp", "--batch_sizes=8", "--time_limit=1", "--step_limit=500"]
    assert main(["benchmarks", "sweep_eager", *flags, f"--out={out}"]) == 0
    assert "1 rows done, 0 failed" in capsys.readouterr().out
    with open(out, newline="") as file:
        assert tuple(csv.DictReader(file).fieldnames) == unfused.COLUMNS
    (row,) = read_rows(str(out))
    assert row["mode"] == "eager" and row["xla_bytes"] == ""
    sizes = [int(row[k]) for k in ("bound_bytes", "peak_bytes", "placed_bytes")]
    assert sizes == sorted(sizes) and sizes[-1] < int(row["eager_reserved_bytes"])
    shown = {f.name for f in FIGURES if series(f, [row]).names}
    assert {"reordering", "fragmentation", "allocator_time"} <= shown
    pytest.importorskip("matplotlib")
    shorter = functools.partial(curves.order_curve, limits=(0.25,))
    monkeypatch.setattr(curves, "order_curve", shorter)
    monkeypatch.setattr(unfused, "_LOAD_SECONDS", 0.1)
    figures = ["benchmarks", "figures", f"--sweep={out}", f"--out={tmp_path}"]
    assert main([*figures, "--again=mlp/8"]) == 0
    for name in ("ordering_progress", "placement_progress"):
        (curve,) = curves.read_curves(str(tmp_path / f"{name}.csv"))
        assert curve.name == "mlp, batch 8" and curve.points[-1].bytes >= curve.bound_bytes
    capsys.readouterr()
    assert main([*figures, "--again=mlp/9"]) == 2
    assert "no unfused row 'mlp/9'" in capsys.readouterr().err
