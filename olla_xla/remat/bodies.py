"""Loop bodies and branches that hold a module's peak: how often they run, and what they could save.

A computation that a loop runs is charged to its caller with its own lifetime peak. Where the entry
computation's peak is that of a loop, only what lives in the loop's body, or across the loop, can
lower it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hlo.backend import platform
from hlo.cpu_code import one_function
from hlo.module import Computation, Instruction
from hlo.rounding import may_depend_on_others
from hlo.trip_count import trip_count
from olla_xla.memory.lifetimes import timeline
from olla_xla.memory.module_state import PlannedModule

_RUNS = frozenset({"call", "conditional", "while"})


@dataclasses.dataclass(frozen=True, eq=False)
class PeakBody:
    """A loop body or branch that is running when the module reaches its lifetime peak.

    Attributes:
      computation: the body or branch. runs: how often it runs in a step.
      peak: its lifetime peak, in bytes. outside: the module's peak less that.
      elsewhere: the module's peak if it needed no memory: no change inside it can reach less.
    """

    computation: Computation
    runs: int
    peak: int
    outside: int
    elsewhere: int


def bodies_at_peak(planned: PlannedModule) -> list[PeakBody]:
    """The loop bodies and branches that run at the module's peak, outermost first.

    The list ends before the first one whose number of runs is not known, without which the module's
    peak would be as high, or which a CPU compiles in one function with others: adding to it may
    change how that function's code rounds.

    Args:
      planned: with `peaks` of all its computations, in the orders that its module comes with.
    """
    found: list[PeakBody] = []
    if len(planned.module.control_computations) == 1:
        return found
    now = planned.module.entry
    peak = planned.peaks[now]
    joins = platform(planned.target).joins_calls
    together = one_function(planned.module) if joins else {}
    while (inside := _run_at_peak(planned, now)) is not None:
        runs = _runs(planned.module.entry, inside)
        own = planned.peaks[inside]
        elsewhere = _module_peak(planned, inside, 0)
        if runs is None or elsewhere >= peak:
            break
        if inside in together and may_depend_on_others(together[inside]):
            break
        found.append(PeakBody(inside, runs, own, peak - own, elsewhere))
        now = inside
    return found


def _run_at_peak(planned: PlannedModule, computation: Computation) -> Computation | None:
    """The computation with the largest peak that runs at another one's peak, if any does."""
    lowered = planned.lowered(computation)
    count = len(lowered.graph.operators)
    if not count:
        return None
    step = int(timeline(lowered.graph, np.arange(count)).argmax())
    runs = lowered.instructions[step]
    called = runs.called_control if runs.opcode in _RUNS else ()
    return max(called, key=lambda c: planned.peaks[c], default=None)


def _module_peak(planned: PlannedModule, computation: Computation, peak: int) -> int:
    """The entry's lifetime peak if one computation had another."""
    before = dict(planned.peaks)
    try:
        planned.peaks[computation] = peak
        changed = {computation}
        for caller in planned.module.control_computations:  # callees first
            calls = (c for i in caller.instructions for c in i.called_control)
            if caller not in changed and not changed.isdisjoint(calls):
                changed.add(caller)
                planned.charge(caller)
        return planned.peaks[planned.module.entry]
    finally:
        planned.peaks.clear()
        planned.peaks.update(before)


def _runs(computation: Computation, inside: Computation) -> int | None:
    """How often one run of a computation runs another; None if a loop's trip count is not known."""
    total = 0
    for i in computation.instructions:
        for called in i.called_control:
            runs = 1 if called is inside else _runs(called, inside)
            times = _times(i) if runs else 1
            if runs is None or times is None:
                return None
            total += runs * times
    return total


def _times(i: Instruction) -> int | None:
    return trip_count(i) if i.opcode == "while" else 1
