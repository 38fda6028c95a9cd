"""The improving search: anneal for two quick measures of memory, then for the objective itself.

1. Local search for the lifetime peak, then for the peak with all argument buffers standing.
2. Local search accepted on the caller's objective, from the best of the orders so far.

All limits count steps; the clock only ever stops early. One move is one step, one evaluation of the
objective counts as `OBJECTIVE_STEPS`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from olla_xla.lifetimes import GraphArrays, peak_bytes
from olla_xla.problem import TensorGraph
from olla_xla.schedule.anneal import Problem, anneal, evaluate, new_state, perturb, standing
from olla_xla.schedule.reduce import Reduced, reduce_graph

__all__ = ["OBJECTIVE_STEPS", "SearchResult", "search"]

OBJECTIVE_STEPS = 100

_MIB = 2**20
_GAIN = 0.02  # the annealing target lies this much below the best peak
_HISTORY = 1000  # late acceptance: moves looked back upon while annealing
_PATIENCE = 3  # chunks of annealing without progress before it ends
_OBJECTIVE_HISTORY = 50
_OBJECTIVE_PATIENCE = 1500  # evaluations without progress before the search ends


@dataclasses.dataclass(frozen=True, eq=False)
class SearchResult:
    """What the search found.

    Attributes:
      order: int64 [n], all operators. peak_bytes: its lifetime peak.
      objective_bytes: its objective (the lifetime peak if no objective was given).
      steps: search steps taken.
      stopped_by: "bound", "stall", "step_limit" or "time_limit".
    """

    order: np.ndarray
    peak_bytes: int
    objective_bytes: int
    steps: int
    stopped_by: str


class _Stop(Exception):
    """A limit was reached; its argument is the reason."""


def search(
    graph: TensorGraph,
    starts: Mapping[str, Sequence[int] | np.ndarray],
    *,
    objective: Callable[[np.ndarray], int] | None = None,
    time_limit: float,
    step_limit: int | None = None,
    seed: int = 0,
    bound_bytes: int = 0,
    progress: Callable[[str], None] | None = None,
) -> SearchResult:
    """Looks for the order with the least objective, starting from legal orders.

    Args:
      graph: the graph. starts: name -> order of all operators; at least one.
      objective: bytes of an order; the lifetime peak if None.
      time_limit: seconds. step_limit: steps, or None.
      seed: of the random numbers.
      bound_bytes: no order has a smaller lifetime peak, nor a smaller objective.
      progress: called with one line at each phase.

    Returns:
      The best order met, never worse than the best start.
    """
    run = _Run(graph, objective, time_limit, step_limit, seed, bound_bytes, progress)
    try:
        for name in sorted(starts):
            run.offer(np.asarray(starts[name], np.int64), name)
        run.go()
    except _Stop as stop:
        reason = str(stop)
    else:
        reason = "stall"
    assert run.best is not None
    return SearchResult(
        run.best.order,
        peak_bytes(run.full, run.best.order),
        run.best.objective,
        run.steps,
        reason,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Scored:
    """An order of all operators, contracted, and what it costs."""

    order: np.ndarray
    groups: np.ndarray
    objective: int
    peak: int
    name: str


class _Run:
    """One search: its limits, its graph in condensed form and its best orders."""

    def __init__(
        self,
        graph: TensorGraph,
        objective: Callable[[np.ndarray], int] | None,
        time_limit: float,
        step_limit: int | None,
        seed: int,
        bound: int,
        progress: Callable[[str], None] | None,
    ) -> None:
        self.started = time.monotonic()
        self.deadline = self.started + time_limit
        self.step_limit = step_limit
        self.steps = 0
        self.seed = seed
        self.bound = bound
        self.progress = progress or (lambda line: None)
        self.full = GraphArrays.of(graph)
        self.reduced: Reduced = reduce_graph(self.full)
        self.first = int(self.reduced.prologue)
        self.objective = objective
        self.problems = [Problem.of(self.reduced.arrays)]
        if objective is not None and self.reduced.arrays.live_in.any():
            self.problems.append(standing(self.reduced.arrays))
        self.best: _Scored | None = None
        self.pool: list[_Scored] = []

    # Limits.

    def spend(self, steps: int) -> None:
        """Counts steps; raises _Stop when a limit is reached or the bound is met."""
        self.steps += steps
        if self.best is not None and self.best.objective <= self.bound:
            raise _Stop("bound")
        if self.step_limit is not None and self.steps >= self.step_limit:
            raise _Stop("step_limit")
        if self.best is not None and time.monotonic() >= self.deadline:
            raise _Stop("time_limit")

    def allowed(self, steps: int) -> int:
        """At most `steps`, and no more than the limit leaves."""
        return steps if self.step_limit is None else min(steps, self.step_limit - self.steps)

    # Scoring.

    def score(self, groups: np.ndarray, name: str) -> _Scored:
        """Evaluates an order of groups and keeps it if it is the best."""
        return self.offer(self.reduced.expand(groups), name, groups)

    def offer(self, order: np.ndarray, name: str, groups: np.ndarray | None = None) -> _Scored:
        """Evaluates an order of all operators and keeps it if it is the best."""
        peak = peak_bytes(self.full, order)
        value = peak if self.objective is None else int(self.objective(order))
        groups = self.reduced.contract(order) if groups is None else groups
        scored = _Scored(order, groups, value, peak, name)
        if self.best is None or (value, peak) < (self.best.objective, self.best.peak):
            self.best = scored
        self.spend(OBJECTIVE_STEPS if self.objective is not None else 1)
        return scored

    def report(self, phase: str) -> None:
        """One line of progress."""
        assert self.best is not None
        self.progress(
            f"{phase}: {self.best.objective / _MIB:.1f} MiB, peak {self.best.peak / _MIB:.1f}, "
            f"bound {self.bound / _MIB:.1f}, {self.steps} steps, "
            f"{time.monotonic() - self.started:.1f} s"
        )

    # Phases.

    def go(self) -> None:
        """Runs all phases, until a limit raises _Stop or nothing improves any more."""
        assert self.best is not None
        start = self.best
        for k, problem in enumerate(self.problems):
            groups = self.anneal(problem, start.groups, self.seed * 1000 + k)
            scored = self.score(groups, "search")
            if k == 0 or scored.objective < start.objective:
                start = scored
            self.report("standing arguments" if k else "lifetimes")
        if self.objective is not None:
            self.polish(self.best, _OBJECTIVE_PATIENCE)
            self.report("objective")

    def anneal(self, problem: Problem, groups: np.ndarray, seed: int) -> np.ndarray:
        """Local search for the peak of a problem, until it stalls; returns the best groups."""
        state = new_state(problem, groups, seed)
        n = len(groups)
        if n - self.first < 2:
            return groups
        chunk = int(np.clip(50_000_000 // n, 200, 50_000))
        history = np.empty(_HISTORY)
        met = groups.copy()
        best, peak = groups, int(state.live.max())
        idle = 0
        while idle < _PATIENCE and peak > self.bound:
            target = max(self.bound, int(peak * (1 - _GAIN)))
            found, done = anneal(
                problem, state, self.first, target, self.allowed(chunk), history, met
            )
            idle += 1
            if found < peak:
                if found < peak * 0.999:
                    idle = 0
                peak, best = int(found), met.copy()
            self.spend(done)
        return best

    def polish(self, start: _Scored, patience: int) -> None:
        """Local search accepted on the objective, until `patience` evaluations bring nothing."""
        states = [
            new_state(problem, start.groups, self.seed * 1000 + 100 + k)
            for k, problem in enumerate(self.problems)
        ]
        now, least = start, start.objective
        history = [start.objective] * _OBJECTIVE_HISTORY
        idle = 0
        count = 0
        while idle < patience:
            which = count % len(states)
            problem, state = self.problems[which], states[which]
            state.order[:] = now.groups
            cap = max(evaluate(problem, state) if which else 0, now.objective)
            if not perturb(problem, state, self.first, cap):
                self.spend(1)
                idle += 1
                continue
            trial = self.score(state.order.copy(), "search")
            slot = count % len(history)
            if trial.objective <= max(now.objective, history[slot]):
                now = trial
            history[slot] = now.objective
            count += 1
            idle += 1
            if now.objective < least:
                least, idle = now.objective, 0
