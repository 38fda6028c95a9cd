"""Which choice of stacks to do without is free, fits a budget, or an allowance of time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from hlo.module import HloError
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import CheckError, PlanMismatchError
from olla_xla.problem import refusals
from olla_xla.problem.plan import Plan
from olla_xla.remat.loops.ladder import Ladder, Rung

__all__ = ["Climb", "climb", "free"]

_HOPE = 1.25
"""Times the budget that a total in XLA's order may take for another order to be looked for."""

_TRIES = 3  # choices that are ordered anew
_SHARE = 0.5  # part of the time for them


@dataclasses.dataclass(frozen=True, eq=False)
class Climb:
    """A choice, and the plan of the module that has it."""

    rung: Rung
    plan: Plan


def free(steps: Ladder) -> Rung | None:
    """Does without stacks at no cost: the choice of least predicted time, if it takes less memory.

    Such are stacks that another one holds, those that nothing reads, and those whose slices take
    longer to write and to read than to compute again.

    Returns None where there is nothing to do without, or it gains nothing.
    """
    written = [rung for k in range(steps.free) if (rung := _written(steps, k)) is not None]
    for rung in sorted((r for r in written if r.seconds <= 0), key=lambda r: r.seconds):
        if rung.total < steps.total and _is_right(steps, rung):
            return rung
    return None


def climb(
    steps: Ladder,
    base: Plan,
    *,
    budget: int | None,
    allowance: float | None,
    seconds: float,
    plan: Callable[[Rung, float], Plan | None],
) -> Climb | None:
    """The cheapest choice that meets a budget, else the one of least total within an allowance.

    Args:
      steps: choices for a module. base: its plan so far.
      budget: bytes, or None. allowance: seconds that may be added, or None for any.
      seconds: how long it may take.
      plan: finds an order for the module of a choice within so many seconds; None where there is
        none that leaves its kernels as they are.

    Returns:
      The choice, or None where none is better than `base` within the allowance.
    """
    deadline = time.monotonic() + seconds * _SHARE
    best: Climb | None = None
    tried = 0
    for rung, lowest in _to_try(steps, budget, allowance):
        if not _is_right(steps, rung):
            continue
        left = max(deadline - time.monotonic(), 0.1) / max(_TRIES - tried, 1)
        found = plan(rung, left)
        if found is None:
            continue
        tried += 1
        least = base.predicted_bytes if best is None else best.plan.predicted_bytes
        if found.predicted_bytes < least:
            best = Climb(rung, found)
        late = best is not None and time.monotonic() >= deadline
        if lowest or late or found.predicted_bytes <= (budget or 0):
            break
    return best


def _to_try(
    steps: Ladder, budget: int | None, allowance: float | None
) -> Iterator[tuple[Rung, bool]]:
    """The choices that promise most: towards a budget the cheapest first, then the lowest.

    Where only time limits them, the one that the programme finds comes first. Each with whether it
    is the lowest that is left.
    """

    def allowed(k: int) -> Rung | None:
        rung = _written(steps, k)
        if rung is None or (allowance is not None and rung.seconds > allowance):
            return None
        return rung

    hopeful: list[Rung] = []
    if budget is None and allowance is not None:
        if (rung := _within(steps, allowance)) is not None:
            hopeful.append(rung)
            yield rung, False
    last = next((k for k in reversed(range(len(steps))) if allowed(k) is not None), -1)
    if budget is not None:
        for k in range(last):
            rung = allowed(k)
            if rung is not None and rung.total <= _HOPE * budget and len(hopeful) < _TRIES - 1:
                hopeful.append(rung)
        yield from ((rung, False) for rung in hopeful)
    for k in _lowest_first(steps, last):  # the next one only where the referee refuses the last
        rung = allowed(k)
        if rung is not None and all(rung.records != other.records for other in hopeful):
            yield rung, True


def _lowest_first(steps: Ladder, last: int) -> list[int]:
    """The choices up to the last one, downwards, by their totals where turns run again."""
    found = list(range(last + 1))
    tail = [k for k in found if k >= steps.thin - 1 and _written(steps, k) is not None]
    if last >= steps.thin:
        tail.sort(key=lambda k: steps.rung(k).total, reverse=True)
        found = [*(k for k in found if k < steps.thin - 1), *tail]
    return found[::-1]


def _written(steps: Ladder, k: int) -> Rung | None:
    """A choice, if the module can be written with it."""
    return _if_possible(lambda: steps.rung(k))


def _within(steps: Ladder, allowance: float) -> Rung | None:
    return _if_possible(lambda: steps.within(allowance))


def _if_possible(write: Callable[[], Rung | None]) -> Rung | None:
    try:
        return write()
    except (HloError, PlanMismatchError) as error:
        refusals.note("a choice for loops that cannot be written", error)
        return None


def _is_right(steps: Ladder, rung: Rung) -> bool:
    """Whether the referee accepts a choice."""
    try:
        check_rewrite(steps.module, rung.data, steps.target, loops=True)
        check_executable(rung.data, steps.target)
    except CheckError as error:
        refusals.note("a choice for loops", error)
        return False
    return True
