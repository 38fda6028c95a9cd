"""The rectangle model in OR-Tools CP-SAT: no overlap in two dimensions.

First it is asked whether the bound can be met. The search places the block whose lowest free
address is lowest, of several the largest, and learns clauses from failures. Only then the peak is
minimised. A model with a target height is minimised directly.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
from ortools.sat.python import cp_model

from benchmarks.place_ilp.rectangles import RectangleModel
from olla_xla.errors import SolverError
from olla_xla.solvers.backends.cpsat import Watcher, configured
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status
from olla_xla.solvers.solve import whole_units

__all__ = ["solve"]

_WITHIN = 0.6
"""Part of the time for a packing within the bound."""

_LEAST_SECONDS = 0.01

_PRESOLVED = 800
"""Rectangles up to which presolve takes less time than it saves the search within the bound."""


def solve(model: RectangleModel, limits: SolverLimits) -> SolverResult:
    """Minimises the peak; `x` of the result is the address of each block.

    Raises:
      SolverError: CP-SAT finds the model invalid.
    """
    started = time.monotonic()
    if model.target_height is not None:
        return _solve_program(model, limits)
    if model.bound > 0:
        share = dataclasses.replace(limits, time_limit=_WITHIN * limits.time_limit)
        within = _solve_program(_within(model), share)
        if within.status is Status.OPTIMAL:
            if limits.watch is not None:
                limits.watch(model.bound, model.bound)
            return within
        if within.status is Status.INFEASIBLE:
            if model.most <= model.bound:
                return within
            model = dataclasses.replace(model, bound=model.bound + 1)
    left = max(limits.time_limit - (time.monotonic() - started), _LEAST_SECONDS)
    return _solve_program(model, dataclasses.replace(limits, time_limit=left))


def _within(model: RectangleModel) -> RectangleModel:
    """The model that asks whether the bound can be met; without the order of twins it is faster."""
    high = tuple(
        min(top, model.bound - need) // step * step
        for top, need, step in zip(model.high, model.need, model.step, strict=True)
    )
    return dataclasses.replace(model, high=high, most=model.bound, ordered=(), start=None)


def _solve_program(model: RectangleModel, limits: SolverLimits) -> SolverResult:
    """One program, with what CP-SAT says of it."""
    decides = model.target_height is None and model.bound == model.most
    if any(low > high for low, high in zip(model.low, model.high, strict=True)):
        return SolverResult(Status.INFEASIBLE, message="CP-SAT: a block is higher than the bound")
    program, places, peak = _program(model)
    aim, least = (
        (peak, model.bound) if model.target_height is None else (_above(program, model, places), 0)
    )
    solver = configured(limits)
    if decides:
        program.add_decision_strategy(
            [places[block] for block in _by_area(model)],
            cp_model.CHOOSE_LOWEST_MIN,
            cp_model.SELECT_MIN_VALUE,
        )
        solver.parameters.search_branching = cp_model.PARTIAL_FIXED_SEARCH
        solver.parameters.linearization_level = 0
        solver.parameters.cp_model_presolve = len(model.rectangles) <= _PRESOLVED
    else:
        program.minimize(aim)
    watcher = None if decides else Watcher.on(solver, limits.watch)
    status = solver.solve(program, watcher)
    message = f"CP-SAT: {solver.status_name(status)}"
    if status == cp_model.MODEL_INVALID:
        raise SolverError(f"{message}: {program.validate()}")
    if status == cp_model.INFEASIBLE:
        return SolverResult(Status.INFEASIBLE, message=message)
    bound = model.bound if decides else max(whole_units(solver.best_objective_bound), least)
    if status == cp_model.UNKNOWN:
        return SolverResult(Status.UNKNOWN, bound=bound, message=message)
    x = np.array([solver.value(place) for place in places], np.float64) * np.array(model.step)
    return SolverResult(
        Status.OPTIMAL if status == cp_model.OPTIMAL else Status.FEASIBLE,
        value=solver.value(aim),
        bound=bound,
        x=x,
        message=message,
    )


def _above(
    program: cp_model.CpModel, model: RectangleModel, places: list[cp_model.IntVar]
) -> cp_model.LinearExpr:
    """What lies above the target height, over all blocks."""
    assert model.target_height is not None
    parts = []
    for place, high, step, need in zip(places, model.high, model.step, model.need, strict=True):
        if high + need > model.target_height:
            parts.append(program.new_int_var(0, high + need - model.target_height, ""))
            program.add(place * step + need - model.target_height <= parts[-1])
    return cp_model.LinearExpr.sum(parts)


def _by_area(model: RectangleModel) -> list[int]:
    """The blocks, those that take most of time and space first; ties by number."""
    area = [0] * len(model.step)
    for r in model.rectangles:
        area[r.block] += (r.stop - r.start) * r.height
    return sorted(range(len(area)), key=lambda block: (-area[block], block))


def _program(
    model: RectangleModel,
) -> tuple[cp_model.CpModel, list[cp_model.IntVar], cp_model.IntVar]:
    """The model in CP-SAT; its variables: addresses in steps, by block; the peak."""
    program = cp_model.CpModel()
    gaps = model.gaps or tuple(((a, b),) for a, b in zip(model.low, model.high, strict=True))
    places = [
        program.new_int_var_from_domain(
            cp_model.Domain.from_intervals([[a // step, b // step] for a, b in ranges]), ""
        )
        for ranges, step in zip(gaps, model.step, strict=True)
    ]
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
    if model.start is not None:
        for place, step, address in zip(places, model.step, model.start, strict=True):
            program.add_hint(place, address // step)
        program.add_hint(peak, max(a + n for a, n in zip(model.start, model.need, strict=True)))
    return program, places, peak
