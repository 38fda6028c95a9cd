"""A benchmark fails where a referee refused a choice, in its process or in a worker's."""

import subprocess
import sys

import pytest

from benchmarks import __main__ as program
from benchmarks import refused
from benchmarks.commands import place
from olla_xla.problem import refusals

pytestmark = [pytest.mark.quick, pytest.mark.refused]

_WORKER = """
import benchmarks
from olla_xla.problem import refusals
refusals.note("a choice of a worker", ValueError("another result"))
"""


def test_a_refused_choice_fails_a_benchmark(monkeypatch, capsys):
    def run(values):
        refusals.note("a choice", ValueError("another\nresult"))
        return 0

    monkeypatch.setattr(place, "run", run)
    assert program.main(["benchmarks", "place"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "1 choices refused by the check:",
        "a choice was refused: another result",
    ]
    monkeypatch.setattr(place, "run", lambda values: 0)
    assert program.main(["benchmarks", "place"]) == 0


def test_workers_are_heard():
    with refused.watched() as found:
        subprocess.run([sys.executable, "-c", _WORKER], check=True)
    assert found == ["a choice of a worker was refused: another result"]
