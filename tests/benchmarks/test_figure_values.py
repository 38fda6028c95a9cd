"""The figures of the documents are those of the stored rows, every value; small cases by hand."""

import csv
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.eager.estimate import from_json
from benchmarks.papers.figures import benchmark_figures, curves, sweep_figures
from benchmarks.papers.figures.comparisons import Comparison
from benchmarks.papers.figures.curves import Point
from olla_xla.errors import InputError
from olla_xla.tools.sweep import grid

PAPERS = Path(__file__).parents[2] / "docs" / "figures" / "papers"


def same_file(name, write, tmp_path):
    write(tmp_path / name)
    assert (tmp_path / name).read_text() == (PAPERS / name).read_text(), name


def test_the_bars_of_the_documents(tmp_path):
    rows = sweep_figures.read_rows(str(PAPERS / "eager.csv"))
    drawn = []
    for figure in sweep_figures.FIGURES:
        shown = sweep_figures.series(figure, rows)
        if shown.names:
            drawn.append(figure.name)
            same_file(
                f"{figure.name}.csv",
                lambda path, f=figure, s=shown: sweep_figures.write_csv(f, s, path),
                tmp_path,
            )
    assert len(drawn) == 10


def test_the_charts_of_the_documents(tmp_path):
    charts = benchmark_figures.sublinear_charts([PAPERS / "sublinear.json"])
    charts += benchmark_figures.profile_charts(
        [PAPERS / "profile.json", PAPERS / "profile_torch.json"]
    )
    assert len(charts) == 8
    for chart in charts:
        same_file(
            f"{chart.name}.csv",
            lambda path, c=chart: benchmark_figures.write_csv(c, path),
            tmp_path,
        )


def test_the_curves_of_the_documents(tmp_path):
    for name in ("ordering_progress.csv", "placement_progress.csv"):
        found = curves.read_curves(str(PAPERS / name))
        same_file(name, lambda path, f=found: curves.write_curves_csv(f, path), tmp_path)
        for curve in found:
            assert curves._falling(curve.points) == curve.points


def test_best_fit_of_the_documents(tmp_path):
    rows = sweep_figures.read_rows(str(PAPERS / "eager.csv"))
    found = curves.best_fits(rows)
    assert [f.blocks for f in found] == sorted(f.blocks for f in found)
    same_file("best_fit.csv", lambda path: curves.write_best_fit_csv(found, path), tmp_path)
    # The share that is stored, from the bytes themselves.
    with open(PAPERS / "best_fit.csv", newline="") as file:
        stored = {row["name"]: row for row in csv.DictReader(file)}
    for row in rows:
        above = 100 * (int(row["best_fit_bytes"]) - int(row["load_bytes"])) / int(row["load_bytes"])
        mine = stored[f"{row['model']}, batch {row['batch_size']}"]
        assert float(mine["above the bound (%)"]) == pytest.approx(above, abs=6e-4)
        assert mine["proven optimal"] == ("yes" if above <= 0 else "no")


def test_estimates_of_the_documents(tmp_path):
    rows = [
        row
        for mode in ("training", "inference")
        for row in from_json((PAPERS / f"estimates_{mode}.json").read_text())
    ]
    for chart in benchmark_figures.estimate_charts(rows):
        same_file(
            f"{chart.name}.csv",
            lambda path, c=chart: benchmark_figures.write_csv(c, path),
            tmp_path,
        )
    found = curves.estimated_best_fits(rows)
    same_file("best_fit_time.csv", lambda path: curves.write_best_fit_csv(found, path), tmp_path)


# By hand.


def test_means_and_the_worst():
    found = Comparison("w", "l", "cpu", "1", ("a", "b", "c"), (0.1, -0.2, 0.4), 0.1)
    assert found.mean == pytest.approx(0.1) and found.worst == ("b", -0.2)
    assert found.worse == ("b",) and found.met
    assert not dataclasses.replace(found, aim=0.11).met
    above = dataclasses.replace(found, above=True, values=(0.1, 0.0, 0.0004))
    assert above.worst == ("a", 0.1) and above.worse == ("a",)
    nearly = dataclasses.replace(found, above=True, values=(0.0, 0.0, 0.0012), aim=0.0)
    assert nearly.met and not dataclasses.replace(nearly, values=(0.0, 0.0, 0.0018)).met
    assert dataclasses.replace(found, aim=None).met is None


def test_rows_of_several_targets_are_told_apart():
    row = dict.fromkeys(sweep_figures.COLUMNS, "")
    eager = {"mode": "order", "model": "a", "batch_size": "1", "xla_bytes": "8"}
    rows = [
        {**row, **eager, "target": t, "planned_bytes": b} for t, b in (("cpu", "6"), ("h100", "4"))
    ]
    figure = next(f for f in sweep_figures.FIGURES if f.name == "against_xla")
    shown = sweep_figures.series(figure, rows)
    assert shown.names == ("a, batch 1, cpu", "a, batch 1, h100")
    assert list(shown.values.values()) == [(25.0, 50.0)]
    assert sweep_figures.series(figure, rows[:1]).names == ("a, batch 1",)
    assert shown.mean(next(iter(shown.values)), 1) == 37.5
    log = next(f for f in sweep_figures.FIGURES if f.log)
    several = sweep_figures.Series(("a",), {label: (2.0,) for label in log.values}, (1,))
    assert sweep_figures.mean_lines(log, several) == []


def test_curves_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        curves.read_curves(str(tmp_path / "none.csv"))
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="bytes.csv: not text"):
        curves.read_curves(str(tmp_path / "bytes.csv"))
    with pytest.raises(InputError, match="bytes.csv: not JSON"):
        benchmark_figures.profile_charts([tmp_path / "bytes.csv"])
    with pytest.raises(InputError, match="bytes.csv: not text"):
        sweep_figures.read_rows(str(tmp_path / "bytes.csv"))
    least = ",".join((*grid.KEY, "error"))
    (tmp_path / "least.csv").write_text(f"{least}\n" + "," * len(grid.KEY) + "\n")
    assert len(sweep_figures.read_rows(str(tmp_path / "least.csv"))) == 1
    (tmp_path / "less.csv").write_text(least.removesuffix(",error") + "\n")
    with pytest.raises(InputError, match="not a sweep's"):
        sweep_figures.read_rows(str(tmp_path / "less.csv"))
    (tmp_path / "other.csv").write_text("name,seconds\na,1\n")
    with pytest.raises(InputError, match="not a progress file"):
        curves.read_curves(str(tmp_path / "other.csv"))
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(InputError, match="is not what benchmarks sublinear --out writes"):
        benchmark_figures.sublinear_charts([tmp_path / "list.json"])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=8))
def test_what_falls(pairs):
    """The least so far at each time where it is new, and the last time."""
    points = [Point(float(s), b, f"{k}") for k, (s, b) in enumerate(pairs)]
    found = curves._falling(points)
    least = {
        s: min(p.bytes for p in points if p.seconds <= s)
        for s in sorted({p.seconds for p in points})
    }
    new = [s for k, s in enumerate(least) if k == 0 or least[s] < list(least.values())[k - 1]]
    if least and list(least)[-1] not in new:
        new.append(list(least)[-1])
    assert [(p.seconds, p.bytes) for p in found] == [(s, least[s]) for s in new]
