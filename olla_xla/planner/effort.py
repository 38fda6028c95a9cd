"""How much planning a module is worth: seconds of search, and gains too small to search for."""

import dataclasses

from olla_xla.problem.options import PlanOptions

LONGEST = 20.0
"""Seconds of search where a budget was given; also the longest default."""

_BY_STEPS = 86400.0
"""Seconds of search where steps alone limit it, so that no clock decides what comes of it."""

_ILP_LIMIT = 60.0  # seconds of the integer program

_PART, _PART_PER_GAP, _WIDEST = 0.12, 6.0, 0.1
"""The part of XLA's own time up to its schedule that a search may take: a constant, plus this much
times the gap between the best total so far and the bound, of which at most `_WIDEST` counts."""

_SHORTEST, _SHORTEST_PER_GAP = 0.15, 1.0
"""Seconds that any search may take, plus this much times the same gap; less finds little."""

_LITTLE_BYTES = 2**20
"""A gap for which no search takes more than the shortest, however long XLA took."""

_LARGE_BYTES, _SHORTEST_WHERE_LARGE = 16 * 2**20, 0.25
"""A gap that is worth a search's first round, however little XLA took; the seconds of that."""

_IDLE, _IDLE_PART = 0.1, 0.6
"""Seconds without a better total after which a search ends; or, if that is more, this part of what
it had taken up to the last better one."""

_ENOUGH_BYTES, _ENOUGH_SHARE = 256 * 2**10, 5e-4
"""A total this near to its bound, in bytes or as a part of it, is near enough."""

_RECOMPUTE_PART, _RECOMPUTE_PER_SHARE = 0.5, 4.0
"""The part of XLA's own time up to its schedule that a search for recomputation may take: a
constant, plus this much times the part of the total that could go."""

_QUICK = 2.0
"""Where XLA takes fewer seconds up to its schedule, the second part shrinks in proportion: in a
short compile one more second is noticed, and the first choices that are tried gain most."""

_WORTH_A_SECOND = 64 * 2**20
"""Bytes that may go for which a search may take a second, up to `_QUICK`, however quick XLA was."""

_NEGLIGIBLE = 1e-4
"""Part of the module's total; a loop or branch that could gain less is not searched."""

_MINOR, _MINOR_PER_GAP = 1e-3, 1e-2
"""By default one that could gain less than both of these is not searched either: a part of the
module's total, and a part of the gap between total and bound."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How many seconds the search for a plan may take, and which total is good enough to stop.

    Attributes:
      seconds: of search, at most.
      enough_bytes: the search ends when its total is no more than this above `bound`.
      bound: no order takes fewer bytes. schedule_seconds: how long XLA compiled until it had a
        schedule; None where only `seconds` limits the search.
    """

    seconds: float
    enough_bytes: int = 0
    bound: int = 0
    schedule_seconds: float | None = None

    def worth(self, total: int) -> float:
        """Returns seconds that the search may take in all if its best total so far is `total`
        bytes: more, the further that is above `bound`, and the longer XLA took to its own schedule;
        at most `seconds`, and just these where XLA's time does not matter.
        """
        if self.schedule_seconds is None:
            return self.seconds
        left = total - self.bound
        if left < _LITTLE_BYTES:
            return _SHORTEST
        gap = min(left / max(self.bound, 1), _WIDEST)
        seconds = self.schedule_seconds * (_PART + _PART_PER_GAP * gap)
        shortest = _SHORTEST if left < _LARGE_BYTES else _SHORTEST_WHERE_LARGE
        return min(max(seconds, shortest + _SHORTEST_PER_GAP * gap), self.seconds)

    def negligible(self, total: int) -> float:
        """Returns bytes: a loop body or branch that could save no more than these is not searched.
        `total`: predicted bytes of the module in XLA's order.
        """
        least = _NEGLIGIBLE * total
        if self.schedule_seconds is None:
            return least
        return max(least, min(_MINOR * total, _MINOR_PER_GAP * (total - self.bound)))

    def until(self, total: int, started: float, now: float) -> float:
        """Returns the clock time when the search ends unless it finds less than `total` first.

        Args:
          total: the best so far, just found, in bytes. started, now: when the search began, and the
            present time, on one clock; so is the result.
        """
        end = started + self.worth(total)
        if self.schedule_seconds is None:
            return end
        return min(end, now + max(_IDLE, _IDLE_PART * (now - started)))


@dataclasses.dataclass(frozen=True)
class Timing:
    """What limits the time of a search where `PlanOptions` set no limit.

    Attributes:
      schedule_seconds: what XLA took to get to its schedule; None where that is not known.
      longest: seconds of search at most.
      began: when planning began, on `memory.clock`, if a time limit counts from then.
    """

    schedule_seconds: float | None = None
    longest: float = LONGEST
    began: float | None = None


def effort(options: PlanOptions, timing: Timing, total: int, bound: int) -> Effort:
    """Decides how many seconds to search for an order, and which total bytes are enough to stop.

    Args:
      options: with a limit of time or of steps, the search goes on until that is reached.
      timing: else limits it. total: predicted bytes of XLA's order. bound: no order takes fewer.
    """
    if options.time_limit is not None:
        steps = options.step_limit is not None  # which alone are to end it
        return Effort(options.time_limit, 0 if steps else int(options.tolerance * bound))
    if options.method == "ilp":
        return Effort(_ILP_LIMIT)
    if options.step_limit is not None:
        return Effort(_BY_STEPS)
    if not options.in_proportion or timing.schedule_seconds is None:
        return Effort(timing.longest)
    enough = max(_ENOUGH_BYTES, int(_ENOUGH_SHARE * bound))
    widest = Effort(timing.longest, enough, bound, timing.schedule_seconds)
    return dataclasses.replace(widest, seconds=widest.worth(total))


def recomputation_limit(
    options: PlanOptions, schedule_seconds: float | None, spent: float, total: int, least: int
) -> float:
    """Seconds, counted since planning began, after which no more recomputation is searched for: a
    limit of the options, or else more the longer XLA took and the more bytes may be saved.

    Args:
      options: the caller's. schedule_seconds: what XLA took to get to its schedule; None where that
        is not known. spent: seconds that planning has taken so far.
      total: predicted bytes without recomputation. least: no recomputation takes fewer.
    """
    if not options.in_proportion or schedule_seconds is None:
        longest = LONGEST if options.step_limit is None else _BY_STEPS
        if options.method == "ilp" and options.time_limit is None:
            return spent + longest
        return longest if options.time_limit is None else options.time_limit
    if total - least < _LITTLE_BYTES:
        return spent + _SHORTEST
    share = (total - least) / total * min(schedule_seconds / _QUICK, 1.0)
    seconds = schedule_seconds * (_RECOMPUTE_PART + _RECOMPUTE_PER_SHARE * share)
    seconds = max(seconds, min((total - least) / _WORTH_A_SECOND, _QUICK))
    return spent + min(max(seconds, _SHORTEST_WHERE_LARGE), LONGEST)
