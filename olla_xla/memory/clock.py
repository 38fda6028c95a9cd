"""The clock that limits of time go by. It stands still while a loop is compiled or loaded.

Compiling all loops takes minutes on a new machine, once, which would use up any limit and leave
nothing for what it limits. A limit that nobody set goes by the processor's time (`by_processor`),
so that a plan does not get worse because other programs run.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple


class _ClockStops(NamedTuple):
    """How many callers have stopped the clock, since when, and how many seconds it stood before."""

    stops: int = 0
    since: float = 0.0
    before: float = 0.0


_state = _ClockStops()
_lock = threading.Lock()

_FAR = 8.0
"""Seconds of the monotonic clock that count as one of the processor's: where a thread waits, or has
a small part of a processor, its limits end it all the same."""


class _Processor:
    """The processor time of one thread since this was made, without that while it was stopped."""

    def __init__(self) -> None:
        self._wall, self._began = wall(), time.thread_time()
        self._stops, self._since = 0, 0.0

    def now(self) -> float:
        """Seconds: `wall` when this was made, plus processor time since, or an eighth of `wall`'s
        time since if that is more.
        """
        at = self._since if self._stops else time.thread_time()
        return self._wall + max(at - self._began, (wall() - self._wall) / _FAR)

    def count(self, more: int) -> None:
        """Stops this clock (`more` 1), or takes back a stop (-1); it goes on when none is left."""
        at = time.thread_time()
        if self._stops == 0:
            self._since = at
        elif self._stops + more == 0:
            self._began += at - self._since
        self._stops += more


class _Own(threading.local):
    processor: _Processor | None = None


_own = _Own()


def wall() -> float:
    """Seconds of the monotonic clock, without the time that compiling and loading loops took."""
    state = _state  # read once: other threads replace it
    return (state.since if state.stops else time.monotonic()) - state.before


def now() -> float:
    """Seconds by which time limits go: `wall`, or this thread's processor's in `by_processor`."""
    return wall() if _own.processor is None else _own.processor.now()


@contextlib.contextmanager
def by_processor() -> Iterator[None]:
    """A context in which `now` counts this thread's processor time, or an eighth of `wall`'s if
    that is more. It begins as `wall`; times from inside mean nothing outside.
    """
    outer, _own.processor = _own.processor, _own.processor or _Processor()
    try:
        yield
    finally:
        _own.processor = outer


@contextlib.contextmanager
def stopped() -> Iterator[None]:
    """Context manager that stops the time limits' clock in all threads, as while loops compile."""
    processor = _own.processor
    _count(1)
    if processor is not None:
        processor.count(1)
    try:
        yield
    finally:
        if processor is not None:
            processor.count(-1)
        _count(-1)


def _count(more: int) -> None:
    global _state
    with _lock:
        (stops, since, before), at = _state, time.monotonic()
        if stops == 0:
            since = at
        elif stops + more == 0:
            before += at - since
        _state = _ClockStops(stops + more, since, before)
