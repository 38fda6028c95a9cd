"""Figures from the rows of a sweep."""

import csv

import pytest

from olla_xla import cli, figures
from olla_xla.sweep.grid import COLUMNS, Settings, cells
from olla_xla.sweep.journal import Journal

EAGER = {
    "eager_live_bytes": 100, "eager_reserved_bytes": 200, "eager_fragmentation": 0.25,
    "peak_bytes": 80, "placed_bytes": 80, "order_seconds": 1.5, "place_seconds": 0.5,
}  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "sweep.csv"
    grid = cells(
        ("mlp", "lenet"), ("1", "8"), ("cpu",), ("adam",), ("eager", "order"),
        targets=("cpu", "h100"),
    )  # fmt: skip
    journal = Journal(str(path), grid, Settings(1.0, None, 0, 60.0))
    for cell in grid:
        if cell.mode == "eager":
            journal.add(cell, {**EAGER, "placed_bytes": 80 + 20 * (cell.batch_size == 8)})
        else:
            journal.add(cell, {"error": "out of memory"})
    return path


def test_values(sweep):
    rows = figures.read_rows(str(sweep))
    assert len(rows) == 4  # the others failed
    by_name = {f.name: figures.series(f, rows) for f in figures.FIGURES}
    assert by_name["reordering"].values["reordering"] == pytest.approx((20, 20, 20, 20))
    assert by_name["fragmentation"].values["planned"] == pytest.approx((0, 25, 0, 25))
    total = by_name["total_reduction"]
    assert total.names[:2] == ("mlp, batch 1", "mlp, batch 8")
    assert total.mean("order and places", 1) == pytest.approx(60)
    assert total.mean("order and places", 8) == pytest.approx(50)
    assert total.mean("order and places", 32) is None and by_name["against_xla"].names == ()


def test_files(sweep, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "figures"
    for _ in range(2):
        code = cli.main(["olla_xla", "figures", f"--sweep={sweep}", f"--out={out}"])
        assert code == 0 and "No rows for against_xla" in capsys.readouterr().out
        made = {p.name: p.read_bytes() for p in out.iterdir()}
    assert {"reordering.csv", "reordering.png", "placement_time.csv"} <= set(made)
    assert made["reordering.png"].startswith(b"\x89PNG")
    with open(out / "total_reduction.csv", newline="") as file:
        assert list(csv.reader(file))[1] == ["mlp, batch 1", "60.000"]


def test_what_is_no_sweep(tmp_path, capsys):
    for text, message in (("a,b\n1,2\n", "is not a sweep's CSV"), ("", "is not a sweep's CSV")):
        path = tmp_path / "other.csv"
        path.write_text(text)
        code = cli.main(["olla_xla", "figures", f"--sweep={path}", f"--out={tmp_path}"])
        assert code == 2 and message in capsys.readouterr().err
    code = cli.main(["olla_xla", "figures", "--sweep=/no/such.csv"])
    assert code == 2 and "cannot read /no/such.csv" in capsys.readouterr().err
    path.write_text(",".join(COLUMNS) + "\n")
    code = cli.main(["olla_xla", "figures", f"--sweep={path}", f"--out={path}"])
    assert code == 2 and "cannot make the folder" in capsys.readouterr().err
