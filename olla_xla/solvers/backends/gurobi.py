"""The linear model in Gurobi (commercial; pip's own licence takes 2,000 variables and rows)."""

from __future__ import annotations

import time
from collections.abc import Callable

import gurobipy as gp
import numpy as np
from gurobipy import GRB

from olla_xla.errors import SolverError
from olla_xla.solvers.linear import (
    LinearArrays,
    LinearModel,
    SolverLimits,
    SolverResult,
    Status,
    Watch,
)

IGNORES = frozenset({"points"})

_FREE = 2000  # variables, and rows, that pip's own licence admits

_LIMITS = {
    GRB.TIME_LIMIT,
    GRB.NODE_LIMIT,
    GRB.WORK_LIMIT,
    GRB.MEM_LIMIT,
    GRB.ITERATION_LIMIT,
    GRB.SOLUTION_LIMIT,
    GRB.INTERRUPTED,
    GRB.SUBOPTIMAL,
}
"""Statuses of a solve that ended without a proof, with a point or without."""


def solve(model: LinearModel, limits: SolverLimits) -> SolverResult:
    """Minimises the model; see `olla_xla.solvers.solve.solve`, which checks what is returned.
    Raises SolverError for any error of Gurobi, as where no licence admits a model of this size.
    """
    until = time.monotonic() + limits.time_limit  # building counts
    try:
        with gp.Env(params={"OutputFlag": 0}) as env, gp.Model(env=env) as program:
            if max(model.variables, model.rows) > _FREE:  # refused before it is built
                program.addVars(_FREE + 1)
                program.optimize()
                program.remove(program.getVars())
            columns = _fill(program, model)
            _set_parameters(program, limits, until)
            program.optimize(_callback(limits.watch))
            return _result(program, columns, model.arrays())
    except gp.GurobiError as error:
        if error.errno in (GRB.Error.SIZE_LIMIT_EXCEEDED, GRB.Error.NO_LICENSE):
            raise SolverError(
                f"the Gurobi licence does not admit {model.variables} variables and {model.rows} "
                f"rows ({error}); install a full licence or use another backend"
            ) from error
        raise SolverError(f"Gurobi error {error.errno}: {error}") from error


def _callback(watch: Watch | None) -> Callable[[gp.Model, int], None] | None:
    """A Gurobi callback that passes best value and bound on to `watch`; None without a watch."""
    if watch is None:
        return None

    def on_progress(program: gp.Model, where: int) -> None:
        if where == GRB.Callback.MIP:
            best = program.cbGet(GRB.Callback.MIP_OBJBST)
            bound = program.cbGet(GRB.Callback.MIP_OBJBND)
            watch(best if best < GRB.INFINITY else None, bound)

    return on_progress


def _set_parameters(program: gp.Model, limits: SolverLimits, until: float) -> None:
    program.Params.TimeLimit = max(until - time.monotonic(), 0)
    program.Params.Threads = limits.threads
    program.Params.Seed = limits.seed
    program.Params.MIPGap = limits.gap
    program.Params.MIPGapAbs = 0.0
    program.Params.IntFeasTol = 1e-9
    program.Params.FeasibilityTol = 1e-9
    if limits.work_limit is not None:
        program.Params.WorkLimit = limits.work_limit
    if limits.node_limit is not None:
        program.Params.NodeLimit = limits.node_limit


def _fill(program: gp.Model, model: LinearModel) -> list[gp.Var]:
    """Adds variables, rows, objective and start to a Gurobi model; returns the variables."""
    arrays = model.arrays()
    kinds = np.where(arrays.integer, GRB.INTEGER, GRB.CONTINUOUS).tolist()
    added = program.addVars(
        len(arrays.cost),
        lb=arrays.lower.tolist(),
        ub=arrays.upper.tolist(),
        obj=arrays.cost.tolist(),
        vtype=kinds,
    )
    columns = list(added.values())
    ptr, col, val = arrays.row_ptr.tolist(), arrays.row_col.tolist(), arrays.row_val.tolist()
    bounds = zip(arrays.row_lower.tolist(), arrays.row_upper.tolist(), strict=True)
    for k, (lower, upper) in enumerate(bounds):
        span = slice(ptr[k], ptr[k + 1])
        terms = gp.LinExpr(val[span], [columns[j] for j in col[span]])
        if lower == upper:
            program.addLConstr(terms, GRB.EQUAL, lower)
            continue
        if np.isfinite(lower):
            program.addLConstr(terms, GRB.GREATER_EQUAL, lower)
        if np.isfinite(upper):
            program.addLConstr(terms, GRB.LESS_EQUAL, upper)
    program.ObjCon = arrays.offset
    if model.start is not None:
        for variable, value in zip(columns, model.start.tolist(), strict=True):
            variable.Start = value
    return columns


def _result(program: gp.Model, columns: list[gp.Var], arrays: LinearArrays) -> SolverResult:
    status = program.Status
    message = f"Gurobi: status {status}"
    has_point = program.SolCount > 0
    x = np.array(program.getAttr("X", columns)) if has_point else None
    if status == GRB.OPTIMAL:
        bound = program.ObjBound if arrays.integer.any() else program.ObjVal
        return SolverResult(Status.OPTIMAL, bound=bound, x=x, message=message)
    if status == GRB.INFEASIBLE:
        return SolverResult(Status.INFEASIBLE, message=message)
    if status in _LIMITS:
        bound = program.ObjBound if arrays.integer.any() else -np.inf
        return SolverResult(
            Status.FEASIBLE if has_point else Status.UNKNOWN, bound=bound, x=x, message=message
        )
    return SolverResult(Status.ERROR, message=message)
