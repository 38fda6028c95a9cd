"""What solvers of orders and places are asked for, and what is made of what they say."""

import dataclasses
import itertools
import types

import numpy as np
import pytest

from benchmarks.made_graphs import random_graph
from benchmarks.papers.eager import ilp_alone
from benchmarks.place_ilp import arenas
from olla_xla.errors import InputError, SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.problem.options import PlanOptions
from olla_xla.schedule.condense import reduce_graph
from olla_xla.solvers.linear import Status
from olla_xla.solvers.programs import orders as ilp
from olla_xla.solvers.programs.forms import ExactOrder
from olla_xla.solvers.programs.spans import coefficients
from tests.support.graphs import train_step

GRAPH = train_step(2)
N = len(GRAPH.operators)
MB = 1 << 20


def exact(**changes):
    given = {
        "order": np.arange(N)[::-1], "peak_bytes": 10, "bound_bytes": 8, "status": Status.OPTIMAL,
        "seconds": 0.5, "backend": "cpsat", "message": "said", "failures": (),
        "variables": 3, "rows": 5, "nonzeros": 7,
    }  # fmt: skip
    return ExactOrder(**{**given, **changes})


def ticking(monkeypatch, module, step=0.5):
    """A clock of which each look takes half a second."""
    ticks = itertools.count(100.0, step)
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: next(ticks)))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("bound", [8, 12])
def test_a_plan_s_order(monkeypatch, early, bound):
    asked, told = [], []
    ticking(monkeypatch, ilp)
    found = exact(bound_bytes=bound, failures=("broken", "x") if early else ())

    def least_peak(graph, **options):
        asked.append((graph, options))
        options["limits"].watch(None, 3.0 * MB)
        options["limits"].watch(2.5 * MB, 1.0 * MB)
        return found

    monkeypatch.setattr(ilp, "least_peak", least_peak)
    monkeypatch.setattr(ilp, "control_edges", lambda graph: [(0, 1)])
    start = np.arange(N), 30, 9
    options = PlanOptions(
        method="ilp", backend="cpsat", seed=2**31 + 5, early_updates=early, time_limit=9
    )
    order, proof = ilp.order_by_ilp(GRAPH, *start, options, 4.0, told.append)
    ((graph, given),) = asked
    limits = given.pop("limits")
    assert graph is GRAPH and (limits.time_limit, limits.seed, limits.apart) == (4.0, 5, True)
    edges = given.pop("edges")
    assert given == {"backends": ["cpsat"], "start": start[0], "bound_bytes": 9}
    assert edges == ([(0, 1)] if early else ())
    assert told == [
        f"cpsat, {GRAPH.name}: incumbent none yet, bound 3.00 MB",
        f"cpsat, {GRAPH.name}: incumbent 2.50 MB, bound 1.00 MB",
    ]
    least = min(bound, 10)
    said = (proof.status, proof.start_bytes, proof.peak_bytes, proof.cut_bytes, proof.bound_bytes)
    assert said == ("optimal", 30, 10, 9, least)
    assert (proof.variables, proof.rows, proof.seconds) == (3, 5, 0.5)
    assert (proof.computation, proof.backend) == (GRAPH.name, "cpsat")
    assert proof.message == ("broken" if early else "said")
    assert order.tolist() == found.order.tolist()
    # Without a watch, none; without the seconds to build it, or too large, the search's.
    monkeypatch.setattr(ilp, "least_peak", lambda graph, **o: asked.append(o) or found)
    ilp.order_by_ilp(GRAPH, *start, options, 1.0, None)
    assert (asked[-1]["limits"].time_limit, asked[-1]["limits"].watch) == (1.0, None)
    same, proof = ilp.order_by_ilp(GRAPH, *start, options, -1.0, None)
    assert same is start[0] and "only 0 can be built in 0.0 s" in proof.message
    larger = dataclasses.replace(options, seed=2**31 - 1)  # the most that every solver takes
    ilp.order_by_ilp(GRAPH, *start, larger, 1.0, None)
    assert asked[-1]["limits"].seed == 2**31 - 1
    size = coefficients(reduce_graph(GraphArrays.of(GRAPH)).arrays)
    monkeypatch.setattr(ilp, "_MOST", size)
    assert ilp.order_by_ilp(GRAPH, *start, options, 1.0, None)[0] is not start[0]
    monkeypatch.setattr(ilp, "_MOST", size - 1)
    same, proof = ilp.order_by_ilp(GRAPH, *start, options, 1.0, None)
    assert same is start[0] and f"{size:,} coefficients" in proof.message
    assert (proof.status, proof.variables, proof.rows, proof.seconds) == ("unknown", 0, 0, 0.5)
    assert (proof.start_bytes, proof.peak_bytes, proof.bound_bytes) == (30, 30, 9)


def test_programs_alone_are_as_large_as_those_of_plans():
    assert ilp_alone._MOST == ilp._MOST


def test_arenas_of_a_module(monkeypatch):
    """Search, programs, and both at once; a solver that fails is a row that says so."""
    ticking(monkeypatch, arenas)
    graph = random_graph(1)
    asked = []
    packing = types.SimpleNamespace(
        status=Status.FEASIBLE, height=40, bound=30, seconds=1.5, source="search"
    )
    fail = [False]

    def way(name):
        def find(problem, *, time_limit, programs=None):
            asked.append((name, problem, time_limit, programs and programs.backend))
            if programs is not None:
                programs.watch(None, 1.0 * MB)
                programs.watch(3.25 * MB, 2.0 * MB)
            if fail[0]:
                raise SolverError("no licence; get one")
            return packing

        return find

    joint = types.SimpleNamespace(
        optimal=True, height=50, bound=45, peak_bytes=44, variables=1234, rows=5678, start=9999
    )

    def joint_program(graph, *, limits, backend):
        asked.append((graph, limits.time_limit, limits.apart, backend))
        limits.watch(1.0 * MB, 0.5 * MB)
        if fail[0]:
            raise InputError("too large; leave it")
        return joint

    monkeypatch.setattr(arenas, "graphs", lambda module, platform: ["inner", graph])
    monkeypatch.setattr(arenas, "graph_problem", lambda *given, **more: (given[1:], more))
    monkeypatch.setattr(arenas, "load_of", lambda problem: 33)
    monkeypatch.setattr(arenas, "place", way("search"))
    monkeypatch.setattr(arenas, "place_by_programs", way("programs"))
    monkeypatch.setattr(arenas, "offsets_by_name", lambda *given: "offsets")
    monkeypatch.setattr(arenas, "check_placement", lambda *given: asked.append(given[1:]))
    monkeypatch.setattr(arenas, "joint_program", joint_program)
    told = []
    rows = list(arenas.arenas(b"", "cpu", backend="cpsat", time_limit=3.0, progress=told.append))
    way_row = ("feasible", 40, 30, 33, 1.5, "by search")
    assert [tuple(map(plain, vars(row).values())) for row in rows] == [
        ("places, search", *way_row), ("places, cpsat", *way_row),
        ("joint, cpsat", "optimal", 50, 45, 44, 0.5,
         "1,234 variables, 5,678 rows, begun at 9,999; nothing in place by choice"),
    ]  # fmt: skip
    order = range(len(graph.operators))
    problem = ((order,), {"alignment": arenas.PLATFORMS["cpu"].alignment})
    assert asked == [
        ("search", problem, 3.0, None), (order, "offsets", 40),
        ("programs", problem, 3.0, "cpsat"), (order, "offsets", 40), (graph, 3.0, True, "cpsat"),
    ]  # fmt: skip
    assert told == [
        "places, cpsat: incumbent none yet, bound 1.00 MB",
        "places, cpsat: incumbent 3.25 MB, bound 2.00 MB",
        "joint, cpsat: incumbent 1.00 MB, bound 0.50 MB",
    ]
    fail[0] = True
    monkeypatch.setattr(arenas, "_watch", lambda way, progress: lambda *given: None)
    failed = list(arenas.arenas(b"", "cpu", backend="cpsat", time_limit=3.0))
    assert [tuple(map(plain, vars(row).values())) for row in failed] == [
        *((w, "unknown", 0, 33, 33, 0.0, "no licence; get one")
          for w in ("places, search", "places, cpsat")),
        ("joint, cpsat", "unknown", 0, 0, 0, 0.5, "too large"),
    ]  # fmt: skip
    fail[0], joint.optimal = False, False
    assert list(arenas.arenas(b"", "cpu", backend="highs", time_limit=3.0))[-1].status == "feasible"
    monkeypatch.undo()
    assert arenas._watch("way", None) is None


def plain(value):
    return str(value) if isinstance(value, Status) else value
