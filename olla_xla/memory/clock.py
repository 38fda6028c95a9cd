"""The clock that limits of time go by. It stands still while a loop is compiled or loaded.

Compiling all loops takes minutes on a new machine, once, which would use up any limit and leave
nothing for what it limits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple


class _State(NamedTuple):
    """How many callers have stopped the clock, since when, and for how many seconds before that."""

    stops: int = 0
    since: float = 0.0
    before: float = 0.0


_state = _State()
_lock = threading.Lock()


def now() -> float:
    """Seconds of the monotonic clock, without the time that compiling and loading loops took."""
    state = _state  # read once: other threads replace it
    return (state.since if state.stops else time.monotonic()) - state.before


@contextlib.contextmanager
def stopped() -> Iterator[None]:
    """A context in which `now` stands still, for all threads: they wait for compiled loops."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(more: int) -> None:
    global _state
    with _lock:
        (stops, since, before), at = _state, time.monotonic()
        if stops == 0:
            since = at
        elif stops + more == 0:
            before += at - since
        _state = _State(stops + more, since, before)
