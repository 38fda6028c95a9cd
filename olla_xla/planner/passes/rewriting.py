"""The passes that change a module's instructions, in their order; loaded where they have work."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from olla_xla.memory.module_state import facts_of
from olla_xla.planner.knee import knee
from olla_xla.planner.passes import relax_overlap, rematerialise, scan_residuals
from olla_xla.planner.state import ModuleState
from olla_xla.problem.options import KNEE
from olla_xla.remat.loops.moves import spared

_NEARLY = 1.02
"""Times the knee's seconds and bytes that a plan may take which is to be at the knee."""

_SPARING = 0.2
"""Part of the time that recomputation may take which joined arrays may cost."""


def recomputed(state: ModuleState) -> ModuleState:
    """A new state with values recomputed to meet a memory budget, or within a time allowance.

    For max_overhead="knee" it searches twice: to find the knee, and within its time.

    Raises:
      BudgetError: no choice that was found meets the budget.
      CheckError: the referee rejected what was found (a bug).
    """
    request, limit = state.request, state.limit
    if request.options.max_overhead != KNEE:
        return _recomputed(state)
    assert limit is not None
    if request.options.time_limit is not None:  # of both together
        limit = (request.elapsed + limit) / 2
    seconds = limit - request.elapsed
    found = _recomputed(dataclasses.replace(state, limit=limit))
    added = found.edits.added_seconds
    most, size = knee((*found.met, (added, found.ordered.predicted_bytes)), state.run_seconds)
    if added <= most:
        return found
    limit = request.elapsed + seconds
    within = dataclasses.replace(state, allowance=_NEARLY * most, met=found.met, limit=limit)
    again = _recomputed(within)
    return again if again.ordered.predicted_bytes <= _NEARLY * size else found


def _recomputed(state: ModuleState) -> ModuleState:
    """The state with what one search finds. Raises as `recomputed`."""
    state = scan_residuals.run(state)
    ways = [state] if state.other is None else [state, state.other]
    found = []
    for k, way in enumerate(ways):
        limit = state.request.elapsed + state.seconds_left / (len(ways) - k)
        way = dataclasses.replace(way, limit=limit, other=None)
        found.append(relax_overlap.run(rematerialise.run(way)))
    best = min(found, key=lambda way: way.ordered.predicted_bytes)
    return dataclasses.replace(best, limit=state.limit)


def free_edits(start: ModuleState, *, joins: bool) -> Iterator[ModuleState]:
    """Yields states with edits that cost no time: first with all of them, last without any.

    An array that was joined with another is no residual any more, which may be dropped altogether:
    where arrays can be joined, states come by their module's total in its own order. Without
    `joins` none are.
    """
    ways = [*_spared(start, joins), start]
    found = (scan_residuals.before_order(way) for way in ways)
    if (least := ways[0].edits.spared) is not None and least.joined:
        target = start.request.target
        found = sorted(map(list, found), key=lambda some: facts_of(some[0].module, target).total)
    for states in found:
        yield from states


def _spared(state: ModuleState, joins: bool) -> list[ModuleState]:
    """States without arrays that loops need not have: that with most edits first."""
    request = state.request
    most = request.options.max_overhead
    most = most * request.own_seconds * _SPARING if isinstance(most, float) else 0.0
    kernels = facts_of(state.module, request.target).all_kernels
    return [
        dataclasses.replace(
            state,
            module=found.module,
            kernels=kernels,
            edits=dataclasses.replace(state.edits, spared=found, sources=found.sources),
        )
        for found in spared(state.module, request.target, request.cost, most)
        if joins or not found.joined
    ]
