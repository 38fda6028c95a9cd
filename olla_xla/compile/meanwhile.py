"""Work beside XLA's compile, on another thread, that begins once the caller is back in XLA."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hlo import gc_pause

__all__ = ["meanwhile"]

_HEAD_START, _HEAD_START_PART = 0.02, 0.2
"""Seconds in which a caller gets back into XLA, and part of those that writing a plan took, for it
frees what it made; what XLA does for a thread holds Python's lock."""


def meanwhile(began: float, find: Callable[..., str], *arguments: Any) -> Future[str]:
    """What a function finds, in a thread of its own, while the caller goes on.

    Nor does the caller collect garbage before it is back in XLA.

    Args:
      began: when the caller did, on the monotonic clock. find, arguments: the function and its own.
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
