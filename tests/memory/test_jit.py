"""Loops: compiled when they are called, not before."""

import os
import subprocess
import sys

import numpy as np

from olla_xla.memory.jit import inner, interpret, jit, loop


@inner
def _one_more(number):
    return number + 1


@loop
def _count(values):
    total = 0
    for _ in values:
        total = _one_more(total)
    return total


@jit
def _doubled(values):
    return values * 2


def test_a_loop_is_compiled_when_called(monkeypatch):
    assert "compiled" not in vars(_doubled)
    assert _doubled(np.arange(3)).tolist() == [0, 2, 4]
    assert _doubled.compiled.signatures
    assert _count(np.zeros(3)) == 3
    assert _count.interpreted(np.zeros(4)) == 4
    assert _count.is_kept


def test_python_runs_for_a_while_what_is_not_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def total(values):
        found = values[0]
        for k in range(1, len(values)):
            found += values[k]
        return found

    short, long = loop(total), loop(total, long=True)
    values = np.arange(4)
    try:
        interpret(60.0)
        assert short(values) == 6 and type(short(values)) is int
        assert not any(tmp_path.iterdir())
        interpret(0.001)
        monkeypatch.setattr("time.thread_time", iter(range(100)).__next__)
        assert short(values) == 6 and not any(tmp_path.iterdir())
        assert short(values) == 6 and any(tmp_path.iterdir()), "it has taken a second"
        assert long.is_kept and long(values) == 6
    finally:
        interpret(0.0)


def test_what_only_compiled_functions_call_is_interpreted_by_python():
    assert _one_more(2) == 3
    assert _one_more(2.5) == 3.5


def test_a_few_blocks_are_placed_before_numba_would_be_imported(tmp_path):
    """Or scipy, which numba imports: together they take longer than all the rest."""
    path = tmp_path / "few.csv"
    path.write_text("id,lower,upper,size\na,0,4,8\nb,1,3,4\nc,2,6,8\nd,5,7,4\n")
    code = (
        "import sys\nfrom olla_xla.cli.main import main\n"
        f"code = main(['olla_xla', 'place', '--trace={path}'])\n"
        "heavy = {'numba', 'scipy', 'jax', 'ortools'} & set(sys.modules)\n"
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert "optimal, found by greedy_size" in done.stdout
