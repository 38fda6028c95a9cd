"""Recomputes values by cloned instructions, for a memory budget or within an allowance of time.

The choices are those of `remat.front`. Each one that is tried is made cheaper by an integer program
where that can be solved in time, written into the module, ordered anew and judged by the predicted
total.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeGuard

from hlo.module import Module
from hlo.rewrite.clones import Clone
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import BudgetError
from olla_xla.memory import clock
from olla_xla.memory.kernels import inherited
from olla_xla.planner.state import ModuleState
from olla_xla.problem import refusals
from olla_xla.problem.plan import Plan
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.front import Front, fronts
from olla_xla.remat.greedy import Point

_FRONT_SHARE = 0.5  # part of the time that choices may take to be found
_TRIES = 5  # choices that are ordered anew towards a budget
_LOWEST = 3  # choices with the lowest peaks of which the least total is taken
_EXACT_SHARE = 0.5  # part of a try's time that the integer program may take

_CHEAPER = 0.98
"""Where choices would take less than this part of the allowance, higher prices are tried."""

_OVERPRICED = 1.25
"""A choice is tried if its price is at most this many times the allowance: it may take less."""

_LEAST_SECONDS = 1e-12  # least price to divide by

_PRICES = 4
"""Most limits on the price that are tried, each corrected by what the choices so far took."""

_PLACES = 3
"""Computations at most in which instructions are computed again: the entry, and loops' bodies."""


def run(state: ModuleState) -> ModuleState:
    """The planner's pass that recomputes values by cloned instructions, to meet the memory budget
    or, without one, to save memory. Returns `state` where no choice of them is better within the
    time allowance, or the budget is met already. Raises BudgetError if no choice that was found
    meets the budget, CheckError if the independent check rejected the clones (a bug).
    """
    budget = state.request.options.budget_bytes
    state.request.tell("choosing operators to recompute")
    if budget is None:
        return _lowered(state, frozenset())
    if state.ordered.predicted_bytes <= budget:
        return state
    try:
        return _cheapest(state, budget)
    except BudgetError:
        # Loops' bodies first: after that the entry computation may hold the peak.
        lowered = _lowered(state, frozenset({state.module.entry.name}))
        if lowered is state:
            raise
    if lowered.ordered.predicted_bytes <= budget:
        return lowered
    return _cheapest(lowered, budget)


def _lowered(state: ModuleState, done: frozenset[str]) -> ModuleState:
    """Computes values again where that lowers the total most within the time allowance, in one
    computation after the other: the entry and the loops' bodies that run at the peak, but none in
    `done` (names). Returns `state` where none gains.
    """
    deadline = clock.now() + state.seconds_left
    names = {c.name for c in state.module.control_computations}
    for _ in range(_PLACES):
        if names <= done:
            break
        left = max(deadline - clock.now(), 0.1)
        best: tuple[_Choice, Front] | None = None
        most, places = state.allowance_left, _places(state, left, done)
        for k, place in enumerate(places):
            until = clock.now() + (deadline - clock.now()) / (len(places) - k)
            front = min(place, key=lambda f: f.outside + f.within(most)[0].peak)
            choice = _Tried(state, front, until).least_total(most)
            if choice is not None and (
                best is None or choice.plan.predicted_bytes < best[0].plan.predicted_bytes
            ):
                best = choice, front
        if best is None:
            break
        state = _with(state, *best)
        done = done | {best[1].name}
        if clock.now() >= deadline:
            break
    return state


def _cheapest(state: ModuleState, budget: int) -> ModuleState:
    """Returns a state with clones (instructions computed again) of least time that meet `budget`
    bytes, all in one computation. Raises BudgetError if none do.
    """
    seconds = state.seconds_left
    deadline = clock.now() + seconds
    most = state.allowance_left
    candidates: list[tuple[_Choice, Front]] = []
    refused: BudgetError | None = None
    for place in _places(state, seconds, frozenset()):
        front = min(place, key=lambda f: _least_seconds(f, budget))
        try:
            candidates.append((_Tried(state, front, deadline).cheapest(budget, most), front))
        except BudgetError as error:
            if refused is None or error.least_bytes < refused.least_bytes:
                refused = error
    if not candidates:
        assert refused is not None
        raise refused
    return _with(state, *min(candidates, key=lambda f: f[0].seconds))


def _least_seconds(front: Front, budget: int) -> float:
    """Least seconds added by a front's choices whose peak meets a budget in bytes; inf if none."""
    return min((p.seconds for p in front.below(budget - front.outside)), default=math.inf)


def _places(state: ModuleState, seconds: float, done: frozenset[str]) -> list[list[Front]]:
    """Fronts (choices of what to compute again in a computation and order), a list for each
    computation, the entry first, with one front for each order to try. Fronts in which arguments
    keep their memory are in lists of their own: their peaks are higher.

    Args:
      state: an ordered one. seconds: for all of them together, of which searches take a part.
      done: names of computations that are left out.
    """
    all_fronts = fronts(state.module, state.ordered, state.request.cost, _FRONT_SHARE * seconds)
    places: dict[tuple[str, bool], list[Front]] = {}
    for front in all_fronts:
        for one in (front, *(() if front.arguments_stay else front.bodies())):
            if one.name not in done:
                places.setdefault((one.name, one.arguments_stay), []).append(one)
    return list(places.values())


def _with(state: ModuleState, choice: _Choice, front: Front) -> ModuleState:
    """Returns the state with a choice of clones from `front` in it. Raises CheckError if the
    independent check, that results are the same, rejects it.
    """
    target = state.request.target
    check_rewrite(front.module.data, choice.module.data, target)
    check_executable(choice.module.data, target)
    refusals.accepted()
    before = state.edits
    edits = dataclasses.replace(
        before,
        clones=(*before.clones, *choice.clones),
        least_added_seconds=before.least_added_seconds + choice.bound,
        added_seconds=before.added_seconds + choice.seconds,
        exposed_seconds=before.exposed_seconds + choice.exposed,
        added_moved_bytes=before.added_moved_bytes + choice.moved,
        sources=before.sources if "remat" in before.sources else (*before.sources, "remat"),
    )
    plan, met = choice.plan, list(state.met)
    over = plan.predicted_bytes - choice.peak  # as much as its peak, others' totals are taken to be
    met += [(before.added_seconds + p.seconds, p.peak + over) for p in front.points]
    return dataclasses.replace(
        state, module=choice.module, kernels=plan.kernels, edits=edits, plan=plan, met=tuple(met)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Choice:
    """A choice of instructions to compute again, written into the module, which was then ordered.

    Attributes:
      plan: of the module with the clones. module: that one. clones: in execution order.
      seconds: predicted time added. exposed: part of it, of transfers that overlap with less.
      bound: the least added seconds for the same peak that the integer program proves; 0: unknown.
      moved: bytes moved beyond the module's own. peak: of the front's computation, in its order.
    """

    plan: Plan
    module: Module
    clones: tuple[Clone, ...]
    seconds: float
    exposed: float
    bound: float
    moved: int
    peak: int


class _Tried:
    """Tries choices of what to compute again (points of a front): writes the clones, orders the
    module anew, compares predicted totals and times; all of it until `deadline` (clock time).
    """

    def __init__(self, state: ModuleState, front: Front, deadline: float) -> None:
        self.state = state
        self.front = front
        self.deadline = deadline
        self.least = state.ordered.predicted_bytes

    def _with(self, point: Point, target: int, tries_left: int) -> _Choice | None:
        """Makes a point (tensors to recompute) cheaper for a target peak in bytes, writes its
        clones and orders the module anew; None if in no order kernels' arrays share memory as they
        must. `tries_left`: the time left is shared among so many calls.
        """
        left = max(self.deadline - clock.now(), 0.1) / tries_left
        begun = clock.now()
        point, bound = self.front.refined(point, target, _EXACT_SHARE * left)
        left = max(left - (clock.now() - begun), 0.05)
        module, made = self.front.write(point)
        kernels = inherited(self.state.ordered.kernels, ((c.name, c.original) for c in made))
        plan = self.state.ordered_anew(module, kernels, left)
        if plan is None:
            return None
        self.least = min(self.least, plan.predicted_bytes)
        seconds = self._longer(module, plan)
        exposed = max(seconds - point.seconds, 0.0)
        return _Choice(
            plan, module, made, seconds, exposed, min(bound, seconds), point.moved, point.peak
        )

    def _longer(self, module: Module, plan: Plan) -> float:
        """Predicted seconds by which a run of `module`, with clones, takes longer than the state's.
        That may be less than the choice's predicted price, since clones have only the results that
        are read, or more, where transfers were moved and overlap with less work.
        """
        longer = run_seconds(module, self.state.request.cost, plan.order)
        longer -= self.state.run_seconds
        return max(longer, 0.0)

    def _late(self) -> bool:
        return clock.now() >= self.deadline

    @staticmethod
    def _fits(found: _Choice | None, budget: int, allowance: float) -> TypeGuard[_Choice]:
        if found is None:
            return False
        return found.plan.predicted_bytes <= budget and found.seconds <= allowance

    def cheapest(self, budget: int, allowance: float) -> _Choice:
        """Tries a few of the front's choices, those of least seconds first; returns the first whose
        total meets `budget` bytes within `allowance` seconds. Raises BudgetError if none does.
        """
        here = budget - self.front.outside
        points = [p for p in self.front.below(here) if p.seconds <= _OVERPRICED * allowance]
        limit = here
        for k in range(_TRIES):
            points = [p for p in points if p.peak <= limit]
            if not points:
                break
            target = self.front.next_target(points[0].peak)
            choice = self._with(points[0], target, max(_TRIES - k - 1, 2))
            if self._fits(choice, budget, allowance):
                return choice
            # Bytes that placement adds to this choice, it is likely to add to the next one too.
            over = 0 if choice is None else choice.plan.predicted_bytes - budget
            limit = min(limit - over * (k + 1) // 2, points[0].peak - 1)
        lowest = self.front.least()
        if lowest.seconds <= _OVERPRICED * allowance:
            choice = self._with(lowest, lowest.peak, 1)
            if lowest.peak <= here and self._fits(choice, budget, allowance):
                return choice
        reason = "" if math.isinf(allowance) else "within max_overhead"
        raise BudgetError(budget, self.least, reason)

    def least_total(self, allowance: float) -> _Choice | None:
        """Tries a few of the front's choices; returns that of least total which adds at most
        `allowance` seconds, None if none gains enough.
        """
        best: _Choice | None = None
        total, price = self.state.least_worth, allowance
        tried = {b""}  # no evictions
        for _ in range(_PRICES):
            points = self.front.within(price)[:_LOWEST]
            part = 1.0
            for k, point in enumerate(points):
                key = point.evictions.tobytes()
                if key in tried or (best is not None and self._late()):
                    continue
                tried.add(key)
                choice = self._with(point, point.peak, len(points) - k)
                if choice is None:
                    continue
                part = max(choice.seconds / max(point.seconds, _LEAST_SECONDS), 1 / _OVERPRICED)
                fits = choice.seconds <= allowance
                if fits and choice.plan.predicted_bytes < total:
                    best, total = choice, choice.plan.predicted_bytes
                if not fits or price * part < _CHEAPER * allowance:
                    break
            else:
                break
            if self._late():
                break
            price = allowance / part
        return best
