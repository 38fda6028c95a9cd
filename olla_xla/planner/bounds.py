"""Bounds of a computation where its callees have bounds of their own."""

from __future__ import annotations

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.mincut import least_live
from olla_xla.planner.work import Candidates
from olla_xla.schedule.search.result import SearchResult


def forced_live(work: Candidates) -> int:
    """The forced-live bound of a computation in bytes, with its callees' peaks at their bounds."""
    planned = work.planned
    called = {c for i in work.lowered.instructions for c in i.called_control}
    if all(planned.bounds[c] == planned.peaks[c] for c in called):
        return forced_live_bound(work.arrays)[0]
    return forced_live_bound(planned.bounded(work.lowered.computation).graph)[0]


def certified(work: Candidates, found: SearchResult) -> int:
    """The search's lower bound in bytes, computed anew if it used callees' peaks, not bounds."""
    planned, computation = work.planned, work.lowered.computation
    called = {c for i in work.lowered.instructions for c in i.called_control}
    if all(planned.bounds[c] == planned.peaks[c] for c in called):
        return found.bound_bytes
    bounded = GraphArrays.of(planned.bounded(computation).graph)
    bound = forced_live_bound(bounded)[0]
    if found.cut_at >= 0:
        bound = max(bound, least_live(bounded, found.cut_at).bytes)
    return min(bound, found.least_peak_bytes)


def least_peak(work: Candidates, *found: SearchResult) -> int:
    """The least lifetime peak of any search, in bytes, with callees in orders of least peak."""
    least = min(result.least_peak_bytes for result in found)
    planned = work.planned
    called = {c for i in work.lowered.instructions for c in i.called_control}
    if all(planned.leasts[c] == planned.peaks[c] for c in called):
        return least
    relaxed = GraphArrays.of(planned.relaxed(work.lowered.computation).graph)
    return min(least, peak_bytes(relaxed, found[0].lifetime_order))
