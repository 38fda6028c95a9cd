"""Work on another thread during XLA's compile, which begins once the caller is back in XLA."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hlo import gc_pause

_HEAD_START, _HEAD_START_PART = 0.02, 0.2
"""Seconds, and part of the time that writing a plan took, for the caller to free what it made and
get back into XLA, before the other thread's work takes the GIL."""


def meanwhile(began: float, find: Callable[..., str], *arguments: Any) -> Future[str]:
    """Runs a function in another thread once the caller has returned to XLA; returns a future.

    Garbage collection is off until then.

    Args:
      began: when the caller began, by the monotonic clock. find, arguments: what to call.
    """
    head_start = max(_HEAD_START, _HEAD_START_PART * (time.monotonic() - began))

    def found() -> str:
        try:
            time.sleep(head_start)
        finally:
            gc_pause.release()
        return find(*arguments)

    pool = ThreadPoolExecutor(1, "olla_xla referee")
    gc_pause.hold()
    try:
        return pool.submit(found)
    except BaseException:
        gc_pause.release()
        raise
    finally:
        pool.shutdown(wait=False)
