"""The linear model in OR-Tools CP-SAT (clause learning over integers; Apache licence)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from olla_xla.errors import SolverError
from olla_xla.solvers.linear import LinearModel, SolverLimits, SolverResult, Status, Watch

IGNORES = frozenset({"node_limit"})

_LEAST_SECONDS = 0.01


def solve(model: LinearModel, limits: SolverLimits) -> SolverResult:
    """Minimises the model; see `olla_xla.solvers.solve.solve`, which checks what is returned.
    Raises SolverError for a continuous or unbounded variable, a coefficient or bound that is no
    integer, or a model that CP-SAT finds invalid.
    """
    until = time.monotonic() + limits.time_limit
    program, columns = _program(model)
    left = max(until - time.monotonic(), _LEAST_SECONDS)
    solver = configured(dataclasses.replace(limits, time_limit=left))
    offset = model.arrays().offset
    watcher = Watcher.on(solver, limits.watch, offset)
    if limits.points is not None:
        points = limits.points
        watcher = watcher or Watcher(lambda value, bound: None, offset)
        watcher.points = lambda: points(np.array([watcher.value(v) for v in columns], np.float64))
    status = solver.solve(program, watcher)
    message = f"CP-SAT: {solver.status_name(status)}"
    if status == cp_model.MODEL_INVALID:
        raise SolverError(f"{message}: {program.validate()}")
    if status == cp_model.INFEASIBLE:
        return SolverResult(Status.INFEASIBLE, message=message)
    if status == cp_model.UNKNOWN:
        # Stopped before it derived any bound, CP-SAT reports the bound 0, which may be false.
        bound = solver.best_objective_bound or -np.inf
        return SolverResult(Status.UNKNOWN, bound=bound + offset, message=message)
    x = np.array([solver.value(v) for v in columns], np.float64)
    return SolverResult(
        Status.OPTIMAL if status == cp_model.OPTIMAL else Status.FEASIBLE,
        bound=solver.best_objective_bound + offset,
        x=x,
        message=message,
    )


def configured(limits: SolverLimits) -> cp_model.CpSolver:
    """Makes a CP-SAT solver with the time, work, threads, seed and gap of `limits`."""
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = limits.time_limit
    parameters.num_workers = limits.threads
    parameters.random_seed = limits.seed
    parameters.relative_gap_limit = limits.gap
    if limits.work_limit is not None:
        parameters.max_deterministic_time = limits.work_limit
    return solver


class Watcher(cp_model.CpSolverSolutionCallback):
    """A CP-SAT callback that calls `watch` with (value, bound) at better points and bounds."""

    def __init__(self, watch: Watch, offset: float) -> None:
        super().__init__()
        self._watch = watch
        self._offset = offset
        self._value: float | None = None
        self.points: Callable[[], None] | None = None

    @classmethod
    def on(
        cls, solver: cp_model.CpSolver, watch: Watch | None, offset: float = 0.0
    ) -> Watcher | None:
        """Makes a Watcher for the solver's next solve, which passes values and bounds, plus
        `offset`, on to the callback `watch`, and has it called at better bounds; None without one.
        """
        if watch is None:
            return None
        watcher = cls(watch, offset)
        solver.best_bound_callback = watcher.on_bound
        return watcher

    def on_solution_callback(self) -> None:
        """Called by the solver at a better point; passes its value to `watch`, calls `points`."""
        self._value = self.objective_value + self._offset
        self._watch(self._value, self.best_objective_bound + self._offset)
        if self.points is not None:
            self.points()

    def on_bound(self, bound: float) -> None:
        """Called by the solver when it has a better bound; passes it on to the callback `watch`."""
        self._watch(self._value, bound + self._offset)


def _program(model: LinearModel) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    """The model as CP-SAT's, and its variables by column; SolverError if CP-SAT cannot take it."""
    arrays = model.arrays()
    if not arrays.integral:
        raise SolverError("CP-SAT takes integer variables and coefficients only")
    unbounded = np.flatnonzero(np.isinf(arrays.lower) | np.isinf(arrays.upper))
    if len(unbounded):
        raise SolverError(f"CP-SAT needs bounds: {model.variable_name(int(unbounded[0]))} has none")
    program = cp_model.CpModel()
    bounds = zip(_integers(arrays.lower), _integers(arrays.upper), strict=True)
    columns = [program.new_int_var(lower, upper, "") for lower, upper in bounds]
    rows = zip(_integers(arrays.row_lower), _integers(arrays.row_upper), strict=True)
    ptr, col, val = arrays.row_ptr.tolist(), arrays.row_col.tolist(), _integers(arrays.row_val)
    for k, (lower, upper) in enumerate(rows):
        span = slice(ptr[k], ptr[k + 1])
        terms = cp_model.LinearExpr.weighted_sum([columns[j] for j in col[span]], val[span])
        program.add_linear_constraint(terms, lower, upper)
    priced = np.flatnonzero(arrays.cost)
    program.minimize(
        cp_model.LinearExpr.weighted_sum(
            [columns[j] for j in priced], _integers(arrays.cost[priced])
        )
    )
    if model.start is not None:
        for variable, value in zip(columns, _integers(model.start), strict=True):
            program.add_hint(variable, value)
    return program, columns


def _integers(values: NDArray[np.float64]) -> list[int]:
    """The values as ints; infinite ones become INT_MAX or INT_MIN, CP-SAT's own limits."""
    return [
        int(v) if np.isfinite(v) else cp_model.INT_MAX if v > 0 else cp_model.INT_MIN
        for v in values.tolist()
    ]
