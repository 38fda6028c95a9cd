"""Orders as a model of OR-Tools CP-SAT: intervals that use one cumulative resource."""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from benchmarks.papers.ilp_forms.intervals import Interval, IntervalModel
from olla_xla.errors import SolverError
from olla_xla.solvers.backends.cpsat import Watcher, configured
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status
from olla_xla.solvers.solve import whole_units


def solve(model: IntervalModel, limits: SolverLimits) -> SolverResult:
    """Minimises the peak; `x` of the result is the step of each job.

    Raises:
      SolverError: CP-SAT finds the model invalid, or without any solution.
    """
    program = _Program(model)
    solver = configured(limits)
    status = solver.solve(program.program, Watcher.on(solver, limits.watch))
    message = f"CP-SAT: {solver.status_name(status)}"
    if status == cp_model.MODEL_INVALID:
        raise SolverError(f"{message}: {program.program.validate()}")
    if status == cp_model.INFEASIBLE:
        raise SolverError(f"{message}, but every graph has an order")
    bound = max(whole_units(solver.best_objective_bound), model.bound)
    if status == cp_model.UNKNOWN:
        return SolverResult(Status.UNKNOWN, bound=bound, message=message)
    return SolverResult(
        Status.OPTIMAL if status == cp_model.OPTIMAL else Status.FEASIBLE,
        value=round(solver.objective_value),
        bound=bound,
        x=np.array([solver.value(step) for step in program.steps], np.float64),
        message=message,
    )


class _Program:
    """A model in CP-SAT.

    Attributes:
      program: minimises the peak. steps: by job, its step.
    """

    def __init__(self, model: IntervalModel) -> None:
        self.program = cp_model.CpModel()
        self._model = model
        self._n = len(model.first)
        spans = zip(model.first, model.last, strict=True)
        self.steps = [self.program.new_int_var(a, b, "") for a, b in spans]
        self._earlier: dict[tuple[int, int], cp_model.IntVar] = {}
        self.program.add_all_different(self.steps)
        for u, v in model.precedence:
            self.program.add(self.steps[u] + 1 <= self.steps[v])
        self._taken = [self.program.new_bool_var("") for _ in model.options]
        self._add_options()
        self._add_load()
        if model.start is not None:
            for step, value in zip(self.steps, model.start, strict=True):
                self.program.add_hint(step, value)

    def _add_options(self) -> None:
        for taken, option in zip(self._taken, self._model.options, strict=True):
            excluded = [self._taken[k] for k in option.excludes]
            for other in excluded:
                self.program.add_at_most_one([taken, other])
            ready = self._all_before(option.after, option.job)
            self.program.add_implication(taken, ready)
            blocked = [self._all_before(jobs, option.job) for jobs in option.blockers]
            for other in blocked:
                self.program.add_at_most_one([taken, other])
            if option.forced:
                self.program.add_bool_or([taken, ready.negated(), *excluded, *blocked])

    def _all_before(self, jobs: tuple[int, ...], job: int) -> cp_model.IntVar:
        """Whether all the jobs run before `job`."""
        together = self.program.new_bool_var("")
        each = [self._before(u, job) for u in jobs]
        for one in each:
            self.program.add_implication(together, one)
        self.program.add_bool_or([together, *(one.negated() for one in each)])
        return together

    def _before(self, u: int, v: int) -> cp_model.IntVar:
        if (u, v) not in self._earlier:
            earlier = self._earlier[u, v] = self.program.new_bool_var("")
            self.program.add(self.steps[u] < self.steps[v]).only_enforce_if(earlier)
            self.program.add(self.steps[u] > self.steps[v]).only_enforce_if(earlier.negated())
        return self._earlier[u, v]

    def _add_load(self) -> None:
        intervals, loads = [], []
        for job, extra in enumerate(self._model.extra):
            if extra:
                intervals.append(self.program.new_fixed_size_interval_var(self.steps[job], 1, ""))
                loads.append(extra)
        for interval in self._model.intervals:
            start = 0 if interval.start is None else self.steps[interval.start]
            stop = self._stop(interval)
            size = self.program.new_int_var(0, self._n, "")
            intervals.append(self.program.new_interval_var(start, size, stop, ""))
            loads.append(interval.load)
        peak = self.program.new_int_var(self._model.bound, self._model.most, "")
        self.program.add_cumulative(intervals, loads, peak)
        self.program.minimize(peak)

    def _stop(self, interval: Interval) -> cp_model.LinearExprT:
        if interval.to_end:
            return self._n
        options = dict(interval.options)
        ends: list[cp_model.LinearExprT] = [self.steps[u] for u in interval.up_to]
        for u in interval.until:
            chosen = [self._taken[k] for k in options.get(u, ())]
            ends.append(self.steps[u] + 1 - cp_model.LinearExpr.sum(chosen))
        if len(ends) == 1 and not interval.options:
            return ends[0]
        stop = self.program.new_int_var(0, self._n, "")
        self.program.add_max_equality(stop, ends)
        return stop
