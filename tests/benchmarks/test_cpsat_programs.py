"""CP-SAT's own program of places, by a look at all addresses.

That of orders is held to all orders of random graphs in tests/solvers/test_exact.py.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.place_ilp import cpsat_rectangles
from benchmarks.place_ilp.rectangles import Rectangle, RectangleModel
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status

LIMITS = SolverLimits(time_limit=20.0)


@st.composite
def rectangle_models(draw):
    """Up to four blocks of one rectangle or two, with steps, gaps and twins."""
    n = draw(st.integers(1, 4))
    rectangles, need = [], []
    for block in range(n):
        start, height = draw(st.integers(0, 3)), draw(st.integers(1, 3))
        rectangles.append(Rectangle(block, start, start + draw(st.integers(1, 3)), height))
        if draw(st.integers(0, 3)) == 0:
            low = draw(st.integers(1, height))
            rectangles.append(Rectangle(block, 8, 8 + draw(st.integers(1, 2)), low))
        need.append(height)
    step = tuple(draw(st.sampled_from([1, 1, 2])) for _ in range(n))
    most = draw(st.integers(max(need), 9))
    high = tuple((most - size) // s * s for size, s in zip(need, step, strict=True))
    low = tuple(draw(st.sampled_from([0, 0, top])) for top in high)
    gaps = ()
    if draw(st.booleans()):
        gaps = tuple(
            ((a, a), (b, b)) if b - a > s else ((a, b),)
            for a, b, s in zip(low, high, step, strict=True)
        )
    ordered = ((0, n - 1),) if n > 1 and draw(st.integers(0, 3)) == 0 else ()
    bound = draw(st.sampled_from([0, max(need)]))
    target = draw(st.sampled_from([None, None, draw(st.integers(0, most))]))
    return RectangleModel(
        step=step, low=low, high=high, need=tuple(need), rectangles=tuple(rectangles),
        ordered=ordered, bound=bound, most=most, start=None, gaps=gaps, target_height=target,
    )  # fmt: skip


def packings(model):
    """Every choice of addresses that is a packing."""
    gaps = model.gaps or tuple(((a, b),) for a, b in zip(model.low, model.high, strict=True))
    choices = [
        [x for a, b in ranges for x in range(a, b + 1) if x % s == 0]
        for ranges, s in zip(gaps, model.step, strict=True)
    ]
    for at in itertools.product(*choices):
        if any(at[i] > at[j] for i, j in model.ordered):
            continue
        if all(
            p.block == q.block
            or p.stop <= q.start
            or q.stop <= p.start
            or at[p.block] + p.height <= at[q.block]
            or at[q.block] + q.height <= at[p.block]
            for p, q in itertools.combinations(model.rectangles, 2)
        ):
            yield at


def value_of(model, at):
    ends = [x + size for x, size in zip(at, model.need, strict=True)]
    if model.target_height is None:
        return max(ends)
    return sum(max(end - model.target_height, 0) for end in ends)


@given(rectangle_models())
def test_places(model):
    found = cpsat_rectangles.solve(model, LIMITS)
    values = [value_of(model, at) for at in packings(model)]
    if not values:
        assert found.status is Status.INFEASIBLE
        return
    least = min(values)
    if model.target_height is None:
        least = max(least, model.bound)
    assert (found.status, found.value, found.bound) == (Status.OPTIMAL, least, least)
    at = tuple(found.x.astype(int).tolist())
    unordered = dataclasses.replace(model, ordered=())  # a twin may have the other's place
    assert at in set(packings(unordered)) and value_of(model, at) <= least
    begun = dataclasses.replace(model, start=at)
    assert cpsat_rectangles.solve(begun, LIMITS).value == least


SQUARE = RectangleModel(
    step=(1, 2), low=(0, 0), high=(7, 6), need=(2, 3),
    rectangles=(Rectangle(0, 0, 4, 2), Rectangle(1, 2, 5, 3), Rectangle(1, 7, 8, 2)),
    ordered=((0, 1),), bound=6, most=9, start=(0, 2),
)  # fmt: skip


def test_the_question_whether_the_bound_is_met():
    asked = cpsat_rectangles._within(SQUARE)
    assert (asked.high, asked.bound, asked.most) == ((4, 2), 6, 6)
    assert asked.ordered == () and asked.start is None and asked.low == (0, 0)
    assert cpsat_rectangles._by_area(SQUARE) == [1, 0]  # 11 and 8
    equal = dataclasses.replace(SQUARE, rectangles=SQUARE.rectangles[:1] * 2)
    assert cpsat_rectangles._by_area(equal) == [0, 1]


def answers(monkeypatch, *given, model=SQUARE, watch=None):
    """What `solve` asks one program after the other, where they are answered so."""
    asked, left = [], iter(given)

    def solve_program(model, limits):
        asked.append((model.bound, model.most, limits.time_limit))
        return SolverResult(next(left), value=0.0)

    monkeypatch.setattr(cpsat_rectangles, "_solve_program", solve_program)
    found = cpsat_rectangles.solve(model, SolverLimits(time_limit=100.0, watch=watch))
    return found.status, asked


def test_first_whether_the_bound_is_met_then_the_least(monkeypatch):
    share = pytest.approx(100.0 * cpsat_rectangles._WITHIN)
    rest = pytest.approx(100.0, abs=5.0)
    told = []
    status, asked = answers(
        monkeypatch, Status.OPTIMAL, watch=lambda value, bound: told.append((value, bound))
    )
    assert (status, asked, told) == (Status.OPTIMAL, [(6, 6, share)], [(6, 6)])
    refuted = answers(monkeypatch, Status.INFEASIBLE, Status.OPTIMAL)
    assert refuted == (Status.OPTIMAL, [(6, 6, share), (7, 9, rest)])
    late = answers(monkeypatch, Status.UNKNOWN, Status.FEASIBLE)
    assert late == (Status.FEASIBLE, [(6, 6, share), (6, 9, rest)])
    only = dataclasses.replace(SQUARE, most=6)
    assert answers(monkeypatch, Status.INFEASIBLE, model=only) == (
        Status.INFEASIBLE, [(6, 6, share)],
    )  # fmt: skip
    for change in ({"bound": 0}, {"target_height": 3}):
        model = dataclasses.replace(SQUARE, **change)
        _, asked = answers(monkeypatch, Status.OPTIMAL, model=model)
        assert asked == [(model.bound, 9, rest)]


def test_a_limit_that_ends_it():
    random = np.random.default_rng(0)
    n = 60
    start = random.integers(0, 40, n)
    size = random.integers(1, 99, n)
    rows = [
        Rectangle(k, int(start[k]), int(start[k] + random.integers(1, 40)), int(size[k]))
        for k in range(n)
    ]
    most = int(size.sum())
    model = RectangleModel(
        step=(1,) * n, low=(0,) * n, high=tuple((most - size).tolist()),
        need=tuple(size.tolist()), rectangles=tuple(rows), ordered=(), bound=0, most=most,
        start=None,
    )  # fmt: skip
    found = cpsat_rectangles.solve(model, SolverLimits(time_limit=1e-4))
    assert found.status in (Status.UNKNOWN, Status.FEASIBLE)
    assert found.bound >= 0 and math.isfinite(found.bound)
