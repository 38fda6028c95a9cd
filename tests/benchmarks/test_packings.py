"""Pictures of packings: the steps they show are those of the rules themselves."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.papers.figures import packings
from benchmarks.place_ilp.pyramid import pyramid
from olla_xla.place.items import items_of
from olla_xla.place.problem import PlacementProblem
from olla_xla.place.rules import best_fit
from olla_xla.place.trace import read_trace

FIGURES = Path(__file__).parents[2] / "docs" / "figures" / "papers"


@st.composite
def problems(draw):
    n = draw(st.integers(1, 9))
    lower = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    life = draw(st.lists(st.integers(1, 6), min_size=n, max_size=n))
    size = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    return PlacementProblem.of(lower, [a + b for a, b in zip(lower, life, strict=True)], size)


@given(problems())
def test_ways_by_plain_rules(problem):
    """The search around a pyramid ends early: `ways` checks what it finds, however good it is."""
    lower, size, count = problem.lower, problem.size, len(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packings, "_PLACEMENTS", 100)
        asked, first, _ = packings.ways(problem)
    # As asked for: each at the lowest place that is free when it is asked for.
    at, order = {}, sorted(range(count), key=lambda b: (lower[b], b))
    for step, b in enumerate(order, 1):
        live = [k for k in at if problem.upper[k] > lower[b]]
        x = 0
        while any(at[k] < x + size[b] and x < at[k] + size[k] for k in live):
            x += 1
        at[b] = x
        assert (asked.offsets[b], asked.steps[b]) == (x, step)
    items, item = items_of(problem, 0)
    below = pyramid(items)
    assert {b for b in range(count) if item[b] in below} == set(first.first)
    live = [int(size[(lower <= t) & (t < problem.upper)].sum()) for t in range(16)]
    assert packings._largest_sum(problem) == max(live)
    *_, last = steps = list(packings.best_fit_steps(problem))
    assert sorted(last.placed) == list(range(count))
    problem.check(last.offsets)
    for step in steps:
        tops = [stop for _, stop, _ in step.lines]
        starts = [start for start, *_ in step.lines]
        assert starts[1:] == tops[:-1]  # lines cover all the time
        levels = [level for *_, level in step.lines]
        assert all(a != b for a, b in zip(levels, levels[1:], strict=False))
        for start, stop, level in step.lines:
            under = [
                step.offsets[b] + size[b]
                for b in step.placed
                if lower[b] < stop and start < problem.upper[b]
            ]
            assert level >= max(under, default=0)


@given(problems())
def test_the_quick_rule_takes_the_same_steps(problem):
    """Written apart, they agree, but where two blocks are alike and either may come first."""
    alike = list(zip((problem.upper - problem.lower).tolist(), problem.size.tolist(), strict=True))
    if len(set(alike)) == len(alike):
        *_, last = packings.best_fit_steps(problem)
        items, item = items_of(problem, 0)
        assert last.offsets.tolist() == best_fit(items)[item].tolist()


def test_the_pyramid_is_nested():
    problem = PlacementProblem.of([0, 1, 2, 3], [9, 8, 7, 4], [4, 3, 2, 1])
    _, way, _ = packings.ways(problem)
    assert way.first == {0, 1, 2, 3} and way.offsets.tolist() == [0, 4, 7, 9]
    assert way.steps.tolist() == [1, 2, 3, 4]


def test_the_picture_in_the_documents_says_what_they_say():
    """As asked for, a tenth is lost, and nothing with the pyramid first, however slow a machine."""
    problem = read_trace(FIGURES / "packing_blocks.csv")
    found = packings.ways(problem)
    live = packings._largest_sum(problem)
    tops = [int((way.offsets + problem.size).max()) / live for way in found]
    assert tops == [pytest.approx(1.099, abs=5e-4), 1.0, 1.0]
    with open(FIGURES / "packing.csv", newline="") as file:
        stored = [int(row["offset"]) for row in csv.DictReader(file)]
    assert stored == np.concatenate([way.offsets for way in found]).tolist()


def test_they_are_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    blocks = tmp_path / "blocks.csv"
    blocks.write_text("id,lower,upper,size\na,0,4,8\nb,1,3,4\nc,2,6,2\n")
    out = tmp_path / "out"
    assert main(["benchmarks", "figures", f"--packing={blocks}", f"--out={out}"]) == 0
    assert "Drawn: packing, best_fit_steps." in capsys.readouterr().out
    names = {p.name for p in out.iterdir()}
    assert names == {"packing.csv", "packing.png", "best_fit_steps.png"}
    lines = (out / "packing.csv").read_text().splitlines()
    assert lines[0] == "way,block,lower,upper,size,offset,step" and len(lines) == 1 + 3 * 3
    assert np.loadtxt(out / "packing.csv", delimiter=",", skiprows=1, usecols=5).max() < 14
