"""The ledger of gains: what counts as worse, and what is written into it."""

import dataclasses

import pytest

from benchmarks import gains
from benchmarks.gains import Found, Row
from olla_xla.cli.program import CommandLine

pytestmark = pytest.mark.quick

ROW = Row("mlp", best_mb=100.0, xla_mb=150.0, time=0.04, date="2026-11-01", commit="abc")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Found(150.0, 100.2, 0.04), ""),
        (Found(150.0, 100.4, 0.0), "100.4 MB, 100.0 on 2026-11-01"),
        (Found(150.0, 100.0, 0.05), "5.0 % more time, 4.0"),
        (Found(150.0, 90.0, 0.05), ""),  # less memory for more of the time that is allowed
        (Found(150.0, 90.0, 0.0, proposed=5, refused=3), "3 of 5 choices refused"),
    ],
)
def test_what_is_worse(found, said):
    faults = "; ".join(gains.faults(ROW, found))
    assert said in faults and bool(said) == bool(faults)


def test_a_reason_excuses_all_but_a_refused_choice():
    row = dataclasses.replace(ROW, reason="a wrong plan was taken back")
    assert not gains.faults(row, Found(150.0, 120.0, 0.3))
    assert gains.faults(row, Found(150.0, 120.0, 0.3, 2, 1))


def test_only_what_is_better_is_kept():
    assert gains.improved(ROW, Found(150.0, 100.0, 0.0)) == ROW
    assert gains.improved(ROW, Found(150.0, 80.0, 0.0, 1, 1)) == ROW
    better = gains.improved(ROW, Found(150.0, 80.0, 0.01))
    assert (better.best_mb, better.time) == (80.0, 0.01) and better.date > ROW.date
    new = gains.improved(Row("mlp"), Found(150.0, 150.0, 0.0))
    assert (new.xla_mb, new.best_mb) == (150.0, 150.0)


def test_the_ledger_reads_as_it_is_written(tmp_path):
    rows = gains.read()
    assert len(rows) >= 60 and sum(row.quick for row in rows) >= 12
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.best_mb > 0 for row in rows)
    gains.write(rows, tmp_path / "gains.toml")
    assert (tmp_path / "gains.toml").read_text() == gains.LEDGER.read_text()


def test_the_command_fails_on_a_lost_gain_and_writes_a_better_one(tmp_path, monkeypatch, capsys):
    path = tmp_path / "gains.toml"
    gains.write([ROW, dataclasses.replace(ROW, step="lenet")], path)
    monkeypatch.setattr(gains, "read", lambda: _read(path))
    monkeypatch.setattr(gains, "write", lambda rows: _write(rows, path))
    totals = {"mlp": 90.0, "lenet": 110.0}
    monkeypatch.setattr(gains, "planned", lambda row: Found(150.0, totals[row.step], 0.0))
    made = CommandLine("benchmarks", "", "benchmarks.commands", {"gains": ""})
    assert made.main(["benchmarks", "gains"]) == 1
    assert "110.0 MB, 100.0 on" in capsys.readouterr().out
    assert [row.best_mb for row in _read(path)] == [90.0, 100.0]
    assert made.main(["benchmarks", "gains", "--rows=mlp"]) == 0


_read, _write = gains.read, gains.write
