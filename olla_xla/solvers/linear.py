"""A solver-free (mixed-)integer linear model, its limits, and the result of solving it.

A formulation builds a `LinearModel`; `olla_xla.solvers.solve.solve` hands it to a solver and
returns a `SolverResult`. Nothing here imports a solver. Numbers are float64, in which integers up
to 2**53 are exact: a model whose data and variables are all integers is checked without rounding
errors.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import InputError, LimitError, SolverError

INFINITY = math.inf

Watch = Callable[[float | None, float], None]
"""Called while a solver runs with the objective of the best point so far, None before the first,
and the bound."""

Points = Callable[[NDArray[np.float64]], None]
"""Called while a solver runs with each better point, float64 [variables], not checked."""

ROUNDING_TOLERANCE = 1e-5
"""An integer variable may lie this far from an integer before its solution counts as broken."""

ROW_TOLERANCE = 1e-6
"""Relative violation allowed in rows with continuous variables or fractional data."""


class Status(enum.StrEnum):
    """The outcome of solving a model or placing blocks."""

    OPTIMAL = "optimal"
    """The answer is proven to be the best."""

    FEASIBLE = "feasible"
    """There is an answer, which is not proven to be the best."""

    UNKNOWN = "unknown"
    """Nothing was found within the limits, and nothing is proven."""

    INFEASIBLE = "infeasible"
    """It is proven that there is no answer."""

    ERROR = "error"
    """The solver failed."""


@dataclasses.dataclass(frozen=True)
class SolverLimits:
    """What a solver may spend, checked at construction, and callbacks that see its progress. With
    `threads=1` and no wall-clock limit reached, equal models and seeds give equal results.

    Attributes:
      time_limit: wall-clock seconds. threads: of the solver.
      seed: of its random numbers, not negative.
      work_limit: deterministic work, in CP-SAT's and Gurobi's own units (about a second each).
      node_limit: branch-and-bound nodes (HiGHS, Gurobi).
      gap: the solver may end at a point so much above its bound, as a part of its objective.
      watch: called with (best value or None, bound) at each better point and at better bounds, as
        often as the solver reports these.
      points: called with each better point (HiGHS, CP-SAT).
      apart: run the solver in a process of its own, which is killed if it overruns its time limit;
        that costs half a second, so small models, which never overran, are not.

    Raises:
      LimitError: a limit is not positive, or `gap` or `seed` out of range.
    """

    time_limit: float = 60.0
    threads: int = 1
    seed: int = 0
    work_limit: float | None = None
    node_limit: int | None = None
    gap: float = 0.0
    watch: Watch | None = None
    points: Points | None = None
    apart: bool = False

    def __post_init__(self) -> None:
        for name in ("time_limit", "threads", "work_limit", "node_limit"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise LimitError(f"{name}={value} must be positive")
        if not 0 <= self.gap < 1:
            raise LimitError(f"gap={self.gap} must be at least 0 and below 1")
        if not 0 <= self.seed < 2**31:
            raise LimitError(f"seed={self.seed} must be at least 0 and below 2**31")


@dataclasses.dataclass(frozen=True)
class SolverResult:
    """How a solve ended, with the best point and the bound.

    Attributes:
      status: how it ended. value: objective of `x`; None without one.
      bound: no feasible point has a smaller objective; -inf when nothing is known.
      x: float64 [variables], integer variables exactly integral; None if no point was found.
      seconds: wall-clock time in the solver. message: one line of detail.
      backend: name of the solver, or "". failures: a line for each backend that failed before.
    """

    status: Status
    value: float | None = None
    bound: float = -INFINITY
    x: NDArray[np.float64] | None = None
    seconds: float = 0.0
    message: str = ""
    backend: str = ""
    failures: tuple[str, ...] = ()

    def point(self) -> NDArray[np.float64]:
        """Returns `x`, the best point; raises SolverError, with backends' messages, without one."""
        if self.x is None:
            said = "; ".join([*self.failures, f"{self.backend or 'solve'}: {self.message}"])
            raise SolverError(f"no solution ({self.status}): {said}")
        return self.x


@dataclasses.dataclass(frozen=True, eq=False)
class LinearArrays:
    """A linear model as arrays: minimise cost x + offset, row_lower <= A x <= row_upper.

    Attributes:
      cost, lower, upper: float64 [variables]. integer: bool [variables].
      row_ptr, row_col, row_val: A by rows (CSR), columns of a row distinct.
      row_lower, row_upper: float64 [rows].
      offset: constant of the objective.
    """

    cost: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    integer: NDArray[np.bool_]
    row_ptr: NDArray[np.int64]
    row_col: NDArray[np.int64]
    row_val: NDArray[np.float64]
    row_lower: NDArray[np.float64]
    row_upper: NDArray[np.float64]
    offset: float

    @property
    def integral(self) -> bool:
        """Whether all variables, coefficients and finite bounds are integers."""
        data = (self.cost, self.lower, self.upper, self.row_val, self.row_lower, self.row_upper)
        return bool(self.integer.all()) and all(
            bool(np.all((a == np.rint(a)) | np.isinf(a))) for a in data
        )

    @property
    def integral_objective(self) -> bool:
        """Whether the objective takes integer values only (its constant aside)."""
        priced = self.cost != 0
        return bool(
            self.integer[priced].all() and np.all(self.cost[priced] == np.rint(self.cost[priced]))
        )


class LinearModel:
    """A (mixed-integer) linear program: minimise over variables with bounds, under linear rows.

    Example:
      >>> model = LinearModel()
      >>> x = model.add_variables(2, upper=3, cost=-1)
      >>> model.add_row(x, [1, 2], upper=4, tag="(1)")
      >>> model.variables, model.rows
      (2, 1)
    """

    def __init__(self, name: str = "model") -> None:
        self.name = name
        self.offset = 0.0
        self.start: NDArray[np.float64] | None = None
        """A feasible point to start from, float64 [variables], or None."""
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._cost: list[float] = []
        self._integer: list[bool] = []
        self._blocks: list[tuple[int, Callable[[int], str]]] = []
        self._row_ptr: list[int] = [0]
        self._row_col: list[int] = []
        self._row_val: list[float] = []
        self._row_lower: list[float] = []
        self._row_upper: list[float] = []
        self._tags: list[str] = []
        self._arrays: LinearArrays | None = None

    @property
    def variables(self) -> int:
        """Number of variables of the model."""
        return len(self._cost)

    @property
    def rows(self) -> int:
        """Number of rows (constraints) of the model."""
        return len(self._tags)

    @property
    def nonzeros(self) -> int:
        """Number of coefficients in the rows."""
        return len(self._row_col)

    def add_variables(
        self,
        count: int,
        lower: float = 0.0,
        upper: float = 1.0,
        *,
        integer: bool = True,
        cost: float = 0.0,
        name: Callable[[int], str] | None = None,
    ) -> range:
        """Adds variables that have the same bounds, kind and cost; returns their columns (numbers).

        Args:
          count: how many. lower, upper: their bounds, inclusive; InputError if they are empty.
          integer: whether they take integer values only. cost: their coefficient in the objective.
          name: the name of the k-th of them; called only when a name is asked for.
        """
        if lower > upper:
            raise InputError(f"variable bounds [{lower}, {upper}] allow no value")
        first = self.variables
        self._lower += [lower] * count
        self._upper += [upper] * count
        self._cost += [cost] * count
        self._integer += [integer] * count
        if count and name is not None:
            self._blocks.append((first, name))
        elif count:
            self._blocks.append((first, lambda k: f"x{first + k}"))
        self._arrays = None
        return range(first, first + count)

    def add_variable(
        self,
        lower: float = 0.0,
        upper: float = 1.0,
        *,
        integer: bool = True,
        cost: float = 0.0,
        name: str = "",
    ) -> int:
        """Adds one variable and returns its column (number)."""
        named = (lambda _: name) if name else None
        return self.add_variables(1, lower, upper, integer=integer, cost=cost, name=named)[0]

    def add_row(
        self,
        columns: Sequence[int],
        coefficients: Sequence[float],
        lower: float = -INFINITY,
        upper: float = INFINITY,
        *,
        tag: str = "",
    ) -> None:
        """Adds `lower <= sum(coefficients * x[columns]) <= upper`.

        Args:
          columns, coefficients: of the same length, else InputError; a column named twice adds up.
          lower, upper: inclusive.
          tag: what the row stands for, e.g. the number of its equation.
        """
        if len(columns) != len(coefficients):
            raise InputError(f"{len(columns)} columns but {len(coefficients)} coefficients")
        if len(set(columns)) < len(columns):
            merged: dict[int, float] = {}
            for column, value in zip(columns, coefficients, strict=True):
                merged[column] = merged.get(column, 0.0) + value
            columns, coefficients = list(merged), list(merged.values())
        self._row_col.extend(columns)
        self._row_val.extend(coefficients)
        self._row_ptr.append(len(self._row_col))
        self._row_lower.append(lower)
        self._row_upper.append(upper)
        self._tags.append(tag)
        self._arrays = None

    def fix(self, column: int, value: float) -> None:
        """Sets both bounds of a variable to `value`, in place."""
        self.bound(column, value, value)

    def bound(self, column: int, lower: float, upper: float) -> None:
        """Replaces a variable's bounds, in place; InputError if `lower` is above `upper`."""
        if lower > upper:
            raise InputError(f"no {self.variable_name(column)} lies in [{lower}, {upper}]")
        self._lower[column], self._upper[column] = lower, upper
        self._arrays = None

    def variable_name(self, column: int) -> str:
        """Returns the name of the variable in a column, such as "x3" if it was given none."""
        k = max(i for i, (first, _) in enumerate(self._blocks) if first <= column)
        first, name = self._blocks[k]
        return name(column - first)

    def row_name(self, row: int) -> str:
        """The tag of a row and its number, such as "(1)#0"."""
        return f"{self._tags[row]}#{row}"

    def arrays(self) -> LinearArrays:
        """Returns the whole model as arrays for a solver; kept until variables or rows change."""
        if self._arrays is None:
            self._arrays = LinearArrays(
                cost=np.array(self._cost, np.float64),
                lower=np.array(self._lower, np.float64),
                upper=np.array(self._upper, np.float64),
                integer=np.array(self._integer, np.bool_),
                row_ptr=np.array(self._row_ptr, np.int64),
                row_col=np.array(self._row_col, np.int64),
                row_val=np.array(self._row_val, np.float64),
                row_lower=np.array(self._row_lower, np.float64),
                row_upper=np.array(self._row_upper, np.float64),
                offset=float(self.offset),
            )
        return self._arrays

    def value(self, x: NDArray[np.float64]) -> float:
        """Returns the objective's value at a point, float64 [variables]."""
        return float(self.arrays().cost @ x + self.offset)


def round_point(arrays: LinearArrays, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """A copy of the point, float64 [variables], with its integer variables rounded. Raises
    SolverError for a wrong length, a value that is not finite, or an integer variable farther than
    `ROUNDING_TOLERANCE` from any integer.
    """
    x = np.array(x, np.float64)
    if x.shape != arrays.cost.shape:
        raise SolverError(f"the solution has shape {x.shape}, not ({len(arrays.cost)},)")
    if not np.isfinite(x).all():
        raise SolverError("the solution has values that are not finite")
    rounded = np.rint(x)
    off = np.abs(x - rounded) * arrays.integer
    worst = int(np.argmax(off)) if len(off) else 0
    if len(off) and off[worst] > ROUNDING_TOLERANCE:
        raise SolverError(f"integer variable {worst} has the value {x[worst]}")
    return np.where(arrays.integer, rounded, x)


def violation(model: LinearModel, x: NDArray[np.float64]) -> str | None:
    """The first bound or row that a point, float64 [variables], breaks, in words; or None. They are
    checked to `ROW_TOLERANCE`, but rows of a model with integers only exactly, in int64.
    """
    a = model.arrays()
    outside = np.flatnonzero((x < a.lower - ROW_TOLERANCE) | (x > a.upper + ROW_TOLERANCE))
    if len(outside):
        k = int(outside[0])
        return f"{model.variable_name(k)} = {x[k]} is outside [{a.lower[k]}, {a.upper[k]}]"
    terms = a.row_val * x[a.row_col]
    row_of = np.repeat(np.arange(model.rows), np.diff(a.row_ptr))
    if a.integral and float(np.abs(terms).sum()) < 2.0**62:
        activity = np.zeros(model.rows, np.int64)
        np.add.at(activity, row_of, a.row_val.astype(np.int64) * x[a.row_col].astype(np.int64))
        slack = np.zeros(model.rows)
    else:
        activity = np.bincount(row_of, terms, minlength=model.rows)
        size = np.bincount(row_of, np.abs(terms), minlength=model.rows)
        slack = ROW_TOLERANCE * np.maximum(1.0, size)
    broken = np.flatnonzero((activity < a.row_lower - slack) | (activity > a.row_upper + slack))
    if not len(broken):
        return None
    k = int(broken[0])
    return (
        f"row {model.row_name(k)} has the value {activity[k]}, outside "
        f"[{a.row_lower[k]}, {a.row_upper[k]}]"
    )


class LinearTerms:
    """A linear expression that is built step by step: columns with coefficients, and a constant.

    Example:
      >>> model = LinearModel()
      >>> x = model.add_variable()
      >>> LinearTerms().plus(x, 2).plus_constant(1).into(model, upper=3)  # 2 x + 1 <= 3
    """

    __slots__ = ("coefficients", "columns", "constant")

    def __init__(self) -> None:
        self.columns: list[int] = []
        self.coefficients: list[int] = []
        self.constant = 0

    def plus(self, column: int, coefficient: int = 1) -> LinearTerms:
        """Adds `coefficient` times a variable (by its column) to the expression; returns self."""
        self.columns.append(column)
        self.coefficients.append(coefficient)
        return self

    def plus_constant(self, value: int) -> LinearTerms:
        """Adds a number to the expression; returns self."""
        self.constant += value
        return self

    def into(
        self,
        model: LinearModel,
        *,
        lower: float = -math.inf,
        upper: float = math.inf,
        tag: str = "",
    ) -> None:
        """Adds the row `lower <= expression <= upper` to a model, none if it has no variables;
        SolverError if it has none and its constant breaks the row.
        """
        if self.columns:
            model.add_row(
                self.columns,
                self.coefficients,
                lower - self.constant,
                upper - self.constant,
                tag=tag,
            )
        elif not lower <= self.constant <= upper:
            raise SolverError(f"constraint {tag} is false: {lower} <= {self.constant} <= {upper}")
