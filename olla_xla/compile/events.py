"""Events of plans: a log line for each, and calls of registered listeners."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable

from olla_xla.compile import report
from olla_xla.compile.environment import log_is_json
from olla_xla.compile.plan_event import PlanEvent

_logger = logging.getLogger("olla_xla")


_listeners: list[Callable[[PlanEvent], None]] = []
_lock = threading.Lock()


def on_plan(listener: Callable[[PlanEvent], None]) -> Callable[[], None]:
    """Registers a function to be called for every signature planned from now on, in its thread.

    Args:
      listener: exceptions that it raises are logged, and not passed on.

    Returns:
      A function that removes the listener.

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
    """Logs an event, as JSON if OLLA_XLA_LOG=json, adds it to the report and calls listeners."""
    text = json.dumps(dataclasses.asdict(event)) if log_is_json() else str(event)
    _logger.info("%s", text)
    report.add(event)
    with _lock:
        listeners = tuple(_listeners)
    for listener in listeners:
        try:
            listener(event)
        except Exception:
            _logger.exception("a listener of on_plan failed")
