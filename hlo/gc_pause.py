"""Python's cyclic garbage collector, held off while many objects are made and none is garbage.

The first allocation afterwards scans all objects made meanwhile, which takes a tenth of a second
for a module of 10,000 instructions; a caller in a hurry leaves that to another thread.
"""

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_holds = 0
_enabled = False


def hold() -> None:
    """Disables Python's cyclic garbage collector until every `hold` of any thread is released."""
    global _holds, _enabled
    with _lock:
        _holds += 1
        if _holds == 1:
            _enabled = gc.isenabled()
            gc.disable()


def release() -> None:
    """Ends one `hold`, of any thread; after the last, garbage collection is as it was before."""
    global _holds
    with _lock:
        _holds -= 1
        if not _holds and _enabled:
            gc.enable()


def _forget() -> None:
    """Resets the lock and all holds in a forked child, where no thread is left to release them."""
    global _holds, _lock
    _lock = threading.Lock()
    if _holds and _enabled:
        gc.enable()
    _holds = 0


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Context manager or decorator: garbage collection is off in its block (`hold`, `release`)."""
    hold()
    try:
        yield
    finally:
        release()
