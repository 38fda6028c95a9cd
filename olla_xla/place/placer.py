"""Places blocks: heuristics first, then the exact search where they leave a gap to the bound."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hlo.late import late
from olla_xla.errors import InputError, LimitError
from olla_xla.place.dead_space import least_height
from olla_xla.place.exact.descend import EXHAUSTED, FOUND
from olla_xla.place.exact.restarts import Budget, Search, searchable
from olla_xla.place.items import Items, independent, items_of
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.place.repair import repairable, repaired
from olla_xla.place.rules import best_fit, first_fit, greedy_orders, peak_orders
from olla_xla.problem.options import SOLVERS
from olla_xla.problem.plan_parts import StopReason
from olla_xla.solvers.linear import SolverLimits, Status

if TYPE_CHECKING:
    import olla_xla.place.programs as programs
else:
    programs = late("olla_xla.place.programs")

METHODS = (
    "auto", "search", "ilp", "best_fit", "greedy_size", "greedy_span", "greedy_area", "peak_first",
)  # fmt: skip
"""Methods: all of them as needed ("auto"), the exact search alone, the paper's integer program from
what the search finds in a part of the time, or one heuristic alone."""

_PEAK_FIRST = 0.2
"""Fraction of the time limit after which no other `peak_first` order is tried."""

_MANY = 500
"""Parts of this many items are repaired; for fewer the search is better, and may prove a bound."""

_FIRST_REPAIR = 0.1
"""Fraction of the time limit in which packings are repaired before the search."""

_SEARCH = 0.3
"""Fraction of the time limit for the search; the rest is for repair."""

BEGIN = 0.2
"""Fraction of the time limit in which the packing is looked for with which a program begins."""

_FIRST_NODES = 4000
"""Nodes of each of the first tries above the target height; at it there are four times as many."""


def place(
    problem: PlacementProblem,
    *,
    method: str = "auto",
    time_limit: float = 10.0,
    node_limit: int | None = None,
    backend: str = "highs",
    gap: float = 0.0,
) -> Packing:
    """Finds offsets at the least height it can, or within the problem's capacities.
    Where a memory space has a capacity, any packing within it will do; where it has none, the
    height is minimised until it meets the bound or a limit is reached.

    Args:
      problem: the blocks. method: one of METHODS.
      time_limit: seconds of search, at most. The heuristics' time comes on top.
      node_limit: placements that the search may try, or None. Where it is reached before the time
        limit, equal problems get equal packings.
      backend: solver of method "ilp": "highs", "cpsat" or "gurobi". gap: the integer program may
        end with a height at most this fraction above its bound.

    Raises:
      InputError: no such method or backend; best fit with pinned blocks.
      LimitError: a limit is not positive.
      SolverError: the backend failed, or is not licensed for a program of this size.
      CheckError: the verifier rejected the packing (a bug).
    """
    if method not in METHODS:
        raise InputError(f"method={method!r} is unknown; use one of {', '.join(METHODS)}")
    if not time_limit > 0:
        raise LimitError(f"time_limit={time_limit} must be positive")
    if backend not in SOLVERS:
        raise InputError(f"backend={backend!r}: choose one of {', '.join(SOLVERS)}")
    limits = SolverLimits(gap=gap, apart=True)
    if node_limit is not None and node_limit < 1:
        raise LimitError(f"node_limit={node_limit} must be positive")
    budget = Budget(time_limit, node_limit)

    def place_part(
        part: Items, bound: int, target_height: int, capacity: int | None
    ) -> PartPacking:
        if method != "ilp":
            return _place_part(part, bound, target_height, capacity, method, budget)
        with budget.portion(BEGIN if programs.buildable(part, budget.seconds()) else 1.0):
            begin = _place_part(part, bound, target_height, None, "auto", budget)
        return _by_program(begin, part, target_height, capacity, budget, backend, limits)

    return place_by(problem, place_part, budget)


PlacePart = Callable[[Items, int, int, int | None], "PartPacking"]
"""Places one independent part: (items, lower bound on its height, target height, capacity or None;
all in bytes) -> its packing."""


def place_by(problem: PlacementProblem, place_part: PlacePart, budget: Budget) -> Packing:
    """Splits a problem by memory spaces and at times that no block spans, places the parts by
    `place_part`, joins them. The result has no offsets if a part gets none. `budget`: what
    `place_part` spends from; it is reported. Raises CheckError if the verifier rejects the packing.
    """
    started = time.monotonic()
    offsets = np.where(problem.fixed >= 0, problem.fixed, 0)
    bounds: dict[int, int] = {}
    worst = PartPacking(0, Status.OPTIMAL, StopReason.PROOF, "", None)
    for space in np.unique(problem.space).tolist():
        items, item = items_of(problem, space)
        result = _place_space(items, problem.capacity.get(space), place_part)
        bounds[space] = result.bound
        if _SEVERITY.index(result.status) > _SEVERITY.index(worst.status) or not worst.source:
            worst = result
        if result.offsets is not None:
            offsets[item >= 0] = result.offsets[item[item >= 0]]
    solved = worst.status in (Status.OPTIMAL, Status.FEASIBLE)
    heights = problem.check(offsets) if solved else {}
    return Packing(
        offsets=offsets if solved else None,
        heights={space: heights.get(space, 0) for space in bounds} if heights else {},
        bounds=bounds,
        status=worst.status,
        stopped_by=worst.stopped_by,
        source=worst.source,
        nodes=budget.spent,
        size=budget.size,
        seconds=time.monotonic() - started,
    )


_SEVERITY = (Status.OPTIMAL, Status.FEASIBLE, Status.UNKNOWN, Status.INFEASIBLE)


@dataclasses.dataclass(frozen=True, eq=False)
class PartPacking:
    """Offsets for one independent part of a packing problem (None where none were found), a lower
    bound on its height in bytes, and what found them and ended the search.
    """

    bound: int
    status: Status
    stopped_by: StopReason
    source: str
    offsets: NDArray[np.int64] | None


def _place_space(items: Items, capacity: int | None, place_part: PlacePart) -> PartPacking:
    """Places the items of one memory space: calls `place_part` for each set of them that shares no
    time with others, and joins the packings. There are no offsets if one set gets none, or a pin or
    lower bound rules them out. `capacity`: bytes, or None for the least height.
    """
    parts = sorted(((least_height(p), p) for p in independent(items)), key=lambda p: -p[0])
    bound = max((least for least, _ in parts), default=0)
    if _pins_clash(items) or (capacity is not None and bound > capacity):
        return PartPacking(bound, Status.INFEASIBLE, StopReason.PROOF, "bound", None)
    offsets = np.zeros(len(items), np.int64)
    sources: list[str] = []
    reasons: list[StopReason] = []
    height = 0
    for least, part in parts:
        # A part need not be lower than the highest one before it.
        target_height = max(bound, height) if capacity is None else capacity
        packing = place_part(part, least, target_height, capacity)
        bound = max(bound, packing.bound)
        if packing.offsets is None:
            return dataclasses.replace(packing, bound=bound)
        offsets[part.ids] = packing.offsets
        height = max(height, height_of(part, packing.offsets))
        sources.append(packing.source)
        reasons.append(packing.stopped_by)
    source = max(sources, key=lambda s: (s.startswith(("search", "ilp")), s), default="bound")
    if height <= bound:
        return PartPacking(bound, Status.OPTIMAL, StopReason.PROOF, source, offsets)
    met = enough(capacity)
    stopped_by = next((r for r in reasons if r is not met), met)
    return PartPacking(bound, Status.FEASIBLE, stopped_by, source, offsets)


def enough(capacity: int | None) -> StopReason:
    """Says why a search may stop at its target height: CAPACITY if a memory space has one (bytes);
    else PROOF, as no lower height is possible or of use.
    """
    return StopReason.PROOF if capacity is None else StopReason.CAPACITY


def _pins_clash(items: Items) -> bool:
    """Whether two pinned items overlap in time and addresses, so that no packing exists."""
    owner = items.owner()
    parts = np.flatnonzero(items.fixed[owner] >= 0)
    first, last = items.part_first[parts], items.part_last[parts]
    low = items.fixed[owner[parts]]
    high = low + items.part_height[parts]
    for k in range(len(parts)):
        met = (first <= last[k]) & (first[k] <= last) & (low < high[k]) & (low[k] < high)
        if met.sum() > 1:
            return True
    return False


def height_of(items: Items, offsets: NDArray[np.int64]) -> int:
    """Computes the height of a packing: bytes to its highest end; offsets: int64 [items], bytes."""
    return int(np.max(offsets + items.need, initial=0))


def _place_part(
    part: Items, bound: int, target_height: int, capacity: int | None, method: str, budget: Budget
) -> PartPacking:
    """Places items that are independent of others within `target_height` bytes, or as low as
    `method` and the budget of time and search nodes allow. `capacity`: if given, bytes within which
    any packing will do; the offsets are None if none is found there. `bound`: a lower bound on the
    height in bytes; the result has it, or a higher one.
    """
    best, source = by_rules(part, target_height, heuristics(part, method), budget)
    if best is not None and height_of(part, best) <= target_height:
        return PartPacking(bound, Status.FEASIBLE, enough(capacity), source, best)
    searching = method in ("auto", "search")
    if not (searching and searchable(part)):
        over = best is None or (capacity is not None and height_of(part, best) > capacity)
        status = Status.UNKNOWN if over else Status.FEASIBLE
        reason = StopReason.SIZE_LIMIT if searching else StopReason.HEURISTIC
        return PartPacking(bound, status, reason, source, None if over else best)
    few = len(part) < _MANY or not repairable(part)
    if method == "search" or capacity is not None or best is None or few:
        return _searched(Search(part), bound, target_height, capacity, best, source, budget)
    best, source = repair(part, target_height, best, source, budget, _FIRST_REPAIR, 0)
    if height_of(part, best) <= target_height:
        return PartPacking(bound, Status.FEASIBLE, enough(capacity), source, best)
    with budget.portion(_SEARCH):
        searched = _searched(Search(part), bound, target_height, None, best, source, budget)
    assert searched.offsets is not None
    target_height = max(target_height, searched.bound)
    best, source = searched.offsets, searched.source
    seed = 1
    while height_of(part, best) > target_height and budget.left() > 0:
        best, source = repair(part, target_height, best, source, budget, 1 / 3, seed)
        seed += 1
    met = height_of(part, best) <= target_height
    stopped_by = enough(capacity) if met else budget.stopped_by
    return PartPacking(searched.bound, Status.FEASIBLE, stopped_by, source, best)


def _by_program(
    begin: PartPacking,
    part: Items,
    target_height: int,
    capacity: int | None,
    budget: Budget,
    backend: str,
    limits: SolverLimits,
) -> PartPacking:
    """Lowers a packing (`begin`) of `part` by an integer program, to the target height in bytes or
    the least that a solver finds in the time left; `begin` stays where the program is too large.
    With a `capacity` (bytes), the result has no offsets where they exceed it.
    """
    assert begin.offsets is not None
    best, bound, source, reason = begin.offsets, begin.bound, begin.source, begin.stopped_by
    least, seconds = max(target_height, bound), budget.seconds()
    if height_of(part, best) > least:
        reason = StopReason.SIZE_LIMIT
        if programs.buildable(part, seconds):
            limits = dataclasses.replace(limits, time_limit=max(seconds, 0.01))
            lower, proven, size = programs.lowered(part, best, least, limits, backend)
            budget.size = budget.size[0] + size[0], budget.size[1] + size[1]
            if height_of(part, lower) < height_of(part, best):
                best, source = lower, f"ilp, {backend}"
            bound = max(bound, proven)
            done = height_of(part, best) <= max((1 + limits.gap) * bound, least)
            reason = StopReason.PROOF if done else StopReason.TIME_LIMIT
    if capacity is None:
        return PartPacking(bound, Status.FEASIBLE, reason, source, best)
    if bound > capacity:
        return PartPacking(bound, Status.INFEASIBLE, StopReason.PROOF, source, None)
    if height_of(part, best) > capacity:
        return PartPacking(bound, Status.UNKNOWN, reason, source, None)
    return PartPacking(bound, Status.FEASIBLE, StopReason.CAPACITY, source, best)


def repair(
    part: Items,
    target_height: int,
    best: NDArray[np.int64],
    source: str,
    budget: Budget,
    portion: float,
    seed: int,
) -> tuple[NDArray[np.int64], str]:
    """Looks for a packing lower than `best` by first fit and local changes, in a fraction `portion`
    of the budget: (offsets, "repair") if there is one, else (`best`, `source`: what made it).
    """
    with budget.portion(portion):
        repacked = repaired(part, target_height, best, budget, seed)
    if height_of(part, repacked) < height_of(part, best):
        return repacked, "repair"
    return best, source


Rule = Callable[[], NDArray[np.int64]]


def by_rules(
    part: Items, target_height: int, rules: Sequence[tuple[str, Rule]], budget: Budget
) -> tuple[NDArray[np.int64] | None, str]:
    """Places items by rule after rule until a packing is at most `target_height` bytes high, or it
    is late for another `peak_first` rule: (offsets of the lowest packing, its rule's name); None
    and "" without rules. `budget`: its clock only.
    """
    best: NDArray[np.int64] | None = None
    source = ""
    for name, rule in rules:
        late = budget.seconds() < (1 - _PEAK_FIRST) * budget.limit
        if best is not None and name == "peak_first" and late:
            break
        offsets = rule()
        if best is None or height_of(part, offsets) < height_of(part, best):
            best, source = offsets, name
        if height_of(part, best) <= target_height:
            break
    return best, source


def heuristics(part: Items, method: str) -> Sequence[tuple[str, Rule]]:
    """Lists placement heuristics as (name, function that returns offsets of `part`): those named
    `method`; all that apply if that is "auto"; none for a method that is no heuristic.
    """
    orders = greedy_orders(part)
    named: list[tuple[str, Rule]] = [
        (name, lambda order=order: first_fit(part, order)) for name, order in orders.items()
    ]
    if not (part.fixed >= 0).any() or method == "best_fit":
        named.append(("best_fit", lambda: best_fit(part)))
    named += [("peak_first", lambda order=o: first_fit(part, order)) for o in peak_orders(part)]
    return [(name, call) for name, call in named if method in ("auto", name)]


def _searched(
    search: Search,
    bound: int,
    target_height: int,
    capacity: int | None,
    best: NDArray[np.int64] | None,
    source: str,
    budget: Budget,
) -> PartPacking:
    """Searches for a packing within the `capacity` (bytes); without one, at the target height, then
    for any below `best`, the lowest known. Above the target height it bisects between the largest
    height that failed and the best packing, until that interval is narrow; then it starts again
    with twice the nodes (placements) for each try. A height that is refuted raises `bound`, the
    lower one. `source`: what found `best`.
    """
    part = search.items
    if capacity is not None:
        outcome, offsets = search.within(capacity, budget)
        if outcome == FOUND:
            return PartPacking(bound, Status.FEASIBLE, enough(capacity), "search", offsets)
        if outcome == EXHAUSTED:
            return PartPacking(capacity + 1, Status.INFEASIBLE, StopReason.PROOF, "search", None)
        return PartPacking(bound, Status.UNKNOWN, budget.stopped_by, "search", None)
    ceiling = height_of(part, first_fit(part, greedy_orders(part)["greedy_size"]))
    quota, tried = _FIRST_NODES, target_height - 1
    while (best is None or height_of(part, best) > target_height) and budget.left() > 0:
        top = height_of(part, best) if best is not None else ceiling + part.grain
        narrow = max(part.grain, top // 512)
        if tried < target_height:
            aim, most = target_height, 4 * quota
        elif top - tried > narrow:
            aim, most = (tried + top) // 2, quota
        else:
            quota, tried = 2 * quota, target_height - 1
            continue
        outcome, offsets = search.within(aim, budget, most)
        if outcome == FOUND:
            best, source = offsets, "search"
            continue
        tried = max(tried, aim)
        if outcome == EXHAUSTED:
            # No other height is possible: offsets are multiples of the grain.
            ends = part.need + np.maximum(part.fixed, 0)
            bound = max(bound, aim + 1 + int(np.min((ends - aim - 1) % part.grain)))
            target_height = max(target_height, bound)
            if top - target_height > narrow:
                tried = target_height  # halve what is left, rather than climb
    if best is None:
        return PartPacking(bound, Status.UNKNOWN, budget.stopped_by, "search", None)
    met = height_of(part, best) <= target_height
    return PartPacking(
        bound, Status.FEASIBLE, enough(capacity) if met else budget.stopped_by, source, best
    )
