"""What becomes of a solver's answer, case by case; and what each solver is told."""

import math
import queue
import types

import numpy as np
import pytest
from gurobipy import GRB

from olla_xla.errors import InputError, SolverError
from olla_xla.solvers import solve
from olla_xla.solvers.backends import gurobi, highs
from olla_xla.solvers.linear import (
    INFINITY,
    ROUNDING_TOLERANCE,
    ROW_TOLERANCE,
    LinearArrays,
    LinearModel,
    LinearTerms,
    SolverLimits,
    SolverResult,
    Status,
    round_point,
    violation,
)
from olla_xla.solvers.solve import _checked


def counted(*, integer=True, offset=0.0):
    """Minimise x + offset with 2 <= x <= 9."""
    model = LinearModel()
    model.add_variable(2, 9, cost=1, integer=integer)
    model.offset = offset
    return model


def at(value):
    return np.array([float(value)])


FEASIBLE, OPTIMAL, UNKNOWN = Status.FEASIBLE, Status.OPTIMAL, Status.UNKNOWN


@pytest.mark.parametrize(
    ("given", "start", "expected"),
    [
        ((FEASIBLE, 5, 3.2), None, (FEASIBLE, 5, 4)),  # a bound of whole numbers goes up
        ((FEASIBLE, 5, 4.0000005), None, (FEASIBLE, 5, 4)),  # but for rounding
        ((FEASIBLE, 5, 4.2), None, (OPTIMAL, 5, 5)),
        ((FEASIBLE, 5, -math.inf), None, (FEASIBLE, 5, -math.inf)),
        ((FEASIBLE, 5, 1e30), None, (FEASIBLE, 5, -math.inf)),
        ((OPTIMAL, 5, 5), None, (OPTIMAL, 5, 5)),
        ((UNKNOWN, None, 3), None, (UNKNOWN, None, 3)),
        ((UNKNOWN, None, 3), 6, (FEASIBLE, 6, 3)),
        ((UNKNOWN, None, 6), 6, (OPTIMAL, 6, 6)),
        ((FEASIBLE, 7, 3), 6, (FEASIBLE, 6, 3)),  # the start is better
        ((FEASIBLE, 6, 3), 6, (FEASIBLE, 6, 3)),
        ((FEASIBLE, 5, 3), 6, (FEASIBLE, 5, 3)),
        ((FEASIBLE, 5, 5.5), None, "claims the bound 6"),
        ((OPTIMAL, 5, 3), None, "its bound is 3"),
        ((OPTIMAL, 7, 7), 6, "but it began at 6"),
        ((OPTIMAL, 6, 6), 6, (OPTIMAL, 6, 6)),
    ],
)
def test_what_comes_of_an_answer(given, start, expected):
    for offset in (0.0, 0.25):
        model = counted(offset=offset)
        status, value, bound = given
        result = SolverResult(status, bound=bound + offset, x=None if value is None else at(value))
        begun = None if start is None else SolverResult(FEASIBLE, start + offset, x=at(start))
        if isinstance(expected, str):
            with pytest.raises(SolverError):
                _checked(model, result, begun)
            continue
        found = _checked(model, result, begun)
        value = None if expected[1] is None else expected[1] + offset
        assert (found.status, found.value) == (expected[0], value)
        assert found.bound == expected[2] + offset
        better = start is not None and (given[1] is None or start < given[1])
        assert ("nothing better than the initial solution" in found.message) == better
        assert found.x is None if value is None else found.x == at(expected[1])


def test_fractions_are_held_to_a_tolerance():
    model = counted(integer=False)
    ok = _checked(model, SolverResult(FEASIBLE, bound=3.25, x=at(5)), None)
    assert (ok.status, ok.bound) == (FEASIBLE, 3.25)
    near = SolverResult(OPTIMAL, bound=5 - 4e-6, x=at(5))
    assert _checked(model, near, None).status is OPTIMAL  # within 1e-6 of 5
    for bound in (5 - 6e-6, 5 + 6e-6):
        with pytest.raises(SolverError):
            _checked(model, SolverResult(OPTIMAL, bound=bound, x=at(5)), None)


def test_tolerances():
    arrays = counted().arrays()
    assert round_point(arrays, at(3 + 0.9 * ROUNDING_TOLERANCE)) == 3
    with pytest.raises(SolverError, match="integer variable 0"):
        round_point(arrays, at(3 + 1.1 * ROUNDING_TOLERANCE))
    model = counted(integer=False)
    model.add_row([0], [100.0], lower=250.0, upper=700.0, tag="row")
    size = 700 * ROW_TOLERANCE  # relative to the row's terms
    for x, broken in ((7 + 0.009 * size, None), (7 + 0.011 * size, "row#0")):
        assert broken in (violation(model, at(x)) or "") if broken else not violation(model, at(x))
    for x in (2.5 - 0.011 * 250 * ROW_TOLERANCE, 1.9, 9.1):
        assert violation(model, at(x))
    free = counted(integer=False)
    for x in (2 - 0.9 * ROW_TOLERANCE, 9 + 0.9 * ROW_TOLERANCE):
        assert violation(free, at(x)) is None
    for x in (2 - 1.1 * ROW_TOLERANCE, 9 + 1.1 * ROW_TOLERANCE):
        assert "outside [2.0, 9.0]" in violation(free, at(x))


def test_sums_become_rows():
    model = counted()
    terms = LinearTerms().plus(0, 2).plus_constant(3).plus(0).plus_constant(-1)
    terms.into(model, lower=4, upper=9, tag="t")
    arrays = model.arrays()
    assert arrays.row_val.tolist() == [3] and arrays.row_col.tolist() == [0]
    assert (arrays.row_lower, arrays.row_upper, model.row_name(0)) == (2, 7, "t#0")
    LinearTerms().plus_constant(3).into(model, lower=3, upper=3)
    assert model.rows == 1
    for value in (2, 4):
        with pytest.raises(SolverError, match="is false"):
            LinearTerms().plus_constant(value).into(model, lower=3, upper=3)


# A process of its own.


def followed(*said, left=5.0):
    messages = queue.SimpleQueue()
    for message in said:
        messages.put(message)
    told = []
    limits = SolverLimits(watch=lambda value, bound: told.append((value, bound)))
    until = solve.time.monotonic() - solve._GRACE + left
    return solve._followed(messages, limits, until), told


def test_what_a_process_says():
    result = SolverResult(OPTIMAL, 1.0, 1.0)
    assert followed(("progress", (3.0, 1.0)), ("result", result)) == (result, [(3.0, 1.0)])
    late, told = followed(
        ("progress", (None, 1.0)), ("point", at(4)), ("progress", (4.0, 0.5)), ("point", at(3)),
        left=0.05,
    )  # fmt: skip
    assert (late.status, late.bound, late.x) == (FEASIBLE, 1.0, at(3))
    assert told == [(None, 1.0), (4.0, 0.5)]
    assert followed(left=-1.0)[0].status is UNKNOWN
    for message, words in ((None, "without a result"), (("error", "E: broken"), "E: broken")):
        with pytest.raises(SolverError, match=words):
            followed(message)


# What each solver is told.


def ended(status, *, points=1, integer=True):
    program = types.SimpleNamespace(
        Status=status, SolCount=points, ObjBound=4.0, ObjVal=5.0, getAttr=lambda *_: [5.0]
    )
    found = gurobi._result(program, [], counted(integer=integer).arrays())
    return found.status, found.bound, found.x is not None


def test_how_gurobi_ends():
    assert ended(GRB.OPTIMAL) == (OPTIMAL, 4.0, True)
    assert ended(GRB.OPTIMAL, integer=False) == (OPTIMAL, 5.0, True)
    assert ended(GRB.INFEASIBLE, points=0) == (Status.INFEASIBLE, -INFINITY, False)
    for limit in (GRB.TIME_LIMIT, GRB.SUBOPTIMAL, GRB.ITERATION_LIMIT, GRB.SOLUTION_LIMIT):
        assert ended(limit) == (FEASIBLE, 4.0, True)
        assert ended(limit, points=0) == (UNKNOWN, 4.0, False)
        assert ended(limit, integer=False) == (FEASIBLE, -INFINITY, True)
    assert ended(GRB.NUMERIC)[0] is Status.ERROR


def test_a_row_without_variables():
    def alone(lower, upper):
        empty = np.zeros(0)
        model = LinearArrays(
            empty, empty, empty, np.zeros(0, np.bool_), np.zeros(2, np.int64),
            np.zeros(0, np.int64), empty, np.array([lower]), np.array([upper]), 2.0,
        )  # fmt: skip
        found = highs._without_variables(model)
        return found.status, found.bound

    assert alone(0.0, 0.0) == alone(-1.0, 1.0) == (OPTIMAL, 2.0)
    assert alone(1.0, 1.0)[0] is alone(-1.0, -1.0)[0] is Status.INFEASIBLE


def test_starts_that_are_no_points():
    model = counted()
    model.start = at(2.5)
    from olla_xla.solvers.solve import solve

    with pytest.raises(InputError, match="the initial solution is not valid: integer variable 0"):
        solve(model)
