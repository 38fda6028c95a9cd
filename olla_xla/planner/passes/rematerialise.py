"""Computes instructions again, for a memory budget or within an allowance of time.

The choices are those of `remat.front`. Each that comes into question is made cheaper by an integer
program where that can be solved in time, written into the module, ordered anew and judged by the
predicted total.
"""

from __future__ import annotations

import dataclasses
import math
import time

from hlo.module import Module
from hlo.rewrite.clones import Clone
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import BudgetError
from olla_xla.memory.kernels import inherited
from olla_xla.planner.state import ModuleState
from olla_xla.problem.plan import Plan
from olla_xla.remat.front import Front, fronts
from olla_xla.remat.greedy import Point

__all__ = ["run"]

_FRONT_SHARE = 0.5
"""Part of the time that choices may take to be found."""

_TRIES = 5
"""Choices that are ordered anew towards a budget."""

_LOWEST = 3
"""Choices with the lowest peaks of which the least total is taken."""

_EXACT_SHARE = 0.5
"""Part of a try's time that the integer program may take."""


def run(state: ModuleState) -> ModuleState:
    """The state with the cheapest clones that meet the budget, else with the least total.

    Itself where none is better within the allowance, or the budget is met.

    Raises:
      BudgetError: no choice that was found meets the budget.
      CheckError: the referee rejected the clones (a bug).
    """
    base, budget = state.ordered, state.request.options.budget_bytes
    if budget is not None and base.predicted_bytes <= budget:
        return state
    allowance = state.allowance_left
    seconds = state.seconds_left
    deadline = time.monotonic() + seconds
    found = fronts(state.module, base, state.request.cost, _FRONT_SHARE * seconds)
    if budget is None:
        front = min(found, key=lambda f: f.within(allowance or 0.0)[0].peak)
        tried = _Tried(state, front, deadline).least_total(allowance or 0.0)
    else:
        front = min(
            found, key=lambda f: min((p.seconds for p in f.below(budget)), default=math.inf)
        )
        most = math.inf if allowance is None else allowance
        tried = _Tried(state, front, deadline).cheapest(budget, most)
    if tried is None:
        return state
    check_rewrite(front.module.data, tried.module.data, base.target)
    check_executable(tried.module.data, base.target)
    edits = dataclasses.replace(
        state.edits,
        clones=tried.clones,
        least_added_seconds=tried.bound,
        added_seconds=state.edits.added_seconds + tried.seconds,
        added_moved_bytes=state.edits.added_moved_bytes + tried.moved,
        sources=(*state.edits.sources, "remat"),
    )
    plan = tried.plan
    return dataclasses.replace(
        state, module=tried.module, kernels=plan.kernels, edits=edits, plan=plan
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Choice:
    """Clones, written and ordered.

    Attributes:
      plan: of the module with the clones. module: that one. clones: in execution order.
      seconds: predicted time added. bound: the least that any choice takes for the same peak, of
        those that the integer program knows; 0 where unknown.
      moved: bytes moved beyond the module's own.
    """

    plan: Plan
    module: Module
    clones: tuple[Clone, ...]
    seconds: float
    bound: float
    moved: int


class _Tried:
    """Tries choices of a front."""

    def __init__(self, state: ModuleState, front: Front, deadline: float) -> None:
        self.state = state
        self.front = front
        self.deadline = deadline
        self.least = state.ordered.predicted_bytes

    def _with(self, point: Point, target: int, tries_left: int) -> _Choice | None:
        """A choice for a target, written and ordered; None where no order leaves its kernels."""
        left = max(self.deadline - time.monotonic(), 0.1) / tries_left
        begun = time.monotonic()
        point, bound = self.front.refined(point, target, _EXACT_SHARE * left)
        left = max(left - (time.monotonic() - begun), 0.05)
        module, made = self.front.write(point)
        kernels = inherited(self.state.ordered.kernels, ((c.name, c.original) for c in made))
        plan = self.state.ordered_anew(module, kernels, left)
        if plan is None:
            return None
        self.least = min(self.least, plan.predicted_bytes)
        return _Choice(plan, module, made, point.seconds, bound, point.moved)

    def _late(self) -> bool:
        return time.monotonic() >= self.deadline

    def cheapest(self, budget: int, allowance: float) -> _Choice:
        """The cheapest choice whose total fits. Raises BudgetError."""
        points = [p for p in self.front.below(budget) if p.seconds <= allowance]
        limit = budget
        for k in range(_TRIES):
            points = [p for p in points if p.peak <= limit]
            if not points:
                break
            target = self.front.next_target(points[0].peak)
            found = self._with(points[0], target, max(_TRIES - k - 1, 2))
            if found is not None and found.plan.predicted_bytes <= budget:
                return found
            # What placing costs this choice, it is likely to cost the next one too.
            over = 0 if found is None else found.plan.predicted_bytes - budget
            limit = min(limit - over * (k + 1) // 2, points[0].peak - 1)
        lowest = self.front.least()
        if lowest.seconds <= allowance and lowest.peak <= budget:
            found = self._with(lowest, lowest.peak, 1)
            if found is not None and found.plan.predicted_bytes <= budget:
                return found
        elif lowest.seconds <= allowance:
            self._with(lowest, lowest.peak, 1)
        reason = "" if math.isinf(allowance) else "within max_overhead"
        raise BudgetError(budget, self.least, reason)

    def least_total(self, allowance: float) -> _Choice | None:
        """The least total within the allowance; None if that is the state's."""
        best: _Choice | None = None
        total = self.state.least_worth
        points = self.front.within(allowance)[:_LOWEST]
        for k, point in enumerate(points):
            if not len(point.evictions) or (best is not None and self._late()):
                continue
            found = self._with(point, point.peak, len(points) - k)
            if found is not None and found.plan.predicted_bytes < total:
                best, total = found, found.plan.predicted_bytes
        return best
