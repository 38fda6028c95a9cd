"""What a caller may ask of the planner."""

from __future__ import annotations

import dataclasses
import math

from olla_xla.errors import InputError, LimitError

__all__ = ["PlanOptions"]


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """Limits and seed of one planning run, checked at construction.

    Attributes:
      time_limit: seconds of search; a wall clock only ever stops early.
      step_limit: search steps, or None for no limit; with it, equal seeds give equal plans.
      seed: of the search's random numbers.
      tolerance: the search is content with (1 + tolerance) times the lower bound.
      in_place: fusions may be bound to write over a dying operand (`olla_xla.chains`), where XLA's
        rules allow it and its heap would not do it by itself.

    Raises:
      LimitError: a limit is not positive.
      InputError: a value has the wrong type.
    """

    time_limit: float = 20.0
    step_limit: int | None = None
    seed: int = 0
    tolerance: float = 0.001
    in_place: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.time_limit, bool) or not isinstance(self.time_limit, int | float):
            raise InputError(f"time_limit={self.time_limit!r} is not a number of seconds")
        if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, int | float):
            raise InputError(f"tolerance={self.tolerance!r} is not a number")
        if not isinstance(self.in_place, bool):
            raise InputError(f"in_place={self.in_place!r} must be True or False")
        if not 0 <= self.tolerance < 1:
            raise LimitError(f"tolerance={self.tolerance} must be at least 0 and below 1")
        if math.isnan(self.time_limit) or self.time_limit <= 0:
            raise LimitError(f"time_limit={self.time_limit} must be a positive number of seconds")
        for name in ("step_limit", "seed"):
            value = getattr(self, name)
            if value is None and name == "step_limit":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{name}={value!r} must be an integer")
        if self.step_limit is not None and self.step_limit <= 0:
            raise LimitError(f"step_limit={self.step_limit} must be a positive number of steps")
