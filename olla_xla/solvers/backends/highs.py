"""The linear model in HiGHS (branch and cut; MIT licence)."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import numpy as np

from olla_xla.errors import SolverError
from olla_xla.solvers.linear import (
    LinearArrays,
    LinearModel,
    SolverLimits,
    SolverResult,
    Status,
    Watch,
)


def _two_libraries() -> bool:
    """Whether OR-Tools is installed beside a highspy (from 1.15 on) with a libhighs.so of its own.
    The loader keeps the first libhighs.so.1 for both: whichever package is imported second fails.
    """
    highs = importlib.util.find_spec("highspy")
    return (
        highs is not None
        and highs.origin is not None
        and any(Path(highs.origin).parent.glob("libhighs.so*"))
        and importlib.util.find_spec("ortools") is not None
    )


if _two_libraries():
    raise ImportError("this highspy cannot be loaded beside OR-Tools; install 'highspy<1.15'")

import highspy  # noqa: E402 - only where it leaves OR-Tools usable

IGNORES = frozenset({"work_limit"})

_LIMITS = {
    highspy.HighsModelStatus.kTimeLimit,
    highspy.HighsModelStatus.kIterationLimit,
    highspy.HighsModelStatus.kSolutionLimit,
    highspy.HighsModelStatus.kMemoryLimit,
    highspy.HighsModelStatus.kInterrupt,
}

# HiGHS keeps one pool of threads per process: a run with another number of threads fails until
# the pool is reset, which is safe only while nothing runs.
_lock = threading.Lock()
_pool_threads: list[int] = []


def solve(model: LinearModel, limits: SolverLimits) -> SolverResult:
    """Minimises the model; see `olla_xla.solvers.solve.solve`, which checks what is returned.
    Raises SolverError if a call of HiGHS returned an error.
    """
    arrays = model.arrays()
    if not len(arrays.cost):
        return _without_variables(arrays)
    with _lock:
        if _pool_threads != [limits.threads]:
            highspy.Highs.resetGlobalScheduler(True)
            _pool_threads[:] = [limits.threads]
        solver = _solver(arrays, limits)
        if model.start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = model.start.tolist()
            _require(solver.setSolution(solution), "setSolution")
        if limits.watch is not None:
            _watched(solver, limits.watch)
        if limits.points is not None:
            points = limits.points
            solver.cbMipImprovingSolution.subscribe(
                lambda event: points(np.array(event.data_out.mip_solution, np.float64))
            )
        status = solver.run()
        if status == highspy.HighsStatus.kError:
            _pool_threads.clear()
            _require(status, f"run ({solver.modelStatusToString(solver.getModelStatus())})")
        return _result(solver, arrays)


def _watched(solver: highspy.Highs, watch: Watch) -> None:
    """Subscribes `watch` (value, bound) to HiGHS's better points and progress reports."""

    def on_progress(event: highspy.HighsCallbackEvent) -> None:
        best, bound = event.data_out.mip_primal_bound, event.data_out.mip_dual_bound
        watch(best if best < highspy.kHighsInf else None, bound)

    solver.cbMipLogging.subscribe(on_progress)
    solver.cbMipImprovingSolution.subscribe(on_progress)


def _solver(arrays: LinearArrays, limits: SolverLimits) -> highspy.Highs:
    solver = highspy.Highs()
    options: dict[str, bool | int | float] = {
        "output_flag": False,
        "time_limit": float(limits.time_limit),
        "threads": limits.threads,
        "random_seed": limits.seed,
        "mip_rel_gap": limits.gap,
        "mip_abs_gap": 0.0,
        # Sizes reach 1e6 and beyond after scaling: a binary off by the default 1e-6 would move
        # the peak by whole units.
        "mip_feasibility_tolerance": 1e-9,
        "primal_feasibility_tolerance": 1e-9,
    }
    if limits.node_limit is not None:
        options["mip_max_nodes"] = limits.node_limit
    for name, value in options.items():
        _require(solver.setOptionValue(name, value), name)
    _require(solver.passModel(_lp(arrays)), "passModel")
    return solver


def _lp(arrays: LinearArrays) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_ = len(arrays.cost)
    lp.num_row_ = len(arrays.row_lower)
    lp.col_cost_ = arrays.cost.tolist()
    lp.offset_ = arrays.offset
    lp.col_lower_ = arrays.lower.tolist()
    lp.col_upper_ = arrays.upper.tolist()
    lp.row_lower_ = arrays.row_lower.tolist()
    lp.row_upper_ = arrays.row_upper.tolist()
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = arrays.row_ptr.tolist()
    lp.a_matrix_.index_ = arrays.row_col.tolist()
    lp.a_matrix_.value_ = arrays.row_val.tolist()
    if arrays.integer.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[k] for k in arrays.integer.astype(int)]
    return lp


def _require(status: highspy.HighsStatus, what: str) -> None:
    if status == highspy.HighsStatus.kError:
        raise SolverError(f"HiGHS returned an error from {what}")


def _result(solver: highspy.Highs, arrays: LinearArrays) -> SolverResult:
    status = solver.getModelStatus()
    message = f"HiGHS: {solver.modelStatusToString(status)}"
    info = solver.getInfo()
    has_point = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = np.array(solver.getSolution().col_value) if has_point else None
    if status == highspy.HighsModelStatus.kOptimal:
        bound = info.mip_dual_bound if arrays.integer.any() else info.objective_function_value
        return SolverResult(Status.OPTIMAL, bound=bound, x=x, message=message)
    if status == highspy.HighsModelStatus.kInfeasible:
        return SolverResult(Status.INFEASIBLE, message=message)
    if status in _LIMITS:
        bound = info.mip_dual_bound if arrays.integer.any() else -np.inf
        return SolverResult(
            Status.UNKNOWN if x is None else Status.FEASIBLE, bound=bound, x=x, message=message
        )
    return SolverResult(Status.ERROR, message=message)


def _without_variables(arrays: LinearArrays) -> SolverResult:
    """The result for a model without variables, whose rows HiGHS would not look at: infeasible if a
    row does not admit 0, else optimal.
    """
    if ((arrays.row_lower > 0) | (arrays.row_upper < 0)).any():
        return SolverResult(Status.INFEASIBLE, message="a constraint without variables cannot hold")
    return SolverResult(Status.OPTIMAL, bound=arrays.offset, x=np.zeros(0), message="no variables")
