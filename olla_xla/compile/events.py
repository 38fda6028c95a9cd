"""Events of plans: a log line for each, and calls of registered listeners."""

import atexit
import collections
import contextlib
import dataclasses
import functools
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from olla_xla.compile import extensions
from olla_xla.compile.environment import log_is_json, report_at_exit
from olla_xla.compile.plan_event import PlanEvent

_logger = logging.getLogger("olla_xla")

_KEPT = 1000
"""How many events are kept, the latest ones."""

_events: collections.deque[PlanEvent] = collections.deque(maxlen=_KEPT)
_listeners: list[Callable[[PlanEvent], None]] = []
_lock = threading.Lock()


_withheld: ContextVar[list[PlanEvent] | None] = ContextVar("withheld", default=None)


def on_plan(listener: Callable[[PlanEvent], None]) -> Callable[[], None]:
    """Registers a function that gets the PlanEvent of each signature that is planned from now on,
    also where XLA's own order is kept. `listener` is called in the thread that planned; errors that
    it raises are logged only. Returns a function that removes it.

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


@contextlib.contextmanager
def withheld() -> Iterator[list[PlanEvent]]:
    """Context manager for plans that are only tried: this thread's events go to the list it yields.
    They are neither logged nor reported, and no listener gets them.
    """
    events: list[PlanEvent] = []
    before = _withheld.set(events)
    try:
        yield events
    finally:
        _withheld.reset(before)


def tell(event: PlanEvent) -> None:
    """Logs a plan's event (JSON if OLLA_XLA_LOG=json), adds it to the report, calls all listeners.
    Inside `withheld` the event is only added to that context's list.
    """
    if (kept := _withheld.get()) is not None:
        return kept.append(event)
    text = json.dumps(dataclasses.asdict(event)) if log_is_json() else str(event)
    _logger.info("%s", text)
    with _lock:
        _events.append(event)
        listeners = tuple(_listeners)
    if report_at_exit():
        _print_at_exit()
    for listener in listeners:
        try:
            listener(event)
        except Exception:
            _logger.exception("a callback of olla_xla.on_plan raised an error")


def recent_events() -> tuple[PlanEvent, ...]:
    """Returns the latest PlanEvents of this process, at most a thousand, the oldest first."""
    with _lock:
        return tuple(_events)


@functools.cache
def _print_at_exit() -> None:
    """Registers, once a process, that the report is printed to stderr when the program ends."""
    atexit.register(lambda: print(extensions.report(), file=sys.stderr))
