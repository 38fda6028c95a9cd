"""The linear model by itself: bookkeeping, names, exact checks."""

import numpy as np
import pytest

from olla_xla.errors import InputError
from olla_xla.solvers.linear import LinearModel, violation

pytestmark = pytest.mark.quick


def test_rows_and_tags_and_names():
    model = LinearModel()
    x = model.add_variables(2, name=lambda k: f"C[{k}]")
    y = model.add_variable(-1, 5, cost=2, name="peak")
    z = model.add_variable()
    model.add_row(x, [1, 1], upper=1, tag="(1)")
    model.add_row([*x, y], [3, 4, -1], upper=0, tag="(14)")
    model.add_row(x, [1, 1], lower=1, upper=1, tag="(1)")
    assert (model.variables, model.rows, model.nonzeros) == (4, 3, 7)
    assert [model.variable_name(k) for k in range(4)] == ["C[0]", "C[1]", "peak", "x3"]
    assert model.row_name(1) == "(14)#1"
    a = model.arrays()
    assert a.cost.tolist() == [0, 0, 2, 0]
    assert a.row_ptr.tolist() == [0, 2, 5, 7]
    assert a.integral and a.integral_objective
    assert model.arrays() is a
    model.fix(z, 1)
    assert model.arrays().lower.tolist() == [0, 0, -1, 1]
    assert model.value(np.array([0, 0, 4, 1])) == 8


def test_a_column_named_twice_adds_up():
    model = LinearModel()
    x = model.add_variables(2, upper=9)
    model.add_row([x[0], x[1], x[0]], [1, 5, 2], upper=6)
    assert model.arrays().row_val.tolist() == [3, 5]
    assert violation(model, np.array([2.0, 0])) is None
    assert "has the value 8" in str(violation(model, np.array([1.0, 1])))


def test_integer_rows_are_checked_to_the_last_unit():
    model = LinearModel()
    model.add_variables(2, upper=2.0**40)
    model.add_row([0, 1], [2.0**20, -1], upper=0)
    big = 2.0**33
    assert violation(model, np.array([big / 2**20, big])) is None
    assert violation(model, np.array([big / 2**20, big - 1])) is not None
    model.add_variable(integer=False)  # now rows are checked to a tolerance
    assert violation(model, np.array([big / 2**20, big - 1, 0])) is None
    assert violation(model, np.array([big / 2**20, big * 0.9, 0])) is not None


def test_fractions_are_seen():
    model = LinearModel()
    model.add_variable(cost=0.5)
    assert not model.arrays().integral and not model.arrays().integral_objective
    model = LinearModel()
    model.add_variable(cost=1)
    model.add_row([0], [0.5], upper=1)
    assert not model.arrays().integral and model.arrays().integral_objective


def test_bad_input():
    model = LinearModel()
    with pytest.raises(InputError, match="allow no value"):
        model.add_variable(2, 1)
    x = model.add_variable(name="a")
    with pytest.raises(InputError, match="no a lies in"):
        model.bound(x, 3, 2)
    with pytest.raises(InputError, match="1 columns but 2 coefficients"):
        model.add_row([x], [1, 2])
