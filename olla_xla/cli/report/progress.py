"""Progress on stderr: a line for each stage, and now and then the latest improvement."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console

__all__ = ["Progress"]

_INTERVAL = 2.0  # seconds between lines that are kept in a file


class Progress:
    """Prints lines with the time since the start; a context manager.

    On a terminal, lines that follow each other quickly replace one another in a status line; in a
    file, one line every two seconds is kept.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._started = time.monotonic()
        self._last = -_INTERVAL
        self._held = ""
        self._status = self._console.status("") if self._console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._flush()
        if self._status is not None:
            self._status.stop()

    def stage(self, line: str) -> None:
        """A line that is always printed."""
        self._flush()
        self._print(self._timed(line))

    def __call__(self, line: str) -> None:
        """A line that may be passed over if another follows soon."""
        self._held = self._timed(line)
        if self._status is not None:
            self._status.update(self._held)
        if time.monotonic() - self._last >= _INTERVAL:
            self._flush()

    def _timed(self, line: str) -> str:
        return f"{time.monotonic() - self._started:7.1f} s  {line}"

    def _flush(self) -> None:
        if self._held:
            self._print(self._held)
            self._last = time.monotonic()
            self._held = ""

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)
