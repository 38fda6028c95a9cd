"""The search: prove the least lifetime peak, then look for the least objective near it.

1. Minimum cuts (`schedule.cuts`) lower the peak of every start, and bound it from below.
2. Without an objective, if that leaves a gap: local search for the peak, cuts again, branch and
   bound on who runs first (`schedule.branch`), and flat orders (`schedule.flatten`).
3. With an objective: local search for the peak with all argument buffers standing, then local
   search accepted on the objective itself, from the best of all orders so far.

All limits count steps; the clock only ever stops early. One move is one step, a cut counts as
`CUT_STEPS`, an evaluation of the objective as `OBJECTIVE_STEPS`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.condense import Reduced, reduce_graph
from olla_xla.schedule.search.branch import branch
from olla_xla.schedule.search.cuts import Cuts, improve, prove, prove_together
from olla_xla.schedule.search.flatten import flattened
from olla_xla.schedule.search.moves import Problem, anneal, evaluate, new_state, perturb, standing

__all__ = ["CUT_STEPS", "OBJECTIVE_STEPS", "SearchResult", "search"]

CUT_STEPS = 100
OBJECTIVE_STEPS = 100

_MIB = 2**20
_GAIN = 0.02  # the annealing target lies this much below the best peak
_HISTORY = 1000  # late acceptance: moves looked back upon while annealing
_CHUNK = 20_000  # moves between looks at the limits
_PATIENCE = 3  # chunks of annealing without progress before it ends
_OBJECTIVE_HISTORY = 50
_OBJECTIVE_PATIENCE = (50, 800)  # evaluations without progress before a round ends:
_PATIENCE_PER_GAP = 40_000  # within these limits, this many times the gap to the least peak,
_PATIENCE_WORK = 400_000  # and at most this many divided by the number of operators
_WIDE_GAP = 1e-3  # part of the bound from which on branch and bound and flat orders are tried
_FLAT_FRUITLESS = 2  # flat orders in a row without progress before no more are looked for
_RESTARTS = 12  # of annealing from the first best, at most, while the peak may be lowered
_RESTARTS_GAP = 0.01  # by more than this part of the bound;
_RESTARTS_FRUITLESS = 5  # it ends after so many in a row without progress
_NEAR, _MOST_NEAR = 1.03, 4  # annealed orders kept: their peak over the least, and their number
_RESTART_SEED = 500  # added to the seed of the k-th restart, with k
_PROGRESS = 2e-4  # what counts as progress, as a part of the objective
_ROUNDS = 6  # of local search for the objective, at most; it ends sooner
_ROUNDS_GAP = 0.01  # if the objective is this near to the least peak,
_ROUNDS_WORK = (30_000_000, 200_000_000)  # or after so many steps times operators: within these
_WORK_PER_GAP = 4_000_000_000  # limits, this many times the gap;
_FRUITLESS = 3  # or after so many rounds without progress


@dataclasses.dataclass(frozen=True, eq=False)
class SearchResult:
    """What the search found.

    Attributes:
      order: int64 [n], all operators. peak_bytes: its lifetime peak.
      objective_bytes: its objective (the lifetime peak if no objective was given).
      lifetime_order: the order with the least lifetime peak met. least_peak_bytes: that peak.
      near_orders: a few others whose peak is little more.
      bound_bytes: no order has a lower lifetime peak. bound_at: the operator that proves it, or -1
        if the caller's bound is no weaker.
      steps: search steps taken.
      stopped_by: "bound", "stall", "step_limit" or "time_limit".
    """

    order: np.ndarray
    peak_bytes: int
    objective_bytes: int
    lifetime_order: np.ndarray
    near_orders: tuple[np.ndarray, ...]
    least_peak_bytes: int
    bound_bytes: int
    bound_at: int
    steps: int
    stopped_by: str


class _Stop(Exception):
    """A limit was reached; its argument is the reason."""


def search(
    graph: TensorGraph | GraphArrays,
    starts: Mapping[str, Sequence[int] | np.ndarray],
    *,
    objective: Callable[[np.ndarray], int] | None = None,
    exact: Callable[[np.ndarray], int] | None = None,
    beyond: int = 0,
    time_limit: float,
    step_limit: int | None = None,
    seed: int = 0,
    bound_bytes: int = 0,
    tolerance: float = 0.0,
    progress: Callable[[str], None] | None = None,
) -> SearchResult:
    """Looks for the order with the least objective, starting from legal orders.

    Args:
      graph: the graph. starts: name -> order of all operators; at least one.
      objective: bytes of an order; the lifetime peak if None.
      exact: the same more exactly and more slowly, to choose among the best; None if it is exact.
      beyond: by how many bytes the objective is expected to exceed the lifetime peak at best, as
        where the graph is a part of what the objective measures.
      time_limit: seconds. step_limit: steps, or None.
      seed: of the random numbers.
      bound_bytes: no order has a smaller lifetime peak, nor a smaller objective.
      tolerance: the search ends at (1 + tolerance) times the bound.
      progress: called with one line at each phase.

    Returns:
      The best order met, never worse than the best start.
    """
    limits = _Limits(time_limit, step_limit)
    run = _Run(graph, objective, exact, beyond, limits, seed, bound_bytes, tolerance, progress)
    try:
        run.go({name: np.asarray(starts[name], np.int64) for name in sorted(starts)})
    except _Stop as stop:
        reason = str(stop)
    else:
        reason = "bound" if run.met() else "stall"
    return run.result(reason)


@dataclasses.dataclass(eq=False)
class _Limits:
    """How long the search may go on: seconds, and steps or None."""

    seconds: float
    most_steps: int | None
    steps: int = 0

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.seconds

    def spend(self, steps: int) -> None:
        """Counts steps; raises _Stop when a limit is reached."""
        self.steps += steps
        if self.most_steps is not None and self.steps >= self.most_steps:
            raise _Stop("step_limit")
        if time.monotonic() >= self.deadline:
            raise _Stop("time_limit")

    def allowed(self, steps: int) -> int:
        """At most `steps`, and no more than the limit leaves."""
        return steps if self.most_steps is None else min(steps, self.most_steps - self.steps)


@dataclasses.dataclass(frozen=True, eq=False)
class _Scored:
    """An order of groups and what it costs in bytes."""

    groups: np.ndarray
    objective: int
    peak: int


def _rank(scored: _Scored) -> tuple[int, int]:
    return scored.objective, scored.peak


class _Run:
    """One search: its graph in condensed form, its bound and its best orders."""

    def __init__(
        self,
        graph: TensorGraph | GraphArrays,
        objective: Callable[[np.ndarray], int] | None,
        exact: Callable[[np.ndarray], int] | None,
        beyond: int,
        limits: _Limits,
        seed: int,
        bound: int,
        tolerance: float,
        progress: Callable[[str], None] | None,
    ) -> None:
        self.limits = limits
        self.seed = seed
        self.tolerance = tolerance
        self.given = bound
        self.progress = progress or (lambda line: None)
        self.full = GraphArrays.of(graph)
        self.reduced: Reduced = reduce_graph(self.full)
        self.first = int(self.reduced.prologue)
        self.objective = objective
        self.exact = exact
        self.beyond = beyond
        self.problem = Problem.of(self.reduced.arrays)
        self.cuts = Cuts(self.reduced.arrays, bound)
        self.least: _Scored | None = None  # by lifetime peak
        self.near: list[tuple[int, np.ndarray]] = []  # what each annealing ended with, by peak
        self.best: _Scored | None = None  # by objective
        self.best_order: np.ndarray | None = None  # by the exact objective
        self.best_exact: tuple[int, int] = (0, 0)  # that objective and the lifetime peak

    # Scoring.

    def met(self) -> bool:
        """Whether the best order is as near to the bound as was asked for."""
        return self.best_order is not None and self._near(self.best_exact[0])

    def _settled(self) -> bool:
        """Whether the objective could only fall further with the least lifetime peak."""
        assert self.best_order is not None
        return self.best_exact[0] <= self._expected() * (1 + self.tolerance)

    def _expected(self) -> int:
        """The least objective that can be hoped for."""
        assert self.least is not None
        return self.least.peak + self.beyond

    def _near(self, bytes: int) -> bool:
        return bytes <= self.cuts.bound * (1 + self.tolerance)

    def peak(self, groups: np.ndarray, peak: int | None = None) -> int:
        """Notes an order of groups for its lifetime peak."""
        peak = peak_bytes(self.reduced.arrays, groups) if peak is None else peak
        if self.least is None or peak < self.least.peak:
            self.least = _Scored(groups, peak, peak)
        return peak

    def score(self, groups: np.ndarray, order: np.ndarray | None = None) -> _Scored:
        """Evaluates an order and keeps it if it is the best; `order` where it is not condensed."""
        order = self.reduced.expand(groups) if order is None else order
        peak = peak_bytes(self.full, order)
        value = peak if self.objective is None else int(self.objective(order))
        scored = _Scored(groups, value, peak)
        if self.best is None or _rank(scored) < _rank(self.best):
            self.best = scored
            found = value if self.exact is None else int(self.exact(order)), peak
            if self.best_order is None or found < self.best_exact:
                self.best_exact, self.best_order = found, order
        return scored

    def report(self, phase: str) -> None:
        """One line of progress."""
        assert self.least is not None
        self.progress(
            f"{phase}: {self.best_exact[0] / _MIB:.1f} MiB, least peak "
            f"{self.least.peak / _MIB:.1f}, bound {self.cuts.bound / _MIB:.1f}, "
            f"{self.limits.steps} steps"
        )

    def result(self, reason: str) -> SearchResult:
        """The best found so far."""
        assert self.best_order is not None and self.least is not None
        at = self.cuts.at
        return SearchResult(
            order=self.best_order,
            peak_bytes=peak_bytes(self.full, self.best_order),
            objective_bytes=self.best_exact[0],
            lifetime_order=self.reduced.expand(self.least.groups),
            near_orders=tuple(self.reduced.expand(groups) for groups in self._near_least()),
            least_peak_bytes=self.least.peak,
            bound_bytes=min(self.cuts.bound, self.least.peak),
            bound_at=-1 if at < 0 else int(self.reduced.keys[at]),
            steps=self.limits.steps,
            stopped_by=reason,
        )

    def _near_least(self) -> list[np.ndarray]:
        """Orders of little more than the least peak, from annealing; the lowest first."""
        assert self.least is not None
        limit = self.least.peak * _NEAR
        least = self.least.groups
        kept: list[np.ndarray] = []
        for peak, groups in sorted(self.near, key=lambda row: row[0]):
            if peak <= limit and not any(np.array_equal(groups, k) for k in (least, *kept)):
                kept.append(groups)
        return kept[:_MOST_NEAR]

    # Phases.

    def go(self, starts: Mapping[str, np.ndarray]) -> None:
        """Runs all phases, until a limit raises _Stop or nothing improves any more."""
        groups = {}
        for name, order in starts.items():
            groups[name] = self.reduced.contract(order)
            self.score(groups[name], order)
            self.peak(groups[name])
        self.limits.spend(OBJECTIVE_STEPS * len(starts))
        assert self.least is not None
        if len(self.problem.transient) - self.first < 2:
            self.score(self.least.groups)
            return
        try:
            found = self.lifetimes(groups)
        finally:
            self.score(self.least.groups)
        self.report("lifetimes")
        if self.objective is None or self._settled():
            return
        for trial in found:
            self.score(trial)
            self.limits.spend(OBJECTIVE_STEPS)
        self.towards_objective()

    def lifetimes(self, starts: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Lowers the lifetime peak of all starts; the orders that came near the best."""
        found: list[tuple[int, str, np.ndarray]] = []

        def offer(groups: np.ndarray, peak: int) -> None:
            self.peak(groups, peak)
            self.limits.spend(CUT_STEPS)

        by_peak = sorted(
            starts, key=lambda name: (peak_bytes(self.reduced.arrays, starts[name]), name)
        )
        for name in by_peak:
            groups, peak = improve(self.cuts, starts[name], offer)
            found.append((peak, name, groups))
        assert self.least is not None
        if self.objective is None:
            self._prove()
        if self.objective is None and not self._near(self.least.peak):
            groups = self.anneal(self.problem, self.least.groups, self.seed * 1000)
            groups, peak = improve(self.cuts, groups, offer)
            self.near.append((peak, groups))
            self._prove()
            self._branch(offer)
            self._restart(self.least.groups, offer)
            self._flatten(offer)
            found.append((self.least.peak, "", self.least.groups))
        limit = self.least.peak * 1.02
        return [groups for peak, _, groups in sorted(found, key=lambda f: f[:2]) if peak <= limit]

    def _branch(self, offer: Callable[[np.ndarray, int], None]) -> None:
        """Closes the gap from both sides, if it is worth that."""
        assert self.least is not None
        if self._wide():
            spend = self.limits.spend
            branch(self.cuts, self.least.groups, offer, lambda cuts: spend(cuts * CUT_STEPS))

    def _flatten(self, offer: Callable[[np.ndarray, int], None]) -> None:
        """Local search for orders that are flat: on the way to them the peak falls too."""
        assert self.least is not None
        graph, groups = self.reduced.arrays, self.least.groups
        orders = flattened(graph, groups, seed=self.seed, first=self.first, spend=self.limits.spend)
        fruitless = 0
        while fruitless < _FLAT_FRUITLESS and self._wide():
            before = self.least.peak
            if (flat := next(orders, None)) is None:
                return
            self.peak(flat)
            improve(self.cuts, flat, offer)
            self._prove()
            fruitless = 0 if self.least.peak < before * (1 - _PROGRESS) else fruitless + 1

    def _wide(self) -> bool:
        """Whether the gap is worth closing by dear means."""
        assert self.least is not None
        return self.least.peak > self.cuts.bound * (1 + _WIDE_GAP)

    def _restart(self, start: np.ndarray, offer: Callable[[np.ndarray, int], None]) -> None:
        """Local search for the peak with other random numbers, while the gap is wide.

        What came near the best may serve the objective better; it is kept as well.
        """
        assert self.least is not None
        fruitless = 0
        for k in range(1, _RESTARTS + 1):
            before = self.least.peak
            if before <= self.cuts.bound * (1 + _RESTARTS_GAP) or fruitless >= _RESTARTS_FRUITLESS:
                return
            groups = self.anneal(self.problem, start, self.seed * 1000 + _RESTART_SEED + k)
            groups, peak = improve(self.cuts, groups, offer)
            self.near.append((peak, groups))
            fruitless = 0 if self.least.peak < before * (1 - _PROGRESS) else fruitless + 1
            self._prove()

    def _prove(self) -> None:
        """Raises the bound on the least peak, unless it is met."""
        assert self.least is not None
        if not self._near(self.least.peak):
            prove(self.cuts, self.least.groups, lambda: self.limits.spend(CUT_STEPS))
        if not self._near(self.least.peak):
            prove_together(self.cuts, lambda: self.limits.spend(CUT_STEPS))

    def towards_objective(self) -> None:
        """Local search for the objective, several times over while the graph is small."""
        problems = [self.problem]
        if self.reduced.arrays.live_in.any():
            problems.append(standing(self.reduced.arrays))
        assert self.best is not None
        start, fruitless, first = self.best, 0, self.limits.steps
        for k in range(_ROUNDS):
            before = self.best.objective
            seed = self.seed * 1000 + 1 + 10 * k
            now = start
            if len(problems) > 1 and start.objective > self._expected() * (1 + _ROUNDS_GAP):
                now = min(now, self.score(self.anneal(problems[-1], now.groups, seed)), key=_rank)
            gap = self.best.objective / max(self._expected(), 1) - 1
            patience = self._patience(gap)
            self.polish(problems, now, patience, seed)
            self.report(f"objective, round {k + 1}")
            fruitless = 0 if self.best.objective < before * (1 - _PROGRESS) else fruitless + 1
            spent = (self.limits.steps - first) * len(start.groups)
            if self._settled() or gap < _ROUNDS_GAP:
                break
            least, most = _ROUNDS_WORK
            work = max(least, min(most, int(_WORK_PER_GAP * gap)))
            if fruitless >= _FRUITLESS or spent > work:
                break

    def _patience(self, gap: float) -> int:
        """Evaluations without progress that a gap is worth; they are slower on large graphs."""
        least, most = _OBJECTIVE_PATIENCE
        most = min(most, _PATIENCE_WORK // self.full.n)
        return max(least, min(most, int(_PATIENCE_PER_GAP * gap)))

    def anneal(self, problem: Problem, groups: np.ndarray, seed: int) -> np.ndarray:
        """Local search for the peak of a problem, until it stalls; returns the best groups."""
        state = new_state(problem, groups, seed)
        chunk = int(np.clip(5_000_000 // len(groups), 200, _CHUNK))
        history = np.empty(_HISTORY)
        met = groups.copy()
        best, peak = groups, int(state.live.max())
        idle = 0
        while idle < _PATIENCE and not self._near(peak):
            target = max(self.cuts.bound, int(peak * (1 - _GAIN)))
            steps = self.limits.allowed(chunk)
            least, done = anneal(problem, state, self.first, target, steps, history, met)
            idle += 1
            if least < peak:
                if least < peak * 0.999:
                    idle = 0
                peak, best = int(least), met.copy()
                self.peak(best)
            self.limits.spend(done)
        return best

    def polish(self, problems: Sequence[Problem], now: _Scored, patience: int, seed: int) -> None:
        """Local search accepted on the objective, until `patience` evaluations bring nothing."""
        states = [
            new_state(problem, now.groups, seed + 1 + k) for k, problem in enumerate(problems)
        ]
        least = now.objective
        history = [now.objective] * _OBJECTIVE_HISTORY
        idle = count = 0
        while idle < patience and not self._settled():
            which = count % len(states)
            problem, state = problems[which], states[which]
            state.order[:] = now.groups
            cap = max(evaluate(problem, state) if which else 0, now.objective)
            idle += 1
            if not perturb(problem, state, self.first, cap):
                self.limits.spend(1)
                continue
            trial = self.score(state.order.copy())
            self.limits.spend(OBJECTIVE_STEPS)
            slot = count % len(history)
            if trial.objective <= max(now.objective, history[slot]):
                now = trial
            history[slot] = now.objective
            count += 1
            if now.objective < least * (1 - _PROGRESS):
                least, idle = now.objective, 0
