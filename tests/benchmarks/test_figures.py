"""Figures from the rows of a sweep."""

import csv
import dataclasses
import json
import subprocess

import pytest

from benchmarks.__main__ import main
from benchmarks.papers import arenas as process
from benchmarks.papers.eager.estimate import Estimate, Estimates, ModelEstimates, from_json
from benchmarks.papers.figures import benchmark_figures, curves, sweep_figures
from benchmarks.papers.figures.comparisons import comparison_table, comparisons, model_table
from benchmarks.papers.figures.curves import Point
from olla_xla.errors import OllaError
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.tools.sweep.grid import Journal, SweepSettings, cells

EAGER = {
    "eager_live_bytes": 100, "eager_reserved_bytes": 200, "eager_fragmentation": 0.25,
    "peak_bytes": 80, "placed_bytes": 80, "order_seconds": 1.5, "place_seconds": 0.5,
    "requests": 10, "request_seconds": 1e-3, "caching_seconds": 2e-3, "blocks": 7,
    "best_fit_bytes": 84, "best_fit_seconds": 0.01, "load_bytes": 80,
    "loop_reserved_bytes": 250, "loop_fragmentation": 0.5,
}  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "sweep.csv"
    grid = cells(
        ("mlp", "lenet"), ("1", "8"), ("cpu",), ("adam",), ("eager", "order"),
        targets=("cpu", "h100"), known_modes=("eager", "order"),
    )  # fmt: skip
    journal = Journal(str(path), grid, SweepSettings(1.0, None, 0, 60.0), sweep_figures.COLUMNS)
    for cell in grid:
        if cell.mode == "eager":
            journal.add(cell, {**EAGER, "placed_bytes": 80 + 20 * (cell.batch_size == 8)})
        else:
            journal.add(cell, {"error": "out of memory"})
    return path


def test_values(sweep):
    rows = sweep_figures.read_rows(str(sweep))
    assert len(rows) == 4  # the others failed
    by_name = {f.name: sweep_figures.series(f, rows) for f in sweep_figures.FIGURES}
    assert by_name["reordering"].values["reordering"] == pytest.approx((20, 20, 20, 20))
    assert by_name["fragmentation"].values["planned"] == pytest.approx((0, 25, 0, 25))
    assert by_name["break_even"].values["malloc and free"] == pytest.approx((2000,) * 4)
    assert by_name["break_even"].values["caching allocator"] == pytest.approx((1000,) * 4)
    saved = by_name["minutes_saved"].values
    assert saved["caching allocator, less planning"] == pytest.approx((1998 / 60,) * 4)
    assert by_name["allocator_time"].values["planning"] == pytest.approx((2,) * 4)
    in_a_loop = by_name["total_reduction_in_a_loop"].values
    assert in_a_loop["order and places"] == pytest.approx((68, 60, 68, 60))
    total = by_name["total_reduction"]
    assert total.names[:2] == ("mlp, batch 1", "mlp, batch 8")
    assert total.mean("order and places", 1) == pytest.approx(60)
    assert total.mean("order and places", 8) == pytest.approx(50)
    assert total.mean("order and places", 32) is None and by_name["against_xla"].names == ()


def test_files(sweep, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "figures"
    for _ in range(2):
        code = main(["benchmarks", "figures", f"--sweep={sweep}", f"--out={out}"])
        assert code == 0 and "No rows for against_xla" in capsys.readouterr().out
        made = {p.name: p.read_bytes() for p in out.iterdir()}
    assert {"reordering.csv", "reordering.png", "placement_time.csv", "best_fit.png"} <= set(made)
    assert (out / "best_fit.csv").read_text().splitlines()[1] == (
        '"lenet, batch 1",7,0.010000,5.000,no'
    )
    assert made["reordering.png"].startswith(b"\x89PNG")
    with open(out / "total_reduction.csv", newline="") as file:
        assert list(csv.reader(file))[1] == ["mlp, batch 1", "60.000"]


def test_rows_that_took_longer_than_five_minutes_are_left_out():
    total = next(f for f in sweep_figures.FIGURES if f.name == "total_reduction")
    row = {"mode": "eager", "order_seconds": "280", "place_seconds": "19"}
    assert total.shows(row) and not total.shows({**row, "place_seconds": "21"})


def compared(mode, target, batch_size, **columns):
    row = dict.fromkeys(sweep_figures.COLUMNS, "")
    key = {"model": "mlp", "batch_size": str(batch_size), "target": target, "mode": mode}
    return {**row, **key, **{name: str(value) for name, value in columns.items()}}


def test_comparisons():
    rows = [
        compared("order", "cpu", 1, xla_bytes=100, planned_bytes=60, memory_optimized_bytes=80),
        compared("order", "cpu", 32, xla_bytes=100, planned_bytes=90, memory_optimized_bytes=80),
        compared("order", "h100", 32, xla_bytes=100, planned_bytes=110),
        compared("overhead", "h100", 32, xla_bytes=100, planned_bytes=70),
        compared(
            "eager", "cpu", 32, eager_reserved_bytes=200, eager_live_bytes=150, peak_bytes=100,
            placed_bytes=100,
        ),
    ]  # fmt: skip
    found = {(c.what, c.target, c.batch_size): c for c in comparisons(rows)}
    fused = "fused against fused: planned below XLA's"
    default = f"{fused} default (assigned)"
    cpu = found[default, "cpu", "all"]
    assert cpu.mean == pytest.approx(0.25) and cpu.aim == 0.3 and cpu.worse == ()
    assert cpu.worst == ("mlp, batch 32", pytest.approx(0.1))
    assert found[default, "h100", "32"].worse == ("mlp, batch 32",)
    assert cpu.met is False  # 25 % of 30
    assert found[default, "h100", "32"].aim == 0.361  # like is held against the paper's figure
    optimized = found[f"{fused} memory-optimized scheduler (assigned)", "cpu", "32"]
    assert optimized.worse == ("mlp, batch 32",)
    both = found["fused against fused: planned below the better of both (assigned)", "cpu", "1"]
    assert both.mean == pytest.approx(0.25)
    over = found[f"{fused} default, 5 % time may be added (assigned)", "h100", "32"]
    assert over.mean == pytest.approx(0.3) and over.aim == 0.25 and over.met
    broken = [{**rows[-1], "placed_bytes": "110"}, rows[-1]]
    (lost,) = (c for c in comparisons(broken) if c.above and c.batch_size == "32")
    assert lost.mean == pytest.approx(0.05) and lost.worst[1] == pytest.approx(0.1)
    assert lost.met is None
    assert len(lost.worse) == 1
    eager = [c for c in found.values() if c.target == "any" and c.batch_size == "32"]
    assert sorted(c.mean for c in eager) == pytest.approx([0, 1 / 3, 0.5])
    lines = comparison_table(list(found.values())).rows
    assert len(lines) == len(found)
    per_model = model_table(list(found.values()))
    last = {row[0]: row[-1] for row in per_model.rows}
    assert last == {"mlp, batch 1": "-", "mlp, batch 32": "30.0"}
    assert per_model.headings[-1] == "h100: +5 %"


def chain(sizes):
    """Operators in a row, each reading the last one's tensor."""
    n = len(sizes)
    operators = tuple(Operator(f"op{k}", "op") for k in range(n))
    tensors = tuple(
        Tensor(f"t{k}", size, k, (k + 1,) if k + 1 < n else (), k, False, k + 1 == n, "temporary")
        for k, size in enumerate(sizes)
    )
    return TensorGraph("chain", operators, tensors)


def test_curves_end_at_the_best(tmp_path):
    graph = chain([8, 16, 8, 24])
    curve, order = curves.order_curve("chain", graph, limits=(0.5,))
    assert curve.points[-1].bytes == curve.bound_bytes == 32 and len(order) == 4
    places = curves.place_curve("chain", graph, order.tolist())
    assert places.points[-1].bytes == 32 == places.bound_bytes
    seconds = [p.seconds for p in places.points]
    assert seconds == sorted(seconds)
    curves.write_curves_csv([curve, places], tmp_path / "curves.csv")
    with open(tmp_path / "curves.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["name"] for row in rows} == {"chain"} and rows[-1]["bytes"] == "32"


def test_places_found_before_the_time_is_up_count(monkeypatch):
    line = json.dumps({"seconds": 0.1, "bytes": 9, "live_bytes": 8, "source": "best_fit"})

    def late(*args, **kwargs):
        raise subprocess.TimeoutExpired("placing", 1.0, output=f"{line}\n{line[:20]}".encode())

    monkeypatch.setattr(process.subprocess, "run", late)
    found = process.arenas(chain([8, 8]), [0, 1], 1.0)
    assert [arena.bytes for arena in found] == [9]
    monkeypatch.setattr(
        process.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, b"", b"a\nb")
    )
    with pytest.raises(OllaError, match="placing failed: b"):
        process.arenas(chain([8, 8]), [0, 1], 1.0)


def test_the_papers_values_stand_beside_ours():
    total = next(f for f in sweep_figures.FIGURES if f.name == "total_reduction")
    shown = sweep_figures.Series(
        ("a, batch 1", "b, batch 1"), {"order and places": (20.0, 30.0)}, (1, 1)
    )
    assert sweep_figures.mean_lines(total, shown) == [
        ("mean of batch 1: 25.0 %", 25.0, 1, False),
        ("paper, mean of batch 1: 30.4 %", 30.4, 1, True),
    ]  # no line for a batch size without rows
    marks = {f.name: [m.value for m in f.marks] for f in sweep_figures.FIGURES if f.marks}
    assert marks == {
        "reordering": [22.5, 38.0, 10.1],
        "fragmentation": [7.9, 26.1],
        "fragmentation_in_a_loop": [7.9, 26.1],
        "total_reduction": [30.4, 36.1],
        "total_reduction_in_a_loop": [30.4, 36.1],
    }
    assert shown.mean("order and places", 1) == shown.median("order and places", 1) == 25.0


MEMORY = {
    "network": "resnet", "size": 128, "operators": [3, 4], "none_bytes": 8 * 2**20,
    "in_place_bytes": 7 * 2**20, "sharing_bytes": 4 * 2**20, "both_bytes": 4 * 2**20,
    "cheap_bytes": 3 * 2**20, "sublinear_bytes": 2 * 2**20, "exact_bytes": 2**20, "seconds": 1.0,
}  # fmt: skip
LOOP = {
    "loop": "training", "live_bytes": 2**20, "arena_bytes": 2**20, "elsewhere_bytes": 0,
    "caching_bytes": 2 * 2**20, "planned_seconds": 2e-6, "serving_seconds": 1e-6,
    "caching_seconds": 3e-6, "malloc_seconds": 2e-8, "learned_bytes": 0, "learning_bytes": 2**20,
    "iterations": 2, "requests": 10, "step_seconds": 4e-3,
}  # fmt: skip


def test_figures_of_the_other_papers(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    memory = [{**MEMORY, "size": size, "network": n} for n in ("resnet", "lstm") for size in (1, 2)]
    totals = {"plain_total_bytes": 6 * 2**20, "sublinear_total_bytes": 3 * 2**20}
    times = [{"network": "resnet", "size": 32, "ratio": 1.25, **totals}]
    stored = {"sublinear": {"memory": memory, "time": times}, "profile": [LOOP]}
    for name, rows in stored.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    curve = curves.Curve("vgg", (Point(0.0, 9, "a"), Point(1.0, 4, "b")), 4)
    progress = tmp_path / "ordering_progress.csv"
    curves.write_curves_csv([curve], progress)
    assert curves.read_curves(str(progress)) == [curve]
    out = tmp_path / "out"
    flags = [f"--{name}={tmp_path / name}.json" for name in stored]
    command = ["benchmarks", "figures", *flags, f"--progress={progress}", f"--out={out}"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    drawn = "sublinear_resnet, sublinear_lstm, sublinear_totals, sublinear_time, profile_memory"
    assert f"Drawn: {drawn}" in printed
    assert {p.suffix for p in out.iterdir()} == {".csv", ".png"} and len(list(out.iterdir())) == 18
    with open(out / "sublinear_totals.csv", newline="") as file:
        assert list(csv.reader(file))[1] == ["resnet 32", "6", "3"]
    with open(out / "profile_step.csv", newline="") as file:
        assert list(csv.reader(file))[1] == ["training", "4", "0.0002", "0.01", "0.03"]
    with open(out / "sublinear_resnet.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["layers"] for row in rows] == ["1", "2"]
    assert rows[0]["both, sublinear, exact budget (MB)"] == "1"
    with open(out / "profile_less.csv", newline="") as file:
        assert list(csv.reader(file))[1] == ["training", "50", "50"]
    charts = benchmark_figures.sublinear_charts([tmp_path / "sublinear.json"] * 2)
    assert [mark.value for mark in charts[0].marks] == [48 * 1024, 7 * 1024]
    assert charts[1].marks == () and charts[0].at == (1, 1, 2, 2)  # both files, by size


def test_figures_of_estimates(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path, out = tmp_path / "estimates.json", tmp_path / "out"
    for mode in ("training", "inference"):
        flags = ["--models=mlp", "--batch_size=2", "--time_limit=0", f"--mode={mode}"]
        assert main(["benchmarks", "estimate", *flags, f"--out={path}"]) == 0
    assert main(["benchmarks", "figures", f"--estimates={path}", f"--out={out}"]) == 0
    said = capsys.readouterr().out
    assert "best_fit_training, best_fit_training_less" in said and "best_fit_time" in said
    assert len(list(out.iterdir())) == 10
    with open(out / "best_fit_time.csv", newline="") as file:
        times = {row["name"]: row for row in csv.DictReader(file)}
    assert set(times) == {"mlp, batch 2, inference", "mlp, batch 2, training"}
    blocks = [int(times[f"mlp, batch 2, {mode}"]["blocks"]) for mode in ("inference", "training")]
    assert 0 < blocks[0] < blocks[1]
    assert all(float(row["seconds"]) > 0 for row in times.values())
    with open(out / "best_fit_inference_less.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["name"] == "mlp, batch 2"
    training, inference = benchmark_figures.estimate_charts(from_json(path.read_text()))[1::2]
    assert [m.value for m in inference.marks] == [12.6, 10.0] and training.marks[0].value == 49.5


def test_best_fit_is_proven_where_it_meets_what_is_live():
    found = Estimates(2, 0, 0, 0, (
        Estimate("eager, block splitting", 9),
        Estimate("best fit by profile", 12, blocks=3, seconds=0.5, live_bytes=10),
    ))  # fmt: skip
    rows = [ModelEstimates("a", 1, "sgd", mode, "", found) for mode in ("training", "inference")]
    inference, training = curves.estimated_best_fits(rows)
    assert inference.mode == "inference" and training.mode == "training"
    assert training.above == pytest.approx(0.2) and not training.optimal
    met = dataclasses.replace(found.rows[1], total_bytes=10)
    exact = [dataclasses.replace(rows[0], found=dataclasses.replace(found, rows=(met,)))]
    assert curves.estimated_best_fits(exact)[0].optimal


def test_what_no_benchmark_wrote(tmp_path, capsys):
    path = tmp_path / "rows.json"
    for text in ("[", "[]", '{"memory": [{}], "time": []}'):
        path.write_text(text)
        assert main(["benchmarks", "figures", f"--sublinear={path}"]) == 2
    for text in ("{}", '[{"loop": "a"}]'):
        path.write_text(text)
        assert main(["benchmarks", "figures", f"--profile={path}"]) == 2
    path.write_text("a,b\n1,2\n")
    capsys.readouterr()
    assert main(["benchmarks", "figures", f"--progress={path}"]) == 2
    assert "is not a progress file" in capsys.readouterr().err


def test_what_is_no_sweep(tmp_path, capsys):
    for text, message in (("a,b\n1,2\n", "is not a sweep's CSV"), ("", "is not a sweep's CSV")):
        path = tmp_path / "other.csv"
        path.write_text(text)
        code = main(["benchmarks", "figures", f"--sweep={path}", f"--out={tmp_path}"])
        assert code == 2 and message in capsys.readouterr().err
    code = main(["benchmarks", "figures", "--sweep=/no/such.csv"])
    assert code == 2 and "cannot read /no/such.csv" in capsys.readouterr().err
    path.write_text(",".join(sweep_figures.COLUMNS) + "\n")
    code = main(["benchmarks", "figures", f"--sweep={path}", f"--out={path}"])
    assert code == 2 and "cannot make the folder" in capsys.readouterr().err
