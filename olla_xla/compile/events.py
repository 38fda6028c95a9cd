"""What is told of every plan: one line of log, and whoever asked to be told."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable

from olla_xla.compile.environment import log_is_json
from olla_xla.compile.outcomes import Outcome

__all__ = ["PlanEvent", "on_plan", "tell"]

_logger = logging.getLogger("olla_xla")


@dataclasses.dataclass(frozen=True)
class PlanEvent:
    """One signature of a planned function, compiled.

    Attributes:
      function: its name.
      planned: whether it runs another order than XLA's own.
      reason: why it does not, or "".
      fell_back: whether that is because something went wrong, rather than nothing gained.
      bytes: XLA's total for what runs. xla_bytes: for its own order, assigned or predicted.
        lower_bound_bytes: no order takes fewer. All per device; None where nothing was planned.
      seconds: that this process took to plan and to compile.
      search_seconds: that the search for the plan took, maybe in another process or run.
      processes: how many processes agreed on it; 1 where only this one was concerned.
    """

    function: str
    planned: bool
    reason: str
    fell_back: bool
    bytes: int | None
    xla_bytes: int | None
    lower_bound_bytes: int | None
    seconds: float
    search_seconds: float
    processes: int

    @classmethod
    def of(cls, function: str, outcome: Outcome, seconds: float) -> PlanEvent:
        """The event of an outcome."""
        plan = outcome.plan
        return cls(
            function=function,
            planned=outcome.planned,
            reason=outcome.reason,
            fell_back=outcome.fell_back,
            bytes=None if plan is None else plan.assigned_bytes,
            xla_bytes=None if plan is None else plan.xla_bytes,
            lower_bound_bytes=None if plan is None else plan.lower_bound_bytes,
            seconds=round(seconds, 3),
            search_seconds=0.0 if plan is None else round(plan.seconds, 3),
            processes=max(len(outcome.members), 1),
        )

    def __str__(self) -> str:
        """A line for a reader."""
        together = f" in {self.processes} processes" if self.processes > 1 else ""
        took = f"{self.seconds:.1f} s with XLA's compile"
        if self.planned:
            sizes = f"{self.bytes:,} bytes planned, {self.xla_bytes:,} by XLA alone"
            return f"{self.function}: {sizes}, bound {self.lower_bound_bytes:,}{together}; {took}"
        return f"{self.function}: XLA's own schedule{together}: {self.reason}; {took}"


_listeners: list[Callable[[PlanEvent], None]] = []
_lock = threading.Lock()


def on_plan(listener: Callable[[PlanEvent], None]) -> Callable[[], None]:
    """Has a function called for every signature that is planned from now on, on that thread.

    Args:
      listener: what it raises is logged, and goes no further.

    Returns:
      A function that ends it.

    Examples:
      >>> stop = olla_xla.on_plan(lambda event: metrics.gauge("bytes", event.bytes))
    """
    with _lock:
        _listeners.append(listener)

    def stop() -> None:
        with _lock:
            if listener in _listeners:
                _listeners.remove(listener)

    return stop


def tell(event: PlanEvent) -> None:
    """Logs an event in one line, as JSON where OLLA_XLA_LOG=json, and passes it on."""
    text = json.dumps(dataclasses.asdict(event)) if log_is_json() else str(event)
    _logger.info("%s", text)
    with _lock:
        listeners = tuple(_listeners)
    for listener in listeners:
        try:
            listener(event)
        except Exception:
            _logger.exception("a listener of on_plan failed")
