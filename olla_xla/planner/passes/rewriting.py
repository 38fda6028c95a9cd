"""The passes that change a module's instructions, in their order; loaded where they have work."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from olla_xla.planner.passes import relax_overlap, rematerialise, scan_residuals, sink_moves
from olla_xla.planner.state import ModuleState

__all__ = ["free_edits", "recomputed"]


def recomputed(state: ModuleState) -> ModuleState:
    """The state with what is computed again towards a memory budget, or in an allowance of time.

    Raises:
      BudgetError: no choice that was found meets the budget.
      CheckError: the referee rejected what was found (a bug).
    """
    state = scan_residuals.run(state)
    ways = [state] if state.other is None else [state, state.other]
    found = []
    for k, way in enumerate(ways):
        limit = state.request.elapsed + state.seconds_left / (len(ways) - k)
        way = dataclasses.replace(way, limit=limit, other=None)
        found.append(relax_overlap.run(rematerialise.run(way)))
    best = min(found, key=lambda way: way.ordered.predicted_bytes)
    return dataclasses.replace(best, limit=state.limit)


def free_edits(start: ModuleState) -> Iterator[ModuleState]:
    """The module with edits that cost nothing, from most of them to none."""
    sunk = sink_moves.run(start)
    yield from scan_residuals.before_order(sunk)
    if sunk is not start:
        yield from scan_residuals.before_order(start)
