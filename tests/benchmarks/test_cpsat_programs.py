"""CP-SAT's own programs of orders and places, by a look at all orders and all addresses."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.ilp_forms import cpsat_intervals
from benchmarks.papers.ilp_forms.intervals import Interval, IntervalModel, Option
from benchmarks.place_ilp import cpsat_rectangles
from benchmarks.place_ilp.rectangles import Rectangle, RectangleModel
from olla_xla.errors import SolverError
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status

LIMITS = SolverLimits(time_limit=20.0)


# Orders.


@st.composite
def interval_models(draw):
    """Up to five jobs, with intervals of which some may end early by an option."""
    n = draw(st.integers(1, 5))
    jobs = range(n)
    pairs = [(u, v) for u, v in itertools.combinations(jobs, 2) if draw(st.integers(0, 3)) == 0]
    intervals, options = [], []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.sampled_from([None, *jobs]))
        later = [v for v in jobs if start is None or v > start]
        users = sorted(draw(st.sets(st.sampled_from(later), max_size=3))) if later else []
        load = draw(st.integers(1, 5))
        if start is not None:
            pairs += [(start, u) for u in users]
        if not users or draw(st.integers(0, 4)) == 0:
            intervals.append(Interval(load, start, to_end=True))
            continue
        up_to = tuple(u for u in users[1:] if draw(st.booleans()))
        until = tuple(u for u in users if u not in up_to)
        mine = ()
        if draw(st.booleans()):
            job = draw(st.sampled_from(until))
            others = [u for u in jobs if u != job]
            after = draw(st.sets(st.sampled_from(others), max_size=2)) if others else ()
            blocker = draw(st.sets(st.sampled_from(others), max_size=2)) if others else set()
            options.append(
                Option(
                    job=job,
                    after=tuple(sorted(after)),
                    excludes=tuple(k for k in range(len(options)) if draw(st.booleans())),
                    forced=draw(st.booleans()),
                    blockers=(tuple(sorted(blocker)),) if blocker and draw(st.booleans()) else (),
                )
            )
            mine = ((job, (len(options) - 1,)),)
        intervals.append(Interval(load, start, until, up_to, options=mine))
    extra = tuple(draw(st.integers(0, 2)) for _ in jobs)
    first = tuple(draw(st.sampled_from([0, 0, min(1, v)])) for v in jobs)
    last = tuple(n - 1 for _ in jobs)
    most = sum(i.load for i in intervals) + max(extra)
    return IntervalModel(
        first, last, tuple(dict.fromkeys(pairs)), tuple(intervals), tuple(options), extra, 0, most
    )


def peaks(model):
    """The peak of every order with every choice of options that is admitted."""
    n = len(model.first)
    for order in itertools.permutations(range(n)):
        step = {v: t for t, v in enumerate(order)}
        if any(step[u] > step[v] for u, v in model.precedence):
            continue
        if any(not model.first[v] <= step[v] <= model.last[v] for v in range(n)):
            continue
        for taken in itertools.product((False, True), repeat=len(model.options)):
            if all(admitted(model, step, taken, k) for k in range(len(taken))):
                yield peak(model, step, taken)


def admitted(model, step, taken, k):
    option = model.options[k]

    def before(jobs):
        return all(step[u] < step[option.job] for u in jobs)

    others = any(taken[j] for j in option.excludes)
    blocked = any(map(before, option.blockers))
    if taken[k]:
        return before(option.after) and not others and not blocked
    return not (option.forced and before(option.after) and not others and not blocked)


def peak(model, step, taken):
    load = [0] * len(step)
    for v, extra in enumerate(model.extra):
        load[step[v]] += extra
    for i in model.intervals:
        chosen = {u for u, numbers in i.options if any(taken[k] for k in numbers)}
        stops = [step[u] for u in i.up_to] + [step[u] + (u not in chosen) for u in i.until]
        stop = len(step) if i.to_end else max(stops)
        for t in range(0 if i.start is None else step[i.start], stop):
            load[t] += i.load
    return max(load)


@settings(deadline=None, max_examples=80)
@given(interval_models())
def test_orders(model):
    least = min(peaks(model), default=None)
    if least is None:
        with pytest.raises(SolverError, match="every graph has an order"):
            cpsat_intervals.solve(model, LIMITS)
        return
    found = cpsat_intervals.solve(model, LIMITS)
    assert (found.status, found.value, found.bound) == (Status.OPTIMAL, least, least)
    assert sorted(found.x) == list(range(len(model.first)))
    told = dataclasses.replace(model, bound=least, start=tuple(found.x.astype(int).tolist()))
    again = cpsat_intervals.solve(told, LIMITS)
    assert (again.status, again.value, again.bound) == (Status.OPTIMAL, least, least)


@pytest.mark.parametrize(("after", "least"), [((1,), 7), ((), 5), ((2,), 5)])
def test_an_option_waits_for_all_that_must_come_before_it(after, least):
    """Jobs 2, 0 and 1 run in turn. The interval ends with 0 if its option may be taken."""
    model = IntervalModel(
        first=(0, 0, 0), last=(2, 2, 2), precedence=((2, 0), (0, 1)),
        intervals=(Interval(5, None, until=(0,), options=((0, (0,)),)),),
        options=(Option(0, after),), extra=(2, 0, 0), bound=0, most=9,
    )  # fmt: skip
    assert min(peaks(model)) == least
    assert cpsat_intervals.solve(model, LIMITS).value == least


# Places.


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
