"""What the rows of the integer programs' benchmarks say, a solver and a clock being given."""

import dataclasses
import types

import numpy as np
import pytest

from benchmarks.made_graphs import random_graph
from benchmarks.papers import ilp, ilp_steps
from benchmarks.papers.eager import ilp_alone
from benchmarks.place import PlannedStep
from olla_xla.errors import SolverError
from olla_xla.place import PlacementProblem
from olla_xla.schedule.exact.forms import ExactOrder
from olla_xla.solvers.linear import SolverLimits, Status
from tests.support.graphs import train_step


def found(**changes):
    given = {
        "order": np.arange(3), "peak_bytes": 10, "bound_bytes": 8, "status": Status.OPTIMAL,
        "seconds": 0.5, "backend": "cpsat", "message": "", "failures": (),
        "variables": 3, "rows": 5, "nonzeros": 7,
    }  # fmt: skip
    return ExactOrder(**{**given, **changes})


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self, monkeypatch, *modules):
        self.now = 100.0
        fake = types.SimpleNamespace(monotonic=lambda: self.now)
        for module in modules:
            monkeypatch.setattr(module, "time", fake)


def test_several_graphs_are_summed_up():
    row = ilp._solve("g", "running", "cpsat", "(10)", [found(), found(peak_bytes=5, seconds=1.0)])
    assert row == ilp.Solve(
        graph="g", form="running", backend="cpsat", without="(10)", variables=6, rows=10,
        nonzeros=14, seconds=1.5, status="optimal", peak_bytes=15, bound_bytes=16,
    )  # fmt: skip
    limited = found(status=Status.FEASIBLE)
    failed = found(status=Status.ERROR, failures=("highs: broken", "cpsat: too"))
    assert ilp._solve("g", "f", "b", "", [found(), limited, failed]).status == "feasible"
    assert ilp._solve("g", "f", "b", "", [found(), failed]).status == "highs: broken"


def test_switches_leave_each_equation_out_in_turn(monkeypatch):
    asked = []

    def least_peak(graph, *, form, equations, backends, limits):
        asked.append((graph.name, form, tuple(equations), backends[0]))
        return found()

    monkeypatch.setattr(ilp, "least_peak", least_peak)
    rows = list(ilp.switches(None, SolverLimits(), ["highs", "cpsat"]))
    assert {r.graph for r in rows} == {"20 random graphs"} and len(asked) == 20 * len(rows)
    assert [(r.backend, r.without) for r in rows if r.form == "running"] == [
        (b, w) for b in ("highs", "cpsat") for w in ("", "(10)", "(11)", "(12)", "(10) (11) (12)")
    ]
    assert rows[0].variables == 60 and asked[0][2] == ("10", "11", "12")
    assert asked[20][2] == ("11", "12") and asked[80][2] == ()
    lifetimes = [equations for _, form, equations, _ in asked if form == "lifetimes"]
    assert {len(e) for e in lifetimes} == {len(ilp.EQUATIONS) - k for k in (0, 1, 4)}
    (one, *_) = ilp.switches(train_step(1), SolverLimits(), ["cpsat"])
    assert one.graph == train_step(1).name and one.variables == 3


def test_agreement_counts_what_is_right(monkeypatch):
    clock = Clock(monkeypatch, ilp)
    optima = iter([10, 20] * 250)
    told = []
    monkeypatch.setattr(ilp, "brute_force", lambda graph: next(optima))

    def least_peak(graph, *, form, backends):
        clock.now += 0.25
        peak = {"running": 10, "lifetimes": 11, "plain": 20, "intervals": 10}[form]
        status = Status.FEASIBLE if form == "intervals" else Status.OPTIMAL
        return found(peak_bytes=peak, bound_bytes=peak, status=status)

    monkeypatch.setattr(ilp, "least_peak", least_peak)
    rows = ilp.agreement(201, ["cpsat"], told.append)
    assert {(r.form, r.graphs, r.agreed, r.seconds) for r in rows} == {
        ("running", 201, 201, 50.25), ("lifetimes", 201, 0, 50.25),
        ("plain", 201, 201, 50.25), ("intervals", 201, 0, 50.25),
    }  # fmt: skip
    assert told == ["200 random graphs"]
    assert not ilp.all_agree(rows) and ilp.all_agree(rows[:1])
    stored = ilp.as_json([], rows[:1])
    assert stored == {"solves": [], "agreement": [dataclasses.asdict(rows[0])]}


ROW = ilp_alone.Row(
    step="s", form="running", backend="cpsat", operators=3, variables=0, rows=0,
    program_bytes=200, least_bytes=100, search_bound_bytes=90, near_seconds=None, seconds=0.0,
    status="not built", known=(),
)  # fmt: skip


def alone(monkeypatch, heard, ended, result, limits=(1.0, 4.0, 9.0)):
    """The row where a solver tells (seconds, best, bound) and ends then with a result."""
    clock = Clock(monkeypatch, ilp_alone)
    asked = []

    def least_peak(graph, *, form, backends, limits):
        asked.append((form, backends, limits.time_limit, limits.apart))
        for at, best, bound in heard:
            clock.now = 100.0 + at
            limits.watch(best, bound)
        clock.now = 100.0 + ended
        return result

    monkeypatch.setattr(ilp_alone, "least_peak", least_peak)
    row = ilp_alone._row(ROW, random_graph(0), limits, built=True)
    assert asked == [("running", ["cpsat"], limits[-1], True)]
    return row


def test_what_a_solver_alone_knew(monkeypatch):
    heard = [(0.5, None, -3.0), (1.0, 120.4, 10.6), (3.0, 101.0, 50.0)]
    result = found(peak_bytes=100, bound_bytes=100)
    row = alone(monkeypatch, heard, 4.0, result)
    assert (row.variables, row.rows, row.seconds, row.status) == (3, 5, 4.0, "optimal")
    assert row.near_seconds == 3.0  # 101 is within 1 % of 100
    assert [(k.limit, k.bytes, k.bound_bytes, k.proven) for k in row.known] == [
        (1.0, 120, 11, False), (4.0, 100, 100, True), (9.0, 100, 100, True),
    ]  # fmt: skip
    late = alone(monkeypatch, [(3.0, 102.0, 50.0)], 9.5, found(peak_bytes=102, status="feasible"))
    assert late.near_seconds is None and late.status == "feasible"
    assert [(k.bytes, k.proven) for k in late.known] == [(None, False), (102, False), (102, False)]
    failed = found(status=Status.ERROR, failures=("cpsat: broken", "x"), peak_bytes=100)
    broken = alone(monkeypatch, [], 0.5, failed)
    assert broken.status == "cpsat: broken" and broken.near_seconds is None
    assert {(k.bytes, k.bound_bytes, k.proven) for k in broken.known} == {(None, 0, False)}
    nothing = alone(monkeypatch, [(0.5, None, -3.0)], 9.5, found(peak_bytes=102))
    assert [k.bound_bytes for k in nothing.known] == [0, 0, 8]
    assert ilp_alone._row(ROW, random_graph(0), (1.0,), built=False) is ROW


def test_a_watch_notes_the_first_and_the_near(monkeypatch):
    clock = Clock(monkeypatch, ilp_steps)
    monkeypatch.setattr(ilp_steps, "_cpu_seconds", lambda: clock.now / 2)
    watch = ilp_steps._Watch(100)
    for seconds, value in ((1, None), (2, 150.0), (3, 101.5), (4, 101.0), (5, 100.0)):
        clock.now = 100.0 + seconds
        watch(value, 0.0)
    assert (watch.first, watch.near, watch.seconds(), watch.cpu_seconds()) == (2, 4, 5, 2.5)


def test_processor_time_is_of_this_process_and_its_children(monkeypatch):
    monkeypatch.setattr(ilp_steps, "os", types.SimpleNamespace(times=lambda: (1, 2, 4, 8, 999)))
    assert ilp_steps._cpu_seconds() == 15


def test_the_rows_of_a_step():
    every = ilp_steps.keys(["highs", "cpsat"], ["orders", "places"])
    orders = [key for key in every if key[0] == "order"]
    assert every[: len(orders)] == orders and len(set(every)) == len(every)
    named = ["ours", "not condensed", "no spans", "control edges", "no start", "no bound", "plain"]
    assert [v for _, v, b in orders if b == "highs"] == named
    assert [v for _, v, b in orders if b == "cpsat"] == [*named, "intervals"]
    places = [v for _, v, b in every if (_, b) == ("places", "cpsat")]
    assert places[:4] == ["plain", "plain, no-overlap", "ours", "ours, no-overlap"]
    assert len(places) == 2 * len([v for _, v, b in every if (_, b) == ("places", "highs")])
    assert ilp_steps.keys(["highs"], []) == []
    assert len(ilp_steps.STEPS) == 16 and ilp_steps.STEPS[:2] == ("mlp/4/adam/cpu", "mlp/4/sgd/cpu")


def test_an_order_s_row(monkeypatch):
    """What each variant asks for, and what its row says."""
    asked = {}
    step = PlannedStep("small", b"", "cpu", train_step(2))

    def least_peak(graph, *, backends, limits, **options):
        name = ("highs", "cpsat")[len(asked) >= 7], len(asked)
        asked[name] = options, limits.time_limit, limits.apart
        if len(asked) == 2:
            return found(status=Status.ERROR, failures=("cpsat: broken", "x"))
        return found(status=Status.FEASIBLE)

    monkeypatch.setattr(ilp_steps, "least_peak", least_peak)
    rows = list(ilp_steps.orders(step, ["cpsat"], 2.0))
    options = [options for options, *_ in asked.values()]
    assert {(limit, apart) for _, limit, apart in asked.values()} == {(2.0, True)}
    start, bound = options[0]["start"], options[0]["bound_bytes"]
    assert bound == rows[0].least_bytes > 0 and len(start) == len(step.graph.operators)
    assert options[1] == {"start": start, "bound_bytes": bound, "reduce": False}
    assert options[2]["equations"] == () and options[3]["early_updates"] is True
    assert options[4] == {"start": None, "bound_bytes": bound}
    assert options[5]["bound_bytes"] == 0
    assert options[6] == {"form": "plain"} and options[7]["form"] == "intervals"
    assert [r.status for r in rows[:3]] == ["feasible", "cpsat: broken", "feasible"]
    assert {(r.variables, r.rows, r.value_bytes, r.bound_bytes) for r in rows} == {(3, 5, 10, 8)}
    assert {r.first_seconds for r in rows} == {None} and {r.limit for r in rows} == {2.0}
    done = [r.key for r in rows]
    assert list(ilp_steps.orders(step, ["cpsat"], 2.0, done)) == []
    assert [r.variant for r in ilp_steps.orders(step, ["cpsat"], 2.0, done[1:])] == ["ours"]


def test_the_row_of_places_that_a_solver_fails_at(monkeypatch):
    # By size and by span 18, by area 17, which is least, and begins no lower.
    problem = PlacementProblem.of([1, 0, 0, 2, 3], [4, 3, 2, 5, 4], [7, 2, 8, 6, 3])
    step = types.SimpleNamespace(case="small", problem=problem)
    asked = []

    def located(items, begin, *, bound, target_height, limits, programs):
        asked.append((bound, target_height, programs.bound))
        raise SolverError("no licence")

    monkeypatch.setattr(ilp_steps, "located", located)
    rows = list(ilp_steps.places(step, ["highs"], 2.0))
    assert {r.status for r in rows} == {"no licence"}
    assert {(r.value_bytes, r.bound_bytes, r.least_bytes) for r in rows} == {(17, 17, 17)}
    assert set(asked) == {(17, 17, True), (0, 0, False)}
    assert {(r.variables, r.rows, r.first_seconds) for r in rows} == {(0, 0, None)}


@pytest.mark.parametrize("most", [10, 10**9])
def test_a_row_says_how_large_a_program_would_be(monkeypatch, most):
    monkeypatch.setattr(ilp_steps, "_MOST", most)
    monkeypatch.setattr(ilp_steps, "least_peak", lambda *a, **k: found())
    step = PlannedStep("small", b"", "cpu", train_step(2))
    rows = list(ilp_steps.orders(step, ["highs"], 1.0))
    sizes = {r.variant: r.status for r in rows}
    if most > 10:
        assert set(sizes.values()) == {"optimal"}
        return
    numbers = {v: int(s.split()[2].replace(",", "")) for v, s in sizes.items()}
    # The condensed program is smaller, the paper's graph is another.
    assert numbers["ours"] == numbers["no spans"] < numbers["not condensed"]
    assert numbers["plain"] != numbers["ours"]
    assert {(r.variables, r.rows, r.seconds, r.cpu_seconds) for r in rows} == {(0, 0, 0.0, 0.0)}
    assert all(r.value_bytes == r.least_bytes >= r.bound_bytes > 0 for r in rows)
