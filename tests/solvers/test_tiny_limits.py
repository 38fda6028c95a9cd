"""Limits that end a solver before it has a bound or a point: every program, backend and limit."""

import math

import jax
import numpy as np
import pytest

import olla_xla
from benchmarks.papers.ilp_forms import FORMS, least_peak
from benchmarks.place_ilp import Programs, place_by_programs
from benchmarks.place_ilp.arenas import arenas
from benchmarks.place_ilp.joint import joint_program
from benchmarks.place_ilp.located import located
from examples.zoo import load
from olla_xla.place import PlacementProblem
from olla_xla.place.items import independent, items_of
from olla_xla.solvers.linear import LinearModel, SolverLimits, Status
from olla_xla.solvers.programs.recomputation import choose_exactly
from olla_xla.solvers.programs.residuals import least
from olla_xla.solvers.solve import BACKENDS, known, solve, solve_apart, whole_units
from tests.remat.test_remat import front
from tests.remat.test_residuals_ilp import _choices, _module
from tests.support.compiles import xla_schedule
from tests.support.graphs import train_step

SECONDS = (1e-6, 0.01)
EVERY = pytest.mark.parametrize("seconds", SECONDS)
BY = pytest.mark.parametrize("backend", BACKENDS)
FORM_OF = [(form, backend) for form, backends in FORMS.items() for backend in backends]
PLACED_BY = [
    *((backend, form) for backend in BACKENDS for form in ("big-m",)),
    ("cpsat", "no-overlap"),
]


def watched(seconds):
    """Limits, and the bounds that they are told, each of which reads as a number."""

    def told(value, bound):
        assert value is None or math.isfinite(value)
        assert not math.isnan(bound) and bound < math.inf

    return SolverLimits(time_limit=seconds, watch=told)


def blocks(count=60):
    random = np.random.default_rng(3)
    start = random.integers(0, 40, count)
    stop = start + random.integers(1, 30, count)
    return PlacementProblem.of(start, stop, random.integers(1, 1000, count))


@EVERY
@BY
@pytest.mark.parametrize("started", [False, True])
def test_a_model(backend, seconds, started):
    random, model = np.random.default_rng(0), LinearModel()
    columns = [model.add_variable(cost=-float(random.integers(1, 1000))) for _ in range(120)]
    for _ in range(60):
        model.add_row(columns, random.integers(1, 100, 120).tolist(), upper=1500)
    if started:
        model.start = np.zeros(120)
    found = solve(model, watched(seconds), [backend])
    assert found.status is not Status.ERROR, found.failures
    assert not math.isnan(found.bound) and found.bound < math.inf
    assert (found.x is not None) or not started


@pytest.mark.parametrize("seconds", [1e12, math.inf])
@BY
def test_no_limit(backend, seconds):
    """A limit that is never reached: also in a process of its own."""
    model = LinearModel()
    columns = [model.add_variable(cost=-float(k)) for k in range(1, 9)]
    model.add_row(columns, [1.0] * 8, upper=3)
    found = solve(model, watched(seconds), [backend])
    assert found.status is Status.OPTIMAL and found.bound == -21, found.failures
    if backend == "highs":
        apart = solve_apart("olla_xla.solvers.backends.highs", model, watched(seconds))
        assert apart.status is Status.OPTIMAL


@EVERY
@pytest.mark.parametrize(("form", "backend"), FORM_OF)
def test_orders(form, backend, seconds):
    graph = train_step(5)
    found = least_peak(graph, form=form, backends=[backend], limits=watched(seconds))
    assert not [f for f in found.failures if "licence" not in f]
    assert 0 <= found.bound_bytes <= found.peak_bytes and len(found.order)


@EVERY
@BY
def test_joint(backend, seconds):
    found = joint_program(train_step(1), limits=watched(seconds), backend=backend)
    assert 0 <= found.bound <= found.height <= found.start


@EVERY
@pytest.mark.parametrize(("backend", "form"), PLACED_BY)
@pytest.mark.parametrize("told", [False, True])
def test_places(backend, form, seconds, told):
    programs = Programs(backend, form=form, start=told, bound=told, watch=watched(seconds).watch)
    problem = blocks(25 if backend == "gurobi" else 60)
    packing = place_by_programs(problem, time_limit=seconds, programs=programs)
    assert 0 < packing.bound <= packing.height
    items, _ = items_of(problem, 0)
    for part in independent(items):
        tall = np.cumsum(part.size) - part.size
        found = located(
            part, tall, bound=0, target_height=0, limits=watched(seconds), programs=programs
        )
        assert 0 <= found.bound <= int((found.offsets + part.need).max())


@pytest.mark.slow
@EVERY
def test_recomputation(seconds):
    f = front("gpt")
    found = choose_exactly(f.graph, int(0.8 * f.start.peak), watched(seconds))
    assert found.result.status is not Status.ERROR
    point, bound = f.refined(f.start, int(0.8 * f.start.peak), seconds)
    assert 0 <= bound <= point.seconds


@pytest.mark.slow
@EVERY
def test_scan_residuals(seconds):
    choices = _choices(_module("plain"))
    found = least(choices, 1.0, watched(seconds))
    assert found is None or 0 <= found.bound <= found.bytes


@EVERY
@BY
def test_a_whole_plan(backend, seconds):
    """Its order and its places; a limit so small is told, as everywhere."""

    def step(x, w):
        return jax.numpy.tanh(x @ w).sum()

    arguments = (jax.numpy.ones((8, 16)), jax.numpy.ones((16, 4)))
    planned = olla_xla.plan(step, method="ilp", backend=backend, time_limit=seconds)
    planned.lower(*arguments).compile()
    assert planned.plans[-1].lower_bound_bytes <= planned.plans[-1].assigned_bytes


@pytest.mark.slow
@EVERY
@BY
@pytest.mark.parametrize("small", [False, True])
def test_the_places_of_a_plan(backend, seconds, small):
    """The places under an order, then both at once."""
    step, shapes, options = load("mlp")(batch_size=16, optimizer="sgd")
    if small:
        step, shapes, options = (lambda x, w: (x @ w).sum()), (jax.numpy.ones((8, 8)),) * 2, {}
    module = xla_schedule(jax.jit(step, **options).lower(*shapes))
    said = []
    for row in arenas(module, "cpu", backend, seconds, said.append):
        assert 0 <= row.bound <= row.height or row.status is Status.UNKNOWN
        assert row.status is not Status.UNKNOWN or "rows" in row.message
    assert not [line for line in said if "inf" in line or "nan" in line]


def test_what_a_bound_comes_to():
    for nothing in (-math.inf, math.inf, math.nan, -1e100, 1e100, 1e20, -1e30):
        assert known(nothing) == -math.inf
        assert whole_units(nothing) == 0
    bounds = (-3.0, 0.0, 1e-9, 2.0000001, 2.1, 7.9999999)
    assert [whole_units(bound) for bound in bounds] == [0, 0, 0, 2, 3, 8]
