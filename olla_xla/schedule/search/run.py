"""One search: its graph, its limits, its bound, and the best orders met."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.stop_reason import StopReason
from olla_xla.schedule.condense import Reduced, reduce_graph
from olla_xla.schedule.search.cuts import Cuts
from olla_xla.schedule.search.limits import SearchLimits
from olla_xla.schedule.search.options import SearchOptions
from olla_xla.schedule.search.result import SearchResult
from olla_xla.schedule.search.settings import SearchSettings
from olla_xla.schedule.search.state import Problem

_MIB = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """An order of groups, int64 [groups], with its objective and its lifetime peak in bytes."""

    groups: NDArray[np.int64]
    objective: int
    peak: int


def rank(scored: Scored) -> tuple[int, int]:
    """The key by which orders are compared: the objective, then the lifetime peak."""
    return scored.objective, scored.peak


class Run:
    """One search while it runs: the condensed graph, limits, bound and best orders so far."""

    def __init__(self, graph: GraphArrays, options: SearchOptions) -> None:
        self.limits = SearchLimits(options["time_limit"], options.get("step_limit"))
        self.settings = options.get("settings", SearchSettings())
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
        self.least: Scored | None = None  # by lifetime peak
        self.near: list[tuple[int, NDArray[np.int64]]] = []  # (peak, order) met before `least`
        self.best: Scored | None = None  # by objective
        self.best_order: NDArray[np.int64] | None = None  # by the exact objective
        self.best_exact: tuple[int, int] = (0, 0)  # that objective and the lifetime peak

    def met(self) -> bool:
        """Whether the best order is within the tolerance of the bound."""
        return self.best_order is not None and self.is_near(self.best_exact[0])

    def settled(self) -> bool:
        """Whether the best objective is within the tolerance of the least that is expected."""
        assert self.best_order is not None
        return self.best_exact[0] <= self.expected() * (1 + self.tolerance)

    def expected(self) -> int:
        """The least objective expected, in bytes: the least lifetime peak met plus `excess`."""
        assert self.least is not None
        return self.least.peak + self.excess

    def is_near(self, bytes: int) -> bool:
        """Whether a peak of so many bytes is within the tolerance of the bound."""
        return bytes <= self.cuts.bound * (1 + self.tolerance)

    def is_progress(self, value: int, before: int) -> bool:
        """Whether `value` is below `before` by more than the fraction that counts as progress."""
        return value < before * (1 - self.settings.progress)

    def spend_cuts(self, cuts: int = 1) -> None:
        """Counts minimum cuts as steps; raises Stop when a limit is reached."""
        self.limits.spend(cuts * self.settings.cut_steps)

    def peak(self, groups: NDArray[np.int64], peak: int | None = None) -> int:
        """Records an order of groups, int64 [groups]; returns its lifetime peak in bytes."""
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
        """Evaluates an order, and records it if its objective is the least so far.

        Args:
          groups: int64 [groups], the order. order: int64 [n], the same order of all operators;
            by default `groups` expanded. value: its objective, if known.
        """
        order = self.reduced.expand(groups) if order is None else order
        peak = peak_bytes(self.full, order)
        if value is None:
            value = peak if self.objective is None else int(self.objective(order, None))
        scored = Scored(groups, value, peak)
        if self.best is None or rank(scored) < rank(self.best):
            self.best = scored
            found = value if self.exact is None else int(self.exact(order)), peak
            if self.best_order is None or found < self.best_exact:
                self.best_exact, self.best_order = found, order
                if self.deadline is not None:
                    self.limits.sooner = self.deadline(found[0])
        return scored

    def report(self, phase: str) -> None:
        """Passes one line on how far the search has come to the callback `progress`."""
        assert self.least is not None
        self.progress(
            f"{phase}: {self.best_exact[0] / _MIB:.1f} MB, least peak "
            f"{self.least.peak / _MIB:.1f}, bound {self.cuts.bound / _MIB:.1f}, "
            f"{self.limits.steps} steps"
        )

    def result(self, reason: StopReason) -> SearchResult:
        """The SearchResult of all that was recorded; `reason`: why the search ended."""
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
        """Orders of little more than the least peak, met on the way to it; the lowest first."""
        assert self.least is not None
        limit = self.least.peak * self.settings.near
        least = self.least.groups
        kept: list[NDArray[np.int64]] = []
        for peak, groups in sorted(self.near, key=lambda row: row[0]):
            if peak <= limit and not any(np.array_equal(groups, k) for k in (least, *kept)):
                kept.append(groups)
        return kept[: self.settings.most_near]
