"""Every backend on the same problems; solvers that fail, lie or are missing."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.errors import InputError, LimitError, SolverError
from olla_xla.solvers import solve as solvers
from olla_xla.solvers.linear import INFINITY, LinearModel, SolverLimits, SolverResult, Status
from olla_xla.solvers.solve import BACKENDS, solve, solve_apart, solve_with


def _knapsack() -> LinearModel:
    """Most value in weight 10: items 1 and 3, value 16."""
    model = LinearModel("knapsack")
    for value in (5, 10, 4, 6):
        model.add_variable(cost=-value)
    model.add_row(range(4), [5, 6, 3, 4], upper=10, tag="weight")
    return model


def _infeasible() -> LinearModel:
    model = LinearModel()
    x = model.add_variables(2)
    model.add_row(x, [2, 2], lower=1, upper=1)
    return model


def _assignment(n: int, seed: int = 0) -> LinearModel:
    """Ten random costs a row: hard enough that a limit of one node stops early."""
    generator = np.random.default_rng(seed)
    model = LinearModel()
    for _ in range(n):
        x = [model.add_variable(cost=-int(cost)) for cost in generator.integers(1, 1000, n)]
        weights = generator.integers(1, 1000, n).tolist()
        model.add_row(x, weights, upper=sum(weights) // 3)
    for k in range(n):
        weights = generator.integers(1, 1000, n).tolist()
        model.add_row(range(k, n * n, n), weights, upper=sum(weights) // 3)
    return model


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("threads", [1, 2, 1])
def test_optimum(backend, threads):
    result = solve(_knapsack(), SolverLimits(threads=threads), [backend])
    assert result.status is Status.OPTIMAL, result
    assert result.value == result.bound == -16
    assert result.point().tolist() == [0, 1, 0, 1]
    assert result.backend == backend
    assert not result.failures


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_watch_is_told_of_values_and_bounds(backend):
    told = []
    limits = SolverLimits(time_limit=60, watch=lambda value, bound: told.append((value, bound)))
    model = _assignment(9)
    model.offset = 5
    result = solve(model, limits, [backend])
    assert result.status is Status.OPTIMAL and told
    slack = 1e-6 * abs(result.value)
    assert all(value is None or value >= result.value - slack for value, _ in told)
    assert all(bound <= result.value + slack for _, bound in told)
    assert any(value is not None for value, _ in told)


@pytest.mark.parametrize("backend", BACKENDS)
def test_infeasible(backend):
    result = solve(_infeasible(), backends=[backend])
    assert result.status is Status.INFEASIBLE
    with pytest.raises(SolverError, match="infeasible"):
        result.point()


@pytest.mark.parametrize("backend", BACKENDS)
def test_offset_and_equalities_and_negative_bounds(backend):
    model = LinearModel()
    model.offset = 7
    x = model.add_variables(2, lower=-5, upper=5, cost=1)
    model.add_row(x, [2, 3], lower=4, upper=4)
    model.add_row(x, [1, -1], lower=-INFINITY, upper=3)
    result = solve(model, backends=[backend])
    assert result.status is Status.OPTIMAL
    assert (result.value, result.bound) == (7, 7)
    assert result.point().tolist() == [-4, 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_without_variables_or_rows(backend):
    model = LinearModel()
    model.offset = 3
    assert solve(model, backends=[backend]).value == 3
    model.add_variable(cost=-1)
    assert solve(model, backends=[backend]).value == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_start_survives_a_limit(backend):
    model = _assignment(40)
    model.start = np.zeros(40 * 40)
    limits = SolverLimits(time_limit=1e-3, work_limit=1e-4, node_limit=1)
    result = solve(model, limits, [backend])
    assert result.status is Status.FEASIBLE
    assert result.value is not None and result.value <= 0
    assert result.bound < result.value


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_found_at_limit(backend):
    model = _assignment(40)
    model.add_row(range(1600), [1] * 1600, lower=600)
    result = solve(model, SolverLimits(time_limit=1e-3), [backend])
    assert result.status is Status.UNKNOWN, result
    assert result.x is None and result.value is None


@pytest.mark.parametrize("backend", ["highs", "gurobi"])
def test_continuous_variables(backend):
    model = LinearModel()
    x = model.add_variables(2, upper=10, integer=False, cost=-1)
    model.add_row(x, [1, 2], upper=3.5)
    model.add_row(x, [3, 1], upper=6)
    result = solve(model, backends=[backend])
    assert result.value == pytest.approx(-2.6)
    assert result.bound == pytest.approx(-2.6)


def test_cpsat_passes_on_what_it_cannot_take():
    model = LinearModel()
    model.add_variable(upper=2, integer=False, cost=-1)
    result = solve(model, backends=["cpsat", "highs"])
    assert result.backend == "highs" and result.value == 2 * -1
    assert "integer variables" in result.failures[0]
    model = LinearModel()
    model.add_variable(upper=INFINITY, cost=1)
    result = solve(model, backends=["cpsat"])
    assert result.status is Status.ERROR
    assert "x0 has none" in result.failures[0]


def test_a_licence_that_is_too_small_is_reported_and_the_next_solver_used():
    model = LinearModel()
    model.add_variables(2_100, cost=1)
    for k in range(2_099):
        model.add_row([k, k + 1], [1, 1], lower=1)
    result = solve(model, SolverLimits(time_limit=60), ["gurobi", "highs"])
    assert result.value == 1_050
    if result.backend == "highs":  # else this Gurobi has a full licence
        assert "licence does not admit 2100 variables" in result.failures[0]


def test_a_limit_without_counterpart_is_mentioned():
    result = solve(_knapsack(), SolverLimits(work_limit=10), ["highs"])
    assert "work_limit does not apply" in result.message
    result = solve(_knapsack(), SolverLimits(node_limit=10), ["cpsat"])
    assert "node_limit does not apply" in result.message


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_input_same_point(backend):
    limits = SolverLimits(seed=3, time_limit=60)
    first, second = (solve(_assignment(8), limits, [backend]) for _ in range(2))
    assert first.status is Status.OPTIMAL
    assert np.array_equal(first.point(), second.point())


def _liar(result: SolverResult):
    return lambda: lambda model, limits: result


def _crash():
    raise RuntimeError("segmentation of the licence server")


def _good():
    return lambda model, limits: solve(model, limits, ["highs"])


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        (SolverResult(Status.OPTIMAL, bound=-21, x=np.ones(4)), "row weight#0 has the value 18"),
        (SolverResult(Status.OPTIMAL, bound=-21, x=np.array([0, 1, 0, 0.5])), "integer variable 3"),
        (SolverResult(Status.OPTIMAL, bound=-10, x=np.array([0, 2, 0, 0])), "x1 = 2.0 is outside"),
        (SolverResult(Status.OPTIMAL, bound=0, x=np.full(4, math.nan)), "not finite"),
        (SolverResult(Status.OPTIMAL, bound=0, x=np.zeros(3)), "not (4,)"),
        (SolverResult(Status.OPTIMAL, bound=0), "no solution"),
        (SolverResult(Status.FEASIBLE, bound=-5, x=np.array([0, 1, 0, 1])), "claims the bound -5"),
        (SolverResult(Status.OPTIMAL, bound=-21, x=np.array([0, 1, 0, 1])), "its bound is -21"),
        (SolverResult(Status.OPTIMAL, bound=-6, x=np.array([0, 0, 0, 1])), "but it began at -10"),
        (SolverResult(Status.INFEASIBLE), "but the initial solution is feasible"),
        (SolverResult(Status.ERROR, message="out of luck"), "out of luck"),
    ],
)
def test_a_solver_that_lies_is_caught(lie, complaint):
    model = _knapsack()
    model.start = np.array([0.0, 1, 0, 0])
    result = solve_with(model, SolverLimits(), [("liar", _liar(lie)), ("good", _good)])
    assert result.backend == "good" and result.value == -16
    assert len(result.failures) == 1
    assert result.failures[0].startswith("liar: ") and complaint in result.failures[0]


def test_when_every_solver_fails():
    result = solve_with(
        _knapsack(),
        SolverLimits(),
        [("crash", _crash), ("liar", _liar(SolverResult(Status.OPTIMAL)))],
    )
    assert result.status is Status.ERROR
    with pytest.raises(SolverError, match="crash: RuntimeError: segmentation.*liar: "):
        result.point()


def test_a_backend_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(solvers._REGISTRY, "cplex", "olla_xla.solvers.solve.cplex")
    result = solve(_knapsack(), backends=["cplex", "highs"])
    assert result.value == -16
    assert result.failures[0] == "cplex: olla_xla.solvers.solve.cplex is missing"


def test_bad_input():
    with pytest.raises(InputError, match="highs, cpsat, gurobi"):
        solve(_knapsack(), backends=["scip"])
    with pytest.raises(InputError, match="choose some"):
        solve(_knapsack(), backends=[])
    model = _knapsack()
    model.start = np.ones(4)
    with pytest.raises(InputError, match="not feasible: row weight"):
        solve(model)
    for bad in ({"time_limit": 0}, {"threads": -1}, {"node_limit": 0}, {"seed": -1}):
        with pytest.raises(LimitError):
            SolverLimits(**bad)


@st.composite
def _models(draw: st.DrawFn) -> LinearModel:
    n = draw(st.integers(1, 4))
    model = LinearModel()
    for _ in range(n):
        lower = draw(st.integers(-2, 1))
        model.add_variable(lower, lower + draw(st.integers(0, 2)), cost=draw(st.integers(-5, 5)))
    for _ in range(draw(st.integers(0, 4))):
        columns = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4))
        values = [draw(st.integers(-4, 4)) for _ in columns]
        lower = draw(st.integers(-6, 6))
        upper = draw(st.sampled_from([lower, lower + 3, INFINITY]))
        model.add_row(columns, values, lower if draw(st.booleans()) else -INFINITY, upper)
    return model


@given(_models())
def test_backends_agree_with_enumeration(model):
    a = model.arrays()
    dense = np.zeros((model.rows, model.variables))
    for k in range(model.rows):
        span = slice(a.row_ptr[k], a.row_ptr[k + 1])
        dense[k, a.row_col[span]] = a.row_val[span]
    axes = [range(int(lo), int(hi) + 1) for lo, hi in zip(a.lower, a.upper, strict=True)]
    values = [
        float(a.cost @ x)
        for x in itertools.product(*axes)
        if (dense @ x >= a.row_lower).all() and (dense @ x <= a.row_upper).all()
    ]
    for backend in BACKENDS:
        result = solve(model, backends=[backend])
        assert not result.failures, result.failures
        if not values:
            assert result.status is Status.INFEASIBLE
        else:
            assert result.status is Status.OPTIMAL
            assert result.value == result.bound == min(values)


def test_a_solver_apart_says_the_same(monkeypatch):
    monkeypatch.setattr(solvers, "_APART_ROWS", 0)
    for model in (_knapsack(), _infeasible()):
        for backend in BACKENDS:
            limits = SolverLimits(apart=True, watch=lambda value, bound: None)
            alone, apart = solve(model, SolverLimits(), [backend]), solve(model, limits, [backend])
            assert alone.status is not Status.ERROR
            same = (alone.status, alone.value, alone.bound)
            assert (apart.status, apart.value, apart.bound) == same


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_backend_overruns_a_limit(backend, monkeypatch):
    monkeypatch.setattr(solvers, "_APART_ROWS", 0)
    monkeypatch.setattr(solvers, "_GRACE", 0.1)
    monkeypatch.setitem(solvers._REGISTRY, backend, "tests.support.sleepy_solver")
    model = LinearModel()
    model.add_variable(0, 5, cost=3)
    model.start = np.array([5.0])
    limits = SolverLimits(time_limit=3, apart=True, watch=lambda value, bound: None)
    result = solve(model, limits, [backend])
    assert (result.status, result.value, result.bound) == (Status.FEASIBLE, 3, 2)


def test_what_ends_within_a_gap_is_not_called_optimal():
    random, model = np.random.default_rng(0), LinearModel()
    columns = [model.add_variable(cost=float(random.integers(50, 99))) for _ in range(60)]
    for _ in range(40):
        model.add_row(columns, random.integers(1, 100, 60).tolist(), lower=900)
    model.start = np.ones(60)
    for backend in ("highs", "cpsat"):
        result = solve(model, SolverLimits(time_limit=20, gap=0.9), [backend])
        assert (result.status, result.failures) == (Status.FEASIBLE, ())
        assert result.bound < result.value <= result.bound / 0.1 and "within 90 %" in result.message
    with pytest.raises(LimitError, match="gap=1"):
        SolverLimits(gap=1)


def test_cpsat_tells_of_points():
    told = []
    result = solve(_knapsack(), SolverLimits(points=told.append), ["cpsat"])
    assert told and told[-1].tolist() == result.x.tolist()


def test_a_solver_that_does_not_stop_is_ended_and_what_it_told_counts():
    model = LinearModel()
    model.add_variable(0, 5, cost=1)
    model.start = np.array([5.0])
    told = []
    limits = SolverLimits(time_limit=2, watch=lambda value, bound: told.append((value, bound)))
    result = solve_apart("tests.support.sleepy_solver", model, limits)
    assert (result.status, result.bound, result.x.tolist()) == (Status.FEASIBLE, 2.0, [1.0])
    assert told == [(5.0, 2.0), (4.0, 1.0)]
    assert "ended" in result.message
    model.start = None
    with pytest.raises(SolverError, match="without a result"):
        solve_apart("tests.support.sleepy_solver", model, limits)
