"""What a user sees while planning takes longer than a moment."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console

__all__ = ["waiting"]

_logger = logging.getLogger("olla_xla")

_PATIENCE = 2.0
"""Seconds after which a line says what is being done."""


@contextlib.contextmanager
def waiting(name: str) -> Iterator[Callable[[str], None]]:
    """After two seconds inside, says what is being done: to the log, and on a terminal that waits.

    Args:
      name: of what is planned.

    Yields:
      A function that takes lines of progress.
    """
    started, latest = time.monotonic(), "loading"
    console = Console(stderr=True)
    status = console.status(f"planning {name}")
    shown, lock = False, threading.Lock()

    def line() -> str:
        return f"planning {name}, {time.monotonic() - started:.0f} s: {latest}"

    def show() -> None:
        nonlocal shown
        with lock:
            _logger.info("%s", line())
            if sys.stderr.isatty():
                shown = True
                status.start()

    def progress(text: str) -> None:
        nonlocal latest
        latest = text
        _logger.debug("%s", text)
        if shown:
            status.update(line())

    timer = threading.Timer(_PATIENCE, show)
    timer.daemon = True
    timer.start()
    try:
        yield progress
    finally:
        timer.cancel()
        with lock:
            if shown:
                status.stop()
