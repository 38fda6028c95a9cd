"""Python's search for garbage cycles, paused while a module is read.

A module of 30,000 operators is some ten million objects that stay, and nearly no garbage. Python
looks through all of them again each time that their number has grown by a quarter, which was 40 %
of an analysis.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["no_garbage_collection"]


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Within it no cycles are looked for, in the whole process; afterwards it is as it was."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
