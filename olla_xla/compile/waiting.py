"""Messages for users while planning takes longer than two seconds."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.text import Text

_logger = logging.getLogger("olla_xla")

_PATIENCE = 2.0
"""Seconds after which there is a message."""


@contextlib.contextmanager
def waiting(name: str, doing: str = "loading") -> Iterator[Callable[[str], None]]:
    """A context that, after two seconds, logs what is being done and shows it on a terminal.

    Args:
      name: of what is planned. doing: what is done first, for the message.

    Yields:
      A function that takes lines of progress.
    """
    started = since = time.monotonic()
    latest = doing

    def line() -> str:
        now = time.monotonic()
        return f"planning {name}, {now - started:.0f} s: {latest} ({now - since:.0f} s)"

    status = Console(stderr=True).status(_Line(line))
    shown, lock = False, threading.Lock()

    def show() -> None:
        nonlocal shown
        with lock:
            _logger.info("%s", line())
            # If the log does not propagate, its own handler shows it (the command line's progress).
            if sys.stderr.isatty() and _logger.propagate:
                shown = True
                status.start()

    def progress(text: str) -> None:
        nonlocal latest, since
        latest, since = text, time.monotonic()
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
    """The text beside the spinner, rendered several times a second to count the seconds."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line

    def __rich__(self) -> Text:
        return Text(self._line(), no_wrap=True, overflow="ellipsis")
