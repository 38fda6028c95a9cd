"""How long a search may go on, and what ends it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from olla_xla.problem.stop_reason import StopReason

__all__ = ["Limits", "Stop"]


class Stop(Exception):
    """A limit was reached."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclasses.dataclass(eq=False)
class Limits:
    """How long the search may go on: seconds, and steps or None."""

    seconds: float
    most_steps: int | None
    steps: int = 0
    sooner: float = math.inf
    """Another deadline, by time.monotonic(); the search ends at the earlier of the two."""

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.seconds
        self._aside = 0.0

    def spend(self, steps: int) -> None:
        """Counts steps; raises Stop when a limit is reached."""
        self.steps += steps
        if self.most_steps is not None and self.steps >= self.most_steps:
            raise Stop(StopReason.STEP_LIMIT)
        if time.monotonic() - self._aside >= min(self.deadline, self.sooner):
            raise Stop(StopReason.TIME_LIMIT)

    def aside(self, work: Callable[[], None]) -> None:
        """Runs `work` without counting its time against the limits."""
        started = time.monotonic()
        work()
        self._aside += time.monotonic() - started

    def allowed(self, steps: int) -> int:
        """`steps`, or the number of steps left under the limit if that is less."""
        return steps if self.most_steps is None else min(steps, self.most_steps - self.steps)
