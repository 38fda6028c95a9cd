"""Messages for users while planning takes longer than two seconds."""

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


class RunningPhase:
    """Text for terminals beside a spinner: what runs now, and for how many seconds.

    Args:
      doing: what runs first.
      line: makes the text of the seconds since the start, and of what runs with its own seconds.
    """

    def __init__(self, doing: str, line: Callable[[float, str], str]) -> None:
        self._started = self._since = time.monotonic()
        self._doing, self._line = doing, line

    def begin(self, doing: str) -> None:
        """Sets the name of the phase that runs from now on; its own seconds start at 0."""
        self._doing, self._since = doing, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start of the first phase."""
        return time.monotonic() - self._started

    def __str__(self) -> str:
        own = f"{self._doing} ({time.monotonic() - self._since:.0f} s)"
        return self._line(self.seconds, own)

    def __rich__(self) -> Text:
        return Text(str(self), no_wrap=True, overflow="ellipsis")


@contextlib.contextmanager
def waiting(name: str, doing: str = "loading") -> Iterator[Callable[[str], None]]:
    """Context manager that shows, after two seconds, what is being done; yields a function, to be
    called with a line of text whenever another phase begins. `name`: of what is planned. `doing`:
    what is done first, for the message.
    """
    phase = RunningPhase(doing, lambda seconds, what: f"planning {name}, {seconds:.0f} s: {what}")
    status = Console(stderr=True).status(phase)
    shown, lock = False, threading.Lock()

    def show() -> None:
        nonlocal shown
        with lock:
            _logger.info("%s", phase)
            # If the log does not propagate, its own handler shows it (the command line's progress).
            if sys.stderr.isatty() and _logger.propagate:
                shown = True
                status.start()

    def progress(text: str) -> None:
        phase.begin(text)
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
