"""What a user sees while planning takes longer than a moment."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.text import Text

__all__ = ["waiting"]

_logger = logging.getLogger("olla_xla")

_PATIENCE = 2.0
"""Seconds after which a line says what is being done."""


@contextlib.contextmanager
def waiting(name: str, doing: str = "loading") -> Iterator[Callable[[str], None]]:
    """After two seconds inside, says what is being done: to the log, and on a terminal that waits.

    Args:
      name: of what is planned. doing: what is done first.

    Yields:
      A function that takes lines of progress.
    """
    started, latest = time.monotonic(), doing

    def line() -> str:
        return f"planning {name}, {time.monotonic() - started:.0f} s: {latest}"

    status = Console(stderr=True).status(_Line(line))
    shown, lock = False, threading.Lock()

    def show() -> None:
        nonlocal shown
        with lock:
            _logger.info("%s", line())
            # Where the log goes elsewhere, as to the command line's own progress, that shows it.
            if sys.stderr.isatty() and _logger.propagate:
                shown = True
                status.start()

    def progress(text: str) -> None:
        nonlocal latest
        latest = text
        _logger.debug("%s", text)

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


class _Line:
    """What stands beside the spinner: drawn anew several times a second, so that seconds pass."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line

    def __rich__(self) -> Text:
        return Text(self._line(), no_wrap=True, overflow="ellipsis")
