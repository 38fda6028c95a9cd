"""What is told of every plan: one line of log, and whoever asked to be told."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable

from olla_xla.compile import report
from olla_xla.compile.environment import log_is_json
from olla_xla.compile.plan_event import PlanEvent

__all__ = ["on_plan", "tell"]

_logger = logging.getLogger("olla_xla")


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
    report.add(event)
    with _lock:
        listeners = tuple(_listeners)
    for listener in listeners:
        try:
            listener(event)
        except Exception:
            _logger.exception("a listener of on_plan failed")
