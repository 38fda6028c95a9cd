"""One search: its options, its limits, its bound, the best orders met, and its result."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory import clock
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.plan_parts import StopReason
from olla_xla.schedule.condense import Reduced, reduce_graph
from olla_xla.schedule.search.cuts import Cuts

_MIB = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How hard each phase of the search tries: numbers of steps, and gaps at which it stops. A step
    is one move of local search. A gap is the best objective less the least expected one
    (`Run.expected`), as a fraction of the latter. The bound is the lower bound on the peak.

    Attributes:
      cut_steps, objective_steps: steps that one minimum cut, and one evaluation of the objective,
        count as.
      gain: the target of local search lies below the best peak by this fraction of that peak.
      history: a move is accepted if the order costs no more than it did this many moves before.
      chunk, least_chunk: moves between checks of the limits, at most and at least.
      chunk_work: between checks of the limits, moves times groups of operators are at most this.
      quick_part: a quick search checks the limits, and whether it stalls, after this part of them.
      stall: moves between checks improve if they led to a peak below this fraction of the best.
      patience: local search for the peak ends after this many checks without improvement.
      wide_gap: branch and bound and flat orders are tried if the peak exceeds the bound by more
        than this fraction.
      flat_fruitless: so many flat orders in a row without progress are the last ones.
      restarts: local search restarts at most this many times. restarts_gap: not if the peak exceeds
        the bound by no more than this fraction. restarts_fruitless: nor after so many restarts in a
        row without progress. restart_seed: restart k has the seed of the first plus this plus k.
      near: other orders are reported if their peaks are at most this many times the least.
      most_near: at most this many of them are reported.
      near_start: an improved start is tried on the objective up to this many times the least peak.
      progress: a decrease counts as progress if it is more than this fraction of the value.
      objective_history: an order is accepted if its objective is no more than it was this many
        evaluations before.
      least_patience, most_patience: a round ends after this many evaluations without improvement,
        at least and at most. first_patience: the first round, at most.
      patience_per_gap: within these limits, after this many such evaluations, times the gap.
      patience_work: they are, times operators, at most this (but at least `least_patience`).
      rounds: at most. rounds_gap: no other round begins if the gap was less than this.
      fruitless: no other round begins after this many that brought no progress.
      least_work, most_work: rounds go on for so many steps times groups of operators, at least and
        at most. work_per_gap: within these limits, for at most this times the gap.
    """

    # What a step limit is spent on.
    cut_steps: int = 100
    objective_steps: int = 100

    # Local search for the peak.
    gain: float = 0.02
    history: int = 1000
    chunk: int = 20_000
    least_chunk: int = 200
    chunk_work: int = 5_000_000
    quick_part: float = 0.03
    stall: float = 0.999
    patience: int = 3

    # Further searches for the peak, where there is no objective.
    wide_gap: float = 1e-3
    flat_fruitless: int = 2
    restarts: int = 12
    restarts_gap: float = 0.01
    restarts_fruitless: int = 5
    restart_seed: int = 500
    near: float = 1.03
    most_near: int = 4

    # Local search for the objective.
    near_start: float = 1.02
    progress: float = 2e-4
    objective_history: int = 50
    least_patience: int = 50
    first_patience: int = 200
    most_patience: int = 400
    patience_per_gap: int = 40_000
    patience_work: int = 400_000
    rounds: int = 10
    rounds_gap: float = 0.01
    fruitless: int = 3
    least_work: int = 30_000_000
    most_work: int = 200_000_000
    work_per_gap: int = 4_000_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of `search`; sizes in bytes.

    Attributes:
      time_limit: seconds of `memory.clock` after which the search ends.
      step_limit: steps after which it ends; None: no such limit.
      objective: (order, limit) -> bytes of the order; any number above the limit where these exceed
        it. None: the lifetime peak is minimised.
      exact: a slower and more exact objective, by which the best orders are compared.
      excess: the least bytes by which the objective is expected to exceed the lifetime peak, as
        where the graph is only a part of what the objective measures. seed: of the random numbers.
      bound_bytes: no order has a smaller lifetime peak, nor a smaller objective.
      tolerance: the search ends at (1 + tolerance) times the bound. deadline: best objective ->
        time of `memory.clock` at which the search ends, if that is sooner than `time_limit`.
      progress: called with one line of text at each phase. settings: how hard each phase tries.
    """

    time_limit: float
    step_limit: int | None = None
    objective: Callable[[NDArray[np.int64], int | None], int] | None = None
    exact: Callable[[NDArray[np.int64]], int] | None = None
    excess: int = 0
    seed: int = 0
    bound_bytes: int = 0
    tolerance: float = 0.0
    deadline: Callable[[int], float] | None = None
    progress: Callable[[str], None] | None = None
    settings: SearchSettings = dataclasses.field(default_factory=SearchSettings)


@dataclasses.dataclass(frozen=True, eq=False)
class SearchResult:
    """The best orders that the search found, and the bound that it proved.

    Attributes:
      order: int64 [n], all operators. peak_bytes: its lifetime peak.
      objective_bytes: its objective (the lifetime peak if no objective was given).
      lifetime_order: the order with the least lifetime peak met. least_peak_bytes: that peak.
      near_orders: a few others whose peak is slightly higher.
      bound_bytes: no order has a lower lifetime peak.
      cut_at: the operator with the largest minimum cut of its own, which proves the bound unless
        several cuts prove more together; -1 if none is above the bound given.
      steps: search steps taken. stopped_by: PROOF, STALL, STEP_LIMIT or TIME_LIMIT.
    """

    order: NDArray[np.int64]
    peak_bytes: int
    objective_bytes: int
    lifetime_order: NDArray[np.int64]
    near_orders: tuple[NDArray[np.int64], ...]
    least_peak_bytes: int
    bound_bytes: int
    cut_at: int
    steps: int
    stopped_by: StopReason


class Stop(Exception):
    """Raised to end the search when a limit is reached; `reason` says which."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclasses.dataclass(eq=False)
class StepLimits:
    """The limits of one search: seconds of `memory.clock`, and steps, which it counts."""

    seconds: float
    most_steps: int | None
    steps: int = 0
    sooner: float = math.inf
    """Another deadline, on the same clock; the search ends at the earlier of the two."""

    def __post_init__(self) -> None:
        self.deadline = clock.now() + self.seconds

    def spend(self, steps: int) -> None:
        """Adds to the steps done; raises Stop when the steps or the time are used up."""
        self.steps += steps
        if self.most_steps is not None and self.steps >= self.most_steps:
            raise Stop(StopReason.STEP_LIMIT)
        if clock.now() >= min(self.deadline, self.sooner):
            raise Stop(StopReason.TIME_LIMIT)

    def allowed(self, steps: int) -> int:
        """How many of the next `steps` steps are within the limit."""
        return steps if self.most_steps is None else min(steps, self.most_steps - self.steps)


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """A candidate order (of groups, int64 [groups]), its objective and lifetime peak in bytes."""

    groups: NDArray[np.int64]
    objective: int
    peak: int


def rank(scored: Scored) -> tuple[int, int]:
    """A sort key for candidate orders: lower objective first, then lower lifetime peak."""
    return scored.objective, scored.peak


class Run:
    """One search while it runs: the condensed graph, limits, bound and best orders so far."""

    def __init__(self, graph: GraphArrays, options: SearchOptions) -> None:
        self.limits = StepLimits(options.time_limit, options.step_limit)
        self.options = options
        self.settings = options.settings
        self.full = graph
        self.reduced: Reduced = reduce_graph(graph)
        self.first = int(self.reduced.prologue)
        self.cuts = Cuts(self.reduced.arrays, options.bound_bytes)
        self.least: Scored | None = None  # by lifetime peak
        self.near: list[tuple[int, NDArray[np.int64]]] = []  # (peak, order) met before `least`
        self.best: Scored | None = None  # by objective
        self.best_order: NDArray[np.int64] | None = None  # by the exact objective
        self.best_exact: tuple[int, int] = (0, 0)  # that objective and the lifetime peak

    def met(self) -> bool:
        """Whether the best objective is within the tolerance of the lower bound."""
        return self.best_order is not None and self.is_near(self.best_exact[0])

    def settled(self) -> bool:
        """Whether the best objective is within the tolerance of `expected`: the search may end."""
        assert self.best_order is not None
        return self.best_exact[0] <= self.expected() * (1 + self.options.tolerance)

    def expected(self) -> int:
        """Returns the least objective expected, in bytes: the least lifetime peak plus `excess`."""
        assert self.least is not None
        return self.least.peak + self.options.excess

    def is_near(self, bytes: int) -> bool:
        """Whether a peak of so many bytes is within the tolerance of the lower bound."""
        return bytes <= self.cuts.bound * (1 + self.options.tolerance)

    def is_progress(self, value: int, before: int) -> bool:
        """Whether `value` is below `before` by more than the fraction that counts as progress."""
        return value < before * (1 - self.settings.progress)

    def spend_cuts(self, cuts: int = 1) -> None:
        """Counts minimum cuts as search steps; raises Stop when a limit is reached."""
        self.limits.spend(cuts * self.settings.cut_steps)

    def peak(self, groups: NDArray[np.int64], peak: int | None = None) -> int:
        """Records an order, int64 [groups], if its lifetime peak is the least so far, and keeps the
        one before as near it. Returns the order's peak: `peak`, or else computed.
        """
        peak = peak_bytes(self.reduced.arrays, groups) if peak is None else peak
        if self.least is None or peak < self.least.peak:
            if self.least is not None:
                self.near.append((self.least.peak, self.least.groups))
                if len(self.near) > 8 * self.settings.most_near:  # orders of large graphs are long
                    self.near = sorted(self.near, key=lambda row: row[0])
                    del self.near[2 * self.settings.most_near :]
            self.least = Scored(groups, peak, peak)
        return peak

    def score(
        self,
        groups: NDArray[np.int64],
        order: NDArray[np.int64] | None = None,
        value: int | None = None,
    ) -> Scored:
        """Evaluates an order, and records it if it is the best so far; may set an earlier deadline.

        Args:
          groups: int64 [groups], the order. order: int64 [n], the same order of all operators;
            by default `groups` expanded. value: its objective, if known.
        """
        order = self.reduced.expand(groups) if order is None else order
        peak = peak_bytes(self.full, order)
        if value is None:
            value = (
                peak if self.options.objective is None else int(self.options.objective(order, None))
            )
        scored = Scored(groups, value, peak)
        if self.best is None or rank(scored) < rank(self.best):
            self.best = scored
            exact = value if self.options.exact is None else int(self.options.exact(order)), peak
            if self.best_order is None or exact < self.best_exact:
                self.best_exact, self.best_order = exact, order
                if self.options.deadline is not None:
                    self.limits.sooner = self.options.deadline(exact[0])
        return scored

    def report(self, phase: str) -> None:
        """Passes one line on how far the search has come to the callback `progress`."""
        assert self.least is not None
        if self.options.progress is None:
            return
        self.options.progress(
            f"{phase}: {self.best_exact[0] / _MIB:.1f} MB, least peak "
            f"{self.least.peak / _MIB:.1f}, bound {self.cuts.bound / _MIB:.1f}, "
            f"{self.limits.steps} steps"
        )

    def result(self, reason: StopReason) -> SearchResult:
        """Makes the SearchResult of all that was recorded; `reason`: why the search ended."""
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
            cut_at=-1 if at < 0 else int(self.reduced.keys[at]),
            steps=self.limits.steps,
            stopped_by=reason,
        )

    def _near_least(self) -> list[NDArray[np.int64]]:
        """Returns a few orders recorded whose peak is little above the least, the lowest first."""
        assert self.least is not None
        limit = self.least.peak * self.settings.near
        least = self.least.groups
        kept: list[NDArray[np.int64]] = []
        for peak, groups in sorted(self.near, key=lambda row: row[0]):
            if peak <= limit and not any(np.array_equal(groups, k) for k in (least, *kept)):
                kept.append(groups)
        return kept[: self.settings.most_near]
