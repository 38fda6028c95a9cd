"""Places blocks by integer programs that begin at the best packing of the greedy rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.place_ilp.located import Programs, located
from olla_xla.place.exact.restarts import Budget
from olla_xla.place.items import Items
from olla_xla.place.placer import (
    PartPacking,
    by_rules,
    enough,
    height_of,
    heuristics,
    place_by,
    repair,
)
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.place.repair import repairable
from olla_xla.place.rules import first_fit, fullest, ordered
from olla_xla.problem.plan_parts import StopReason
from olla_xla.solvers.linear import SolverLimits, Status

__all__ = ["place_by_programs", "random_peak_orders"]

_NOISE = (0.0, 0.1, 0.3, 1.0)
"""Standard deviations, of the logarithm of a rank or key, from which random orders draw."""

_POWERS = (0.0, 0.3, 0.5, 0.7, 1.0)
"""Of the time an item is live, by which its size is multiplied for random orders."""

_START_RANDOM, _START_REPAIR = 0.1, 0.15
"""Parts of the time in which the packing with which integer programs begin is looked for by random
orders, and repaired."""


def place_by_programs(
    problem: PlacementProblem, *, programs: Programs | None = None, time_limit: float = 10.0
) -> Packing:
    """Offsets of least height, or within the problem's capacities, by integer programs.

    Args:
      problem: the blocks. programs: the solver and the form; HiGHS by default.
      time_limit: seconds, at most.

    Raises:
      SolverError: the solver failed, or is not licensed for programs of this size.
      CheckError: the verifier rejected the packing (a bug).
    """
    budget, how = Budget(time_limit), programs or Programs()

    def place_part(
        part: Items, bound: int, target_height: int, capacity: int | None
    ) -> PartPacking:
        rules = heuristics(part, "auto")
        best, source = by_rules(part, target_height, rules if how.start else rules[:1], budget)
        assert best is not None
        if how.start:
            best, source = _started(part, target_height, best, source, budget)
        if height_of(part, best) <= target_height:
            return PartPacking(bound, Status.FEASIBLE, enough(capacity), source, best)
        return _by_programs(part, bound, target_height, capacity, best, source, budget, how)

    return place_by(problem, place_part, budget)


def random_peak_orders(items: Items, seed: int) -> Iterator[np.ndarray]:
    """As `peak_orders` with noise on all keys, without end; equal seeds give equal orders."""
    if not len(items):
        return
    random = np.random.default_rng(seed)
    there, pinned, stacks = fullest(items)
    ranks = [np.argsort(np.argsort(stack, kind="stable"), kind="stable") + 1 for stack in stacks]

    def noise() -> np.ndarray:
        return np.exp(random.choice(_NOISE) * random.standard_normal(len(items)))

    while True:
        stack = ranks[random.integers(len(ranks))] * noise()
        other = -items.size * items.span ** random.choice(_POWERS) * noise()
        yield ordered(there, pinned, stack, other)


def _started(
    part: Items, target_height: int, best: np.ndarray, source: str, budget: Budget
) -> tuple[np.ndarray, str]:
    """The packing with which integer programs begin, by random orders and repair."""
    with budget.portion(_START_RANDOM):
        for order in random_peak_orders(part, 0):
            if height_of(part, best) <= target_height or budget.left() <= 0:
                break
            found = first_fit(part, order)
            budget.charge(len(part), 0.0)
            if height_of(part, found) < height_of(part, best):
                best, source = found, "peak_first"
    if height_of(part, best) > target_height and repairable(part):
        return repair(part, target_height, best, source, budget, _START_REPAIR, 0)
    return best, source


def _by_programs(
    part: Items,
    bound: int,
    target_height: int,
    capacity: int | None,
    best: np.ndarray,
    source: str,
    budget: Budget,
    programs: Programs,
) -> PartPacking:
    """Lowers the best packing of the heuristics by integer programs."""
    limits = SolverLimits(time_limit=max(budget.seconds(), 0.01), watch=programs.watch)
    before = height_of(part, best)
    found = located(
        part, best, bound=bound, target_height=target_height, limits=limits, programs=programs
    )
    height = height_of(part, found.offsets)
    source = f"ilp, {found.by}" if height < before else source
    if capacity is not None and found.bound > capacity:
        return PartPacking(found.bound, Status.INFEASIBLE, StopReason.PROOF, "ilp", None)
    if capacity is not None and height > capacity:
        return PartPacking(bound, Status.UNKNOWN, StopReason.TIME_LIMIT, "ilp", None)
    if height <= max(target_height, found.bound):
        stopped_by = enough(capacity) if height <= target_height else StopReason.PROOF
    else:
        stopped_by = StopReason.TIME_LIMIT if found.variables > 0 else StopReason.SIZE_LIMIT
    return PartPacking(found.bound, Status.FEASIBLE, stopped_by, source, found.offsets)
