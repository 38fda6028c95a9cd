"""How long a search may go on, and what ends it."""

from __future__ import annotations

import dataclasses
import math

from olla_xla.memory import clock
from olla_xla.problem.stop_reason import StopReason


class Stop(Exception):
    """Raised to end the search when a limit is reached; `reason` says which."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclasses.dataclass(eq=False)
class SearchLimits:
    """How long the search may go on: at most `seconds`, and `most_steps` unless that is None."""

    seconds: float
    most_steps: int | None
    steps: int = 0
    sooner: float = math.inf
    """Another deadline, on the same clock; the search ends at the earlier of the two."""

    def __post_init__(self) -> None:
        self.deadline = clock.now() + self.seconds

    def spend(self, steps: int) -> None:
        """Counts steps; raises Stop when a limit is reached."""
        self.steps += steps
        if self.most_steps is not None and self.steps >= self.most_steps:
            raise Stop(StopReason.STEP_LIMIT)
        if clock.now() >= min(self.deadline, self.sooner):
            raise Stop(StopReason.TIME_LIMIT)

    def allowed(self, steps: int) -> int:
        """`steps`, or the number of steps left under the limit if that is less."""
        return steps if self.most_steps is None else min(steps, self.most_steps - self.steps)
