"""Soaks: what grows is named, what only wavers is not; a short one of a real process."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.commands.soak import write_curves_png
from benchmarks.soak.job import Curve, Sample, growth, slope, soak
from olla_xla.errors import InputError

COUNTS = list(range(10, 410, 10))


def curve(part="forgotten", way="plan", resident=0.0, first=0.0, call=0.0, each=0):
    """Forty samples that grow by these parts of their start; every fifth one is disturbed."""
    samples = []
    for k, count in enumerate(COUNTS):
        at, noise = k / len(COUNTS), 1.3 if k % 5 == 0 else 1.0
        size = int(2**29 * (1 + resident * at)) + each * count
        samples.append(
            Sample(count, size, noise * 0.5 * (1 + first * at), noise * 1e-3 * (1 + call * at))
        )
    return Curve(part, way, tuple(samples))


@given(st.floats(-5, 5), st.floats(-100, 100), st.sets(st.integers(0, 39), max_size=8))
def test_the_slope_of_a_line_is_found_though_some_of_it_is_disturbed(each, start, disturbed):
    values = [start + each * c + 1e3 * (k in disturbed) for k, c in enumerate(COUNTS)]
    assert slope(COUNTS, [start + each * c for c in COUNTS]) == pytest.approx(each, abs=1e-6)
    assert slope(COUNTS[:1], values[:1]) == 0
    alone = [start + 1e3 * (k in disturbed) for k, c in enumerate(COUNTS)]
    assert abs(slope(COUNTS, alone)) <= 1e3 / 10
    if len(disturbed) < 4:
        assert slope(COUNTS, alone) == 0


def test_growth_is_that_of_the_second_half():
    assert growth([1, 2, 3, 4], [9, 5, 7, 7]) == 0
    assert growth([1, 2, 3, 4], [0, 0, 100, 102]) == pytest.approx(2 / 101)
    assert growth([1], [5]) == 0


def test_what_grows_is_named():
    assert not curve().wrong(None)
    assert "resident memory grows" in curve(resident=0.2).wrong(None)
    assert "a first call takes" in curve(first=30).wrong(None)
    assert "a call takes" in curve(call=30).wrong(None)
    # As much longer as jit's own, on a machine that has more to do, is not longer.
    assert not curve(first=30, call=30).wrong(curve(way="jit", first=30, call=30))
    assert "a first call takes" in curve(first=30).wrong(curve(way="jit", call=30))
    few = dataclasses.replace(curve(), samples=curve().samples[:3])
    assert "too few" in few.wrong(None)
    # What a signature keeps is measured by what jax.jit keeps of it.
    jit = curve("signatures", "jit", each=2**18)
    assert not curve("signatures", each=2**18).wrong(jit)
    assert "a signature keeps 1.00 MB" in curve("signatures", each=2**20).wrong(jit)


def test_processes_that_plan_again_and_again(tmp_path, capsys):
    options = {"time_limit": 20.0, "step_limit": 100}
    curves = list(soak("forgotten", "plan", 6, 120.0, 2, options))
    assert [s.count for s in curves[-1].samples] == [2, 4, 6]
    assert all(s.resident_bytes > 2**26 and s.call_seconds for s in curves[-1].samples)
    assert curves[-1].samples[:1] == curves[0].samples
    out, figure = tmp_path / "soak.json", tmp_path / "soak.png"
    given = ["--parts=signatures", "--count=8", f"--out={out}", f"--figure={figure}"]
    assert main(["benchmarks", "soak", *given, "--step_limit=100"]) in (
        0,
        1,
    )  # eight say little
    printed = capsys.readouterr().out
    assert "signatures" in printed and "jit" in printed and "plan" in printed
    assert out.read_text().count('"way"') == 2 and figure.read_bytes()[:4] == b"\x89PNG"


def test_misuse_is_named(tmp_path):
    with pytest.raises(InputError, match="no part 'none'"):
        next(soak("none", "plan", 1, 1.0, 1, {}))
    with pytest.raises(InputError, match="cannot write"):
        write_curves_png([curve()], tmp_path / "none" / "soak.png")
