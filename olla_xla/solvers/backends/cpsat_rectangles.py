"""The rectangle model in OR-Tools CP-SAT: no overlap in two dimensions."""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from olla_xla.errors import SolverError
from olla_xla.solvers.backends.cpsat import Watcher, configured
from olla_xla.solvers.linear import Limits, Result, Status
from olla_xla.solvers.rectangles import RectangleModel

__all__ = ["solve"]


def solve(model: RectangleModel, limits: Limits) -> Result:
    """Minimises the peak; `x` of the result is the address of each block.

    Raises:
      SolverError: CP-SAT finds the model invalid.
    """
    program, places = _program(model)
    solver = configured(limits)
    status = solver.solve(program, Watcher.on(solver, limits.watch))
    message = f"CP-SAT: {solver.status_name(status)}"
    if status == cp_model.MODEL_INVALID:
        raise SolverError(f"{message}: {program.validate()}")
    if status == cp_model.INFEASIBLE:
        return Result(Status.INFEASIBLE, message=message)
    bound = max(round(solver.best_objective_bound), model.bound)
    if status == cp_model.UNKNOWN:
        return Result(Status.UNKNOWN, bound=bound, message=message)
    x = np.array([solver.value(place) for place in places], np.float64) * np.array(model.step)
    return Result(
        Status.OPTIMAL if status == cp_model.OPTIMAL else Status.FEASIBLE,
        value=round(solver.objective_value),
        bound=bound,
        x=x,
        message=message,
    )


def _program(model: RectangleModel) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    """The model in CP-SAT, and its variables: addresses in steps, by block."""
    program = cp_model.CpModel()
    ranges = zip(model.low, model.high, model.step, strict=True)
    places = [program.new_int_var(low // step, high // step, "") for low, high, step in ranges]
    times, heights = [], []
    for r in model.rectangles:
        address = places[r.block] * model.step[r.block]
        times.append(program.new_fixed_size_interval_var(r.start, r.stop - r.start, ""))
        heights.append(program.new_fixed_size_interval_var(address, r.height, ""))
    program.add_no_overlap_2d(times, heights)
    for i, j in model.ordered:
        program.add(places[i] * model.step[i] <= places[j] * model.step[j])
    peak = program.new_int_var(model.bound, model.most, "")
    for place, step, need in zip(places, model.step, model.need, strict=True):
        program.add(place * step + need <= peak)
    program.minimize(peak)
    if model.start is not None:
        for place, step, address in zip(places, model.step, model.start, strict=True):
            program.add_hint(place, address // step)
        program.add_hint(peak, max(a + n for a, n in zip(model.start, model.need, strict=True)))
    return program, places
