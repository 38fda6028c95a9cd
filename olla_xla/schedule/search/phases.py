"""The search: prove the least lifetime peak, then look for the least objective near it.

1. Minimum cuts (`schedule.cuts`) lower the peak of every start, and bound it from below.
2. Without an objective, if that leaves a gap: local search for the peak, cuts again, branch and
   bound on who runs first (`schedule.branch`), and flat orders (`schedule.flatten`).
3. With an objective: local search for the peak with all argument buffers standing, then local
   search accepted on the objective itself, from the best of all orders so far.

All limits count steps (settings.py); the clock only ever stops early.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Required, TypedDict, Unpack

import numpy as np

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.stop_reason import StopReason
from olla_xla.schedule.condense import Reduced, reduce_graph
from olla_xla.schedule.search.branch import branch
from olla_xla.schedule.search.cuts import Cuts, improve, prove, prove_together
from olla_xla.schedule.search.flatten import flattened
from olla_xla.schedule.search.moves import (
    Problem,
    anneal,
    evaluate,
    load,
    new_state,
    perturb,
    standing,
)
from olla_xla.schedule.search.settings import Settings

__all__ = ["SearchOptions", "SearchResult", "search"]

_MIB = 2**20


class SearchOptions(TypedDict, total=False):
    """What is asked of `search`, by keyword; all but `time_limit` may be left out."""

    objective: Callable[[np.ndarray, int | None], int] | None
    """Gives the bytes of an order, or, where these are more than the number that is given with it,
    any number above that one; without an objective they are its lifetime peak."""

    exact: Callable[[np.ndarray], int] | None
    """The same more exactly and more slowly, to choose among the best orders."""

    excess: int
    """By how many bytes the objective is expected to exceed the lifetime peak at best, as where the
    graph is a part of what the objective measures; 0 if left out."""

    time_limit: Required[float]
    """Wall-clock seconds after which the search ends."""

    step_limit: int | None
    """Steps after which the search ends; there is no such limit if it is left out."""

    seed: int
    """The random numbers follow from it; 0 if left out."""

    bound_bytes: int
    """No order has a smaller lifetime peak, nor a smaller objective; 0 if left out."""

    tolerance: float
    """The search ends at (1 + tolerance) times the bound; 0 if left out."""

    deadline: Callable[[int], float] | None
    """Gives the time of the monotonic clock at which the search ends where its best objective is so
    many bytes, if that is sooner; there is no such limit if it is left out."""

    progress: Callable[[str], None] | None
    """Called with one line of text at each phase."""

    settings: Settings
    """How hard each phase tries."""


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
      stopped_by: PROOF, STALL, STEP_LIMIT or TIME_LIMIT.
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
    stopped_by: StopReason


class _Stop(Exception):
    """A limit was reached."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


def search(
    graph: TensorGraph | GraphArrays,
    starts: Mapping[str, Sequence[int] | np.ndarray],
    **options: Unpack[SearchOptions],
) -> SearchResult:
    """Looks for the order with the least objective, starting from legal orders.

    Args:
      graph: the graph. starts: name -> order of all operators; at least one.
      options: see SearchOptions.

    Returns:
      The best order met, never worse than the best start.
    """
    run = _Run(GraphArrays.of(graph), options)
    try:
        run.go({name: np.asarray(starts[name], np.int64) for name in sorted(starts)})
    except _Stop as stop:
        reason = stop.reason
    else:
        reason = StopReason.PROOF if run.met() else StopReason.STALL
    return run.result(reason)


@dataclasses.dataclass(eq=False)
class _Limits:
    """How long the search may go on: seconds, and steps or None."""

    seconds: float
    most_steps: int | None
    steps: int = 0
    sooner: float = math.inf
    """A time of the monotonic clock at which the search ends if its seconds are not over before."""

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.seconds
        self._aside = 0.0

    def spend(self, steps: int) -> None:
        """Counts steps; raises _Stop when a limit is reached."""
        self.steps += steps
        if self.most_steps is not None and self.steps >= self.most_steps:
            raise _Stop(StopReason.STEP_LIMIT)
        if time.monotonic() - self._aside >= min(self.deadline, self.sooner):
            raise _Stop(StopReason.TIME_LIMIT)

    def aside(self, work: Callable[[], None]) -> None:
        """Does work that is not charged to the search."""
        started = time.monotonic()
        work()
        self._aside += time.monotonic() - started

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

    def __init__(self, graph: GraphArrays, options: SearchOptions) -> None:
        self.limits = _Limits(options["time_limit"], options.get("step_limit"))
        self.settings = options.get("settings", Settings())
        self.seed = options.get("seed", 0)
        self.tolerance = options.get("tolerance", 0.0)
        self.progress = options.get("progress") or (lambda line: None)
        self.objective = options.get("objective")
        self.exact = options.get("exact")
        self.excess = options.get("excess", 0)
        self.deadline = options.get("deadline")
        self.full = graph
        self.reduced: Reduced = reduce_graph(graph)
        self.first = int(self.reduced.prologue)
        self.problem = Problem.of(self.reduced.arrays)
        self.cuts = Cuts(self.reduced.arrays, options.get("bound_bytes", 0))
        self.least: _Scored | None = None  # by lifetime peak
        self.near: list[tuple[int, np.ndarray]] = []  # met on the way to it, by peak
        self.best: _Scored | None = None  # by objective
        self.best_order: np.ndarray | None = None  # by the exact objective
        self.best_exact: tuple[int, int] = (0, 0)  # that objective and the lifetime peak

    # Scoring.

    def met(self) -> bool:
        """Whether the best order is as near to the bound as was asked for."""
        return self.best_order is not None and self._near(self.best_exact[0])

    def _settled(self) -> bool:
        """Whether only a smaller lifetime peak could lower the objective."""
        assert self.best_order is not None
        return self.best_exact[0] <= self._expected() * (1 + self.tolerance)

    def _expected(self) -> int:
        """The least objective that can be hoped for."""
        assert self.least is not None
        return self.least.peak + self.excess

    def _near(self, bytes: int) -> bool:
        return bytes <= self.cuts.bound * (1 + self.tolerance)

    def _is_progress(self, value: int, before: int) -> bool:
        return value < before * (1 - self.settings.progress)

    def _spend_cuts(self, cuts: int = 1) -> None:
        self.limits.spend(cuts * self.settings.cut_steps)

    def peak(self, groups: np.ndarray, peak: int | None = None) -> int:
        """Notes an order of groups for its lifetime peak."""
        peak = peak_bytes(self.reduced.arrays, groups) if peak is None else peak
        if self.least is None or peak < self.least.peak:
            if self.least is not None:
                self.near.append((self.least.peak, self.least.groups))
                if len(self.near) > 8 * self.settings.most_near:  # orders of large graphs are long
                    self.near = sorted(self.near, key=lambda row: row[0])
                    del self.near[2 * self.settings.most_near :]
            self.least = _Scored(groups, peak, peak)
        return peak

    def score(
        self, groups: np.ndarray, order: np.ndarray | None = None, value: int | None = None
    ) -> _Scored:
        """Evaluates an order and keeps it if it is the best.

        Args:
          groups: the order. order: itself, where it is not condensed. value: its objective, where
            that is known.
        """
        order = self.reduced.expand(groups) if order is None else order
        peak = peak_bytes(self.full, order)
        if value is None:
            value = peak if self.objective is None else int(self.objective(order, None))
        scored = _Scored(groups, value, peak)
        if self.best is None or _rank(scored) < _rank(self.best):
            self.best = scored
            found = value if self.exact is None else int(self.exact(order)), peak
            if self.best_order is None or found < self.best_exact:
                self.best_exact, self.best_order = found, order
                if self.deadline is not None:
                    self.limits.sooner = self.deadline(found[0])
        return scored

    def report(self, phase: str) -> None:
        """One line of progress."""
        assert self.least is not None
        self.progress(
            f"{phase}: {self.best_exact[0] / _MIB:.1f} MiB, least peak "
            f"{self.least.peak / _MIB:.1f}, bound {self.cuts.bound / _MIB:.1f}, "
            f"{self.limits.steps} steps"
        )

    def result(self, reason: StopReason) -> SearchResult:
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
        """Orders of little more than the least peak, met on the way to it; the lowest first."""
        assert self.least is not None
        limit = self.least.peak * self.settings.near
        least = self.least.groups
        kept: list[np.ndarray] = []
        for peak, groups in sorted(self.near, key=lambda row: row[0]):
            if peak <= limit and not any(np.array_equal(groups, k) for k in (least, *kept)):
                kept.append(groups)
        return kept[: self.settings.most_near]

    # Phases.

    def go(self, starts: Mapping[str, np.ndarray]) -> None:
        """Runs all phases, until a limit raises _Stop or nothing improves any more."""
        groups = {}
        for name, order in starts.items():
            groups[name] = self.reduced.contract(order)
            self.score(groups[name], order)
            self.peak(groups[name])
        self.limits.spend(self.settings.objective_steps * len(starts))
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
            self.limits.spend(self.settings.objective_steps)
        self.towards_objective()

    def lifetimes(self, starts: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Lowers the lifetime peak of all starts; the orders that came near the best."""
        found: list[tuple[int, str, np.ndarray]] = []

        def offer(groups: np.ndarray, peak: int) -> None:
            self.peak(groups, peak)
            self._spend_cuts()

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
            groups = self.anneal(self.problem, self.least.groups, self.seed * 1000, quick=True)
            groups, peak = improve(self.cuts, groups, offer)
            self.near.append((peak, groups))
            self._prove()
            self._branch(offer)
            self._restart(self.least.groups, offer)
            self._flatten(offer)
            found.append((self.least.peak, "", self.least.groups))
        limit = self.least.peak * self.settings.near_start
        return [groups for peak, _, groups in sorted(found, key=lambda f: f[:2]) if peak <= limit]

    def _branch(self, offer: Callable[[np.ndarray, int], None]) -> None:
        """Closes the gap from both sides, if it is worth that."""
        assert self.least is not None
        if self._wide():
            branch(self.cuts, self.least.groups, offer, self._spend_cuts)

    def _flatten(self, offer: Callable[[np.ndarray, int], None]) -> None:
        """Local search for orders that are flat: on the way to them the peak falls too."""
        assert self.least is not None
        graph, groups = self.reduced.arrays, self.least.groups
        orders = flattened(graph, groups, seed=self.seed, first=self.first, spend=self.limits.spend)
        fruitless = 0
        while fruitless < self.settings.flat_fruitless and self._wide():
            before = self.least.peak
            if (flat := next(orders, None)) is None:
                return
            self.peak(flat)
            improve(self.cuts, flat, offer)
            self._prove()
            fruitless = 0 if self._is_progress(self.least.peak, before) else fruitless + 1

    def _wide(self) -> bool:
        """Whether the gap is worth closing by dear means."""
        assert self.least is not None
        return self.least.peak > self.cuts.bound * (1 + self.settings.wide_gap)

    def _restart(self, start: np.ndarray, offer: Callable[[np.ndarray, int], None]) -> None:
        """Local search for the peak with other random numbers, while the gap is wide.

        What came near the best may serve the objective better; it is kept as well.
        """
        assert self.least is not None
        settings, fruitless = self.settings, 0
        for k in range(1, settings.restarts + 1):
            before = self.least.peak
            enough = self.cuts.bound * (1 + settings.restarts_gap)
            if before <= enough or fruitless >= settings.restarts_fruitless:
                return
            seed = self.seed * 1000 + settings.restart_seed + k
            groups = self.anneal(self.problem, start, seed)
            groups, peak = improve(self.cuts, groups, offer)
            self.near.append((peak, groups))
            fruitless = 0 if self._is_progress(self.least.peak, before) else fruitless + 1
            self._prove()

    def _prove(self) -> None:
        """Raises the bound on the least peak, unless it is met."""
        assert self.least is not None
        if not self._near(self.least.peak):
            prove(self.cuts, self.least.groups, self._spend_cuts)
        if not self._near(self.least.peak):
            prove_together(self.cuts, self._spend_cuts)

    def towards_objective(self) -> None:
        """Local search for the objective, several times over while the graph is small."""
        problems = [self.problem]
        if self.reduced.arrays.live_in.any():
            problems.append(standing(self.reduced.arrays))
        assert self.best is not None
        start, fruitless, first = self.best, 0, self.limits.steps
        settings = self.settings
        for k in range(settings.rounds):
            before = self.best.objective
            seed = self.seed * 1000 + 1 + 10 * k
            now = start if k % 2 == 0 else self.best
            wide = start.objective > self._expected() * (1 + settings.rounds_gap)
            if len(problems) > 1 and wide:
                found = self.anneal(problems[-1], now.groups, seed, quick=True)
                now = min(now, self.score(found), key=_rank)
            gap = self.best.objective / max(self._expected(), 1) - 1
            patience = self._patience(gap, fruitless)
            self.polish(problems, now, patience, seed)
            self.report(f"objective, round {k + 1}")
            fruitless = 0 if self._is_progress(self.best.objective, before) else fruitless + 1
            spent = (self.limits.steps - first) * len(start.groups)
            if self._settled() or gap < settings.rounds_gap:
                break
            most = min(settings.most_work, int(settings.work_per_gap * gap))
            if fruitless >= settings.fruitless or spent > max(settings.least_work, most):
                break

    def _patience(self, gap: float, fruitless: int) -> int:
        """Evaluations without progress that a gap is worth; they are slower on large graphs.

        Each of the `fruitless` rounds before, in a row, doubles the most of them.
        """
        settings = self.settings
        most = min(settings.first_patience << fruitless, settings.most_patience)
        most = min(most, settings.patience_work // self.full.n)
        return max(settings.least_patience, min(most, int(settings.patience_per_gap * gap)))

    def anneal(
        self, problem: Problem, groups: np.ndarray, seed: int, *, quick: bool = False
    ) -> np.ndarray:
        """Local search for the peak of a problem, until it stalls; returns the best groups.

        A quick one takes the first stall for the last: another search follows it.
        """
        self.limits.aside(load)
        state = new_state(problem, groups, seed)
        settings = self.settings
        chunk = min(settings.chunk, settings.chunk_work // len(groups))
        if quick:
            chunk = int(settings.quick_part * chunk)
        chunk = max(settings.least_chunk, chunk)
        history = np.empty(settings.history)
        met = groups.copy()
        best, peak = groups, int(state.live.max())
        idle = 0
        while idle < settings.patience and not self._near(peak):
            target = max(self.cuts.bound, int(peak * (1 - settings.gain)))
            steps = self.limits.allowed(chunk)
            least, done = anneal(problem, state, self.first, target, steps, history, met, 0)
            idle += 1
            if least < peak:
                if least < peak * settings.stall:
                    idle = 0
                peak, best = int(least), met.copy()
                self.peak(best)
            self.limits.spend(done)
        return best

    def polish(self, problems: Sequence[Problem], now: _Scored, patience: int, seed: int) -> None:
        """Local search accepted on the objective, until `patience` evaluations bring nothing."""
        self.limits.aside(load)
        objective = self.objective
        assert objective is not None
        states = [
            new_state(problem, now.groups, seed + 1 + k) for k, problem in enumerate(problems)
        ]
        least = now.objective
        history = [now.objective] * self.settings.objective_history
        idle = count = 0
        while idle < patience and not self._settled():
            which = count % len(states)
            problem, state = problems[which], states[which]
            state.order[:] = now.groups
            # Moves are chosen by the live bytes of the order that this state last held.
            cap = max(evaluate(problem, state) if which else 0, now.objective)
            idle += 1
            if not perturb(problem, state, self.first, cap):
                self.limits.spend(1)
                continue
            slot = count % len(history)
            if not np.array_equal(state.order, now.groups):
                groups = state.order.copy()
                order = self.reduced.expand(groups)
                most = max(now.objective, history[slot])
                value = int(objective(order, most))
                if value <= most:
                    now = self.score(groups, order, value)
            self.limits.spend(self.settings.objective_steps)
            history[slot] = now.objective
            count += 1
            if self._is_progress(now.objective, least):
                least, idle = now.objective, 0
