"""What is asked of a solver for places, and what becomes of its answers: every switch.

The solver is made up. It answers with the point at which it was to begin, with none, with an error;
what it was given, and what the programs come to, is held against what was looked at.
"""

import dataclasses
import itertools
import types

import numpy as np
import pytest

from benchmarks.made_graphs import random_graph
from benchmarks.place_ilp import joint, located, windows
from benchmarks.place_ilp.located import Programs
from benchmarks.place_ilp.locations import LocationIlp
from olla_xla.errors import SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.place import PlacementProblem
from olla_xla.place.exact.model import model_of
from olla_xla.place.items import independent, items_of
from olla_xla.place.programs import Units
from olla_xla.problem.graph import Tensor, TensorGraph
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status, violation
from tests.support.graphs import train_step
from tests.support.outcomes import outcome

WATCHED = []


def watch(value, bound):
    WATCHED.append((value, bound))


def part_of(seed, times, count=7):
    random = np.random.default_rng(seed)
    lower = random.integers(0, 6, count)
    problem = PlacementProblem.of(
        lower, lower + random.integers(2, 7, count), times * random.integers(1, 9, count)
    )
    return max(independent(items_of(problem, 0)[0]), key=len)


class Solver:
    """Answers as it is told to; notes what it was given."""

    def __init__(self, monkeypatch, kind):
        self.kind, self.asked = kind, []
        monkeypatch.setattr(located, "solve", self.linear)
        monkeypatch.setattr(located, "solve_special", self.rectangles)
        monkeypatch.setattr(joint, "solve", self.linear)

    def answer(self, point, low, limits):
        told = [limits.time_limit, limits.apart, limits.seed, limits.watch is None]
        if limits.watch is not None:
            limits.watch(None, 2.5)
            limits.watch(3.0, 2.0)
        self.asked.append(told)
        if self.kind == "error":
            return SolverResult(Status.ERROR, failures=("highs: broken",), message="no")
        if self.kind == "said":
            return SolverResult(Status.ERROR, message="said so")
        if self.kind == "feasible":
            return SolverResult(
                Status.FEASIBLE, value=1.0, bound=self.bound, x=point, message="late"
            )
        if self.kind == "none" or point is None:
            return SolverResult(Status.UNKNOWN, bound=low, message="none")
        return SolverResult(Status.OPTIMAL, value=1.0, bound=low, x=point, message="found")

    def linear(self, model, limits, backends):
        arrays = model.arrays()
        point = model.start
        self.asked.append([
            backends, [getattr(arrays, f.name) for f in dataclasses.fields(arrays)], point,
        ])  # fmt: skip
        if point is None and self.kind == "found":
            point = self.other(model)
        return self.answer(point, float(arrays.lower[0]) + 0.4, limits)

    def other(self, model):
        return np.where(np.isfinite(model.arrays().upper), model.arrays().upper, 0.0)

    def rectangles(self, modules, model, limits, backend):
        self.asked.append([sorted(modules), backend, repr(model)])
        point = None if model.start is None else np.array(model.start, float)
        if point is None and self.kind == "found":
            point = np.array(model.high, float)
        return self.answer(point, model.bound + 0.4, limits)


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances by a quarter of a second at each look."""
    found = types.SimpleNamespace(now=0.0)

    def monotonic():
        found.now += 0.25
        return found.now

    monkeypatch.setattr(located, "time", types.SimpleNamespace(monotonic=monotonic))
    return found


def said(found):
    return (
        found.offsets, found.bound, str(found.status), found.variables, found.rows, found.message,
        found.by,
    )  # fmt: skip


def test_one_program(monkeypatch, clock):
    seen = []
    for (backend, form), switches, times, kind, pinned, watched in itertools.product(
        (("highs", None), ("cpsat", None), ("cpsat", "big-m")),
        ({}, {"pruned": False}, {"start": False}, {"bound": False}),
        (1, 12), ("found", "none"), (False, True), (False, True),
    ):  # fmt: skip
        solver = Solver(monkeypatch, kind)
        clock.now = 0.0
        part = part_of(times, times)
        begin = (np.cumsum(part.size) - part.size)[::-1].copy()
        best = begin + times * np.arange(len(part))
        limits = SolverLimits(time_limit=9.0, seed=5, watch=watch if watched else None)
        run = located._Run(limits, Programs(backend, form, **switches))
        run._base = 7
        pins = {0: int(begin[0])} if pinned else {}
        found = run._program(part, model_of(part), best, begin, 3, 20 * times, 4.0, pins)
        seen.append([said(found), solver.asked, list(WATCHED)])
        WATCHED.clear()
    assert outcome(seen) == "efef6dcddc04"


@pytest.mark.parametrize("backend", ["highs", "cpsat"])
@pytest.mark.parametrize(("kind", "message"), [("error", "broken"), ("said", "said so")])
def test_a_solver_that_fails_is_told(monkeypatch, clock, backend, kind, message):
    Solver(monkeypatch, kind)
    part = part_of(1, 1)
    begin = np.cumsum(part.size) - part.size
    run = located._Run(SolverLimits(), Programs(backend))
    with pytest.raises(SolverError, match=message):
        run._program(part, model_of(part), begin, begin, 3, 5, 4.0, {})
    units = Units(part, begin, {})
    window = windows.Window(part, model_of(part), units, [[(0, 50)]] * len(part), 10, 60, begin)
    with pytest.raises(SolverError, match=message):
        run._window(window, SolverLimits())


def test_windows_of_a_part(monkeypatch, clock):
    """Programs of a few items: what each is given, and what all of them come to."""
    seen = []
    for backend, times, lower, watched in itertools.product(
        ("highs", "cpsat"), (1, 12), (False, True), (False, True)
    ):
        clock.now = 0.0
        part = part_of(3, times)
        tall = np.cumsum(part.size) - part.size
        solver = Solver(monkeypatch, "found")
        limits = SolverLimits(time_limit=8.0, seed=3, watch=watch if watched else None)
        run = located._Run(limits, Programs(backend))
        run._base = 11

        def narrowed(
            part, near, units, offsets, target, solve, *, lower=lower, asked=solver.asked, **more
        ):
            gaps = [[(0, 4), (6, 90)]] * len(part)
            window = windows.Window(part, near, units, gaps, 30, 90, offsets)
            asked.append([*solve(window, 1.5), *solve(window, 0.5), target, more])
            return offsets[::-1] // 2 if lower else offsets

        monkeypatch.setattr(located, "narrowed", narrowed)
        found = run._windows(part, model_of(part), tall, 3, 5, 0.5)
        seen.append([said(found), solver.asked, list(WATCHED)])
        WATCHED.clear()
    assert outcome(seen) == "40622f6a2c56"


def standing(graph):
    """The graph with some of its arguments there to the end, and two more of other sizes."""
    kept = tuple(
        dataclasses.replace(t, live_out=True) if t.live_in and k % 2 else t
        for k, t in enumerate(graph.tensors)
    )
    more = tuple(
        Tensor(f"more{k}", 3 + k, 0, (), 1000 + k, live_in=True, live_out=True) for k in range(2)
    )
    return dataclasses.replace(graph, tensors=(*kept, *more))


def points_of(model, addresses):
    """The addresses with which some binaries fit; the first variable is the peak."""
    a = model.arrays()
    rows = np.zeros((model.rows, model.variables))
    rows[np.repeat(np.arange(model.rows), np.diff(a.row_ptr)), a.row_col] = a.row_val
    bits = np.array(list(itertools.product((0, 1), repeat=model.variables - 1 - len(addresses[0]))))
    held = set()
    for at in addresses:
        x = np.column_stack([np.full(len(bits), a.upper[0]), np.tile(at, (len(bits), 1)), bits])
        made = x @ rows.T
        inside = ((x >= a.lower) & (x <= a.upper)).all(axis=1)
        if (inside & ((made >= a.row_lower) & (made <= a.row_upper)).all(axis=1)).any():
            held.add(at)
    return held


@pytest.mark.parametrize("pruned", [True, False])
def test_programs_hold_at_packings_alone(pruned):
    """By brute force: each packing up to the height that is given, twins in one order only."""
    for seed in range(8):
        part = part_of(seed, 1, count=3)
        part = dataclasses.replace(part, size=part.size % 3 + 1, need=part.size % 3 + 1)
        part = dataclasses.replace(part, part_height=part.size[part.owner()])
        near, count = model_of(part), len(part)
        units = Units(part, np.ones(count, np.int64), {})
        meet = {
            (i, j)
            for i, j in itertools.combinations(range(count), 2)
            if part.part_first[i] <= part.part_last[j] and part.part_first[j] <= part.part_last[i]
        }
        every = list(itertools.product(range(8), repeat=count))

        def packs(at, most, part=part, meet=meet):
            apart = all(
                at[i] + part.size[i] <= at[j] or at[j] + part.size[j] <= at[i] for i, j in meet
            )
            return apart and (at + part.size).max() <= most

        least = min((np.array(at) + part.size).max() for at in every if packs(at, 99))
        for most in (int(least), int(least) + 1):
            ilp = LocationIlp(part, near, units, bound=0, most=most, pruned=pruned)
            twins = [(int(near.twin[i]), i) for i in np.flatnonzero(near.twin >= 0)]
            expected = {
                at
                for at in every
                if packs(at, most) and (not pruned or all(at[i] <= at[j] for i, j in twins))
            }
            assert points_of(ilp.model, every) == expected


def test_addresses_lie_in_gaps():
    """By brute force, in steps of 1 and of 4 units: some choice of gaps fits, and those only."""
    for align, height, ranges in (
        (1, 16, [(0, 2), (5, 7), (9, 9)]), (4, 16, [(0, 4), (12, 16)]), (4, 16, [(8, 12)]),
    ):  # fmt: skip
        part = dataclasses.replace(part_of(1, 1, count=1), size=np.array([3]))
        part = dataclasses.replace(part, align=np.array([align]), part_height=np.array([3]))
        units = Units(part, np.zeros(1, np.int64), {})
        units.step = np.array([align])
        ilp = LocationIlp(part, model_of(part), units, bound=0, most=height + 9, gaps=[ranges])
        model, count = ilp.model, ilp.model.variables - 2
        held = {
            k * align
            for k in range(25 // align)
            for chosen in itertools.product((0, 1), repeat=count)
            if violation(model, np.array([height + 9, k, *chosen], float)) is None
        }
        allowed = {a for low, high in ranges for a in range(low, high + 1, align)}
        assert held == allowed


@pytest.mark.parametrize("backend", ["highs", "cpsat"])
def test_programs_whose_units_are_bytes_or_more(backend):
    """The same packing, in the larger unit; lower than the one that was known."""
    heights = []
    for unit in (1, 12):
        part = part_of(3, unit)
        tall = np.cumsum(part.size) - part.size
        run = located._Run(SolverLimits(), Programs(backend))
        found = run._program(part, model_of(part), tall, tall, 0, 0, 9.0, {})
        assert (found.by, found.status) == ("program", Status.OPTIMAL)
        heights.append(int((found.offsets + part.need).max()) // unit)
        assert heights[0] == heights[-1] < (tall + part.need).max() // unit


def test_twins_are_in_order():
    """Three alike change places, the others stay."""
    near = types.SimpleNamespace(twin=np.array([-1, -1, 0, 2, 1, -1]))
    assert located.in_order_of_twins(near, np.array([9, 4, 5, 7, 2, 1])).tolist() == [
        5, 2, 7, 9, 4, 1,
    ]  # fmt: skip
    two = types.SimpleNamespace(twin=np.array([-1, 0]))
    assert located.in_order_of_twins(two, np.array([9, 5])).tolist() == [5, 9]


def test_a_joint_program_s_answers(monkeypatch):
    """In bytes, above what is live all the time; the solver's claim, bound and status."""
    seen = []
    graphs = [*map(random_graph, range(5)), train_step(2), standing(train_step(2))]
    for graph, times, cut, watched in itertools.product(
        graphs, (1, 12), (False, True), (False, True)
    ):
        solver = Solver(monkeypatch, "found")
        graph = dataclasses.replace(
            graph,
            tensors=tuple(dataclasses.replace(t, bytes=times * t.bytes) for t in graph.tensors),
        )
        limits = SolverLimits(time_limit=9.0, watch=watch if watched else None)
        start = list(range(len(graph.operators)))
        found = joint.joint_program(graph, limits=limits, start=start, cut=cut)
        seen.append([vars(found), solver.asked, list(WATCHED)])
        WATCHED.clear()
    assert outcome(seen) == "33feb5c3f0f8"


def test_what_a_joint_program_proves(monkeypatch):
    """Its height is least where the bound meets it, whatever the status says."""
    graph = train_step(2)
    order = list(range(len(graph.operators)))
    solver = Solver(monkeypatch, "found")
    height = joint.joint_program(graph, start=order, cut=False).height
    solver.kind = "feasible"
    for bound, optimal in ((height + 0.0, True), (height - 1.0, False), (-np.inf, False)):
        solver.bound = bound
        found = joint.joint_program(graph, start=order, cut=False)
        assert (found.optimal, found.height, found.cut) == (optimal, height, 0)
        assert found.bound == max(bound, 0)
    nothing = joint.joint_program(TensorGraph("nothing", (), ()))
    assert (nothing.order, nothing.height, nothing.bound, nothing.cut) == ((), 0, 0, 0)
    small = dataclasses.replace(standing(graph).tensors[-1], bytes=1)
    beside = dataclasses.replace(graph, tensors=(*graph.tensors, small))
    assert joint.joint_program(beside, start=order).offsets[small.name] == 0  # at the bottom
    # By default the solver is told what no order is below.
    assert 0 < joint.joint_program(graph, start=order).cut <= height


def test_a_joint_program_is_judged(monkeypatch):
    """Order and places; and each placement gets the time that is left, or the least there is."""
    asked = []
    for name in ("check_schedule", "check_placement"):
        monkeypatch.setattr(joint, name, lambda *given, name=name: asked.append((name, *given[1:])))
    Solver(monkeypatch, "found")
    graph = train_step(1)
    found = joint.joint_program(graph, start=list(range(len(graph.operators))))
    order = list(found.order)
    places = {t.name: (found.offsets[t.name], t.bytes) for t in graph.tensors}
    assert asked == [("check_schedule", order), ("check_placement", order, places, found.height)]
    monkeypatch.setattr(joint, "place", lambda problem, time_limit: time_limit)
    for seconds, given in ((2.0, 2.0), (0.0, 1e-3)):
        assert joint._placed(graph, order, seconds)[1] == given

    # The orders with which it begins: the search's first, told the bytes that no order is below.
    def search(arrays, starts, **told):
        asked.append(told)
        return types.SimpleNamespace(lifetime_order=np.array(order))

    monkeypatch.setattr(joint, "forced_live_bound", lambda arrays: (55, 7))
    monkeypatch.setattr(joint.phases, "search", search)
    assert joint._orders(GraphArrays.of(graph), 2.5)[0] == order
    assert asked[-1] == {"time_limit": 2.5, "bound_bytes": 55}


def test_the_time_for_a_joint_program_s_start(monkeypatch):
    """A tenth, at most five seconds, shared by the orders; the least arena is where it begins."""
    graph = random_graph(3)
    n = len(graph.operators)
    asked = []
    real = joint._placed

    def placed(graph, order, seconds):
        asked.append((list(order), seconds))
        prepared, packing = real(graph, order, 1.0)
        return prepared, dataclasses.replace(packing, heights={0: packing.height + len(asked) % 2})

    def orders(arrays, seconds):
        asked.append(seconds)
        return [list(range(n))] * 2

    monkeypatch.setattr(joint, "_placed", placed)
    monkeypatch.setattr(joint, "_orders", orders)
    Solver(monkeypatch, "found")
    for limit in (0.01, 1.0, 30.0, 1000.0):
        joint.joint_program(graph, limits=SolverLimits(time_limit=limit))
    assert [row if isinstance(row, float) else row[1] for row in asked] == [
        0.01, 0.005, 0.005, 0.1, 0.05, 0.05, 3.0, 1.5, 1.5, 5.0, 2.5, 2.5,
    ]  # fmt: skip
