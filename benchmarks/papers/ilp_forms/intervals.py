"""Orders as intervals that use one cumulative resource, in the terms of OR-Tools CP-SAT.

A tensor is a half-open interval of steps, from its source's step to one past its last user's; if a
user takes over its memory, it ends at that user's step. Memory is shared by the same rules as in
the ILPs (`olla_xla.solvers.programs.sharing`), and each operator runs at a step of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from ortools.sat.python import cp_model

from benchmarks.papers.ilp_forms.forms import IntervalModel
from olla_xla.errors import SolverError
from olla_xla.solvers.backends.cpsat import Watcher, configured
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status
from olla_xla.solvers.programs.prepared import Scale
from olla_xla.solvers.programs.sharing import InPlacePair, Sharing
from olla_xla.solvers.programs.spans import Reach, spans, users_of
from olla_xla.solvers.solve import whole_units


def solve(model: IntervalModel, limits: SolverLimits) -> SolverResult:
    """Minimises the peak; `x` of the result is the step of each operator.

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
    bound = max(whole_units(solver.best_objective_bound), program.bound)
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
      program: minimises the peak. steps: by operator, its step. bound: of the peak, in units.
    """

    def __init__(self, model: IntervalModel) -> None:
        g = self._g = model.graph
        self.program = cp_model.CpModel()
        self._scale, self._reach = Scale.of(g), Reach.of(g)
        self._sharing = Sharing.of(g, self._reach)
        self.bound = self._scale.to_units(model.bound_bytes)
        span = spans(g, self._reach)
        first_last = zip(span.first.tolist(), span.last.tolist(), strict=True)
        self.steps = [self.program.new_int_var(a, b, "") for a, b in first_last]
        self._earlier: dict[tuple[int, int], cp_model.IntVar] = {}
        self.program.add_all_different(self.steps)
        for u, v in self._reach.direct(g):
            self.program.add(self.steps[u] + 1 <= self.steps[v])
        optional = self._sharing.pairs.values()
        self._taken = {p.number: self.program.new_bool_var("") for of in optional for p in of}
        for pairs in optional:
            for k, p in enumerate(pairs):
                self._add_pair(p, pairs[:k])
        self._add_load()
        if model.start is not None:
            for step, value in zip(self.steps, g.positions(model.start).tolist(), strict=True):
                self.program.add_hint(step, value)

    def _add_pair(self, p: InPlacePair, before: Sequence[InPlacePair]) -> None:
        """Whether a pair shares memory, by those of its operator that come before it."""
        taken, others, v = self._taken[p.number], self._sharing.others, p.operator
        rivals = (q for q in before if q.output == p.output or q.input == p.input)
        excluded = [self._taken[q.number] for q in rivals]
        for other in excluded:
            self.program.add_at_most_one([taken, other])
        ready = self._all_before(others[p.input, v], v)
        self.program.add_implication(taken, ready)
        first = self._sharing.forced.get((p.output, v), ())
        blocked = [self._all_before(others[a, v], v) for a in first]
        for other in blocked:
            self.program.add_at_most_one([taken, other])
        if v in self._sharing.strict:
            self.program.add_bool_or([taken, ready.negated(), *excluded, *blocked])

    def _all_before(self, operators: Iterable[int], v: int) -> cp_model.IntVar:
        """Whether all the operators run before `v`."""
        together = self.program.new_bool_var("")
        each = [self._before(u, v) for u in operators]
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
        """The peak is no less than what an operator and all tensors of a step take."""
        g, intervals, loads = self._g, [], []
        for v in np.flatnonzero(self._scale.transient).tolist():
            intervals.append(self.program.new_fixed_size_interval_var(self.steps[v], 1, ""))
            loads.append(int(self._scale.transient[v]))
        for e in np.flatnonzero(self._scale.sizes).tolist():
            start = 0 if g.live_in[e] else self.steps[int(g.source[e])]
            size = self.program.new_int_var(0, g.n, "")
            intervals.append(self.program.new_interval_var(start, size, self._stop(e), ""))
            loads.append(int(self._scale.sizes[e]))
        peak = self.program.new_int_var(self.bound, self._scale.most, "")
        self.program.add_cumulative(intervals, loads, peak)
        self.program.minimize(peak)

    def _stop(self, e: int) -> cp_model.LinearExprT:
        """The first step at which a tensor no longer takes memory."""
        if self._g.live_out[e]:
            return self._g.n
        ends: list[cp_model.LinearExprT] = []
        shared = False
        for u in self._reach.latest(users_of(self._g, e)) or [int(self._g.source[e])]:
            pairs = self._sharing.of_input.get((e, u), ())
            shared = shared or bool(pairs)
            passed = [self._taken[p.number] for p in pairs]
            must = (e, u) in self._sharing.must
            ends.append(self.steps[u] + (0 if must else 1 - cp_model.LinearExpr.sum(passed)))
        if len(ends) == 1 and not shared:
            return ends[0]
        stop = self.program.new_int_var(0, self._g.n, "")
        self.program.add_max_equality(stop, ends)
        return stop
