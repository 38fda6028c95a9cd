"""Progress on stderr: what is being done, with the seconds that it takes."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.text import Text

__all__ = ["Progress"]


class Progress:
    """Prints lines with the time since the start; a context manager.

    On a terminal the last line stands beside a spinner, with the seconds that pass, and is gone at
    the end; in a file each stage is a line, and of what improves in between one every `interval`
    seconds.

    Args:
      console: where to; stderr by default.
      interval: seconds.
    """

    def __init__(self, console: Console | None = None, interval: float = 2.0) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._interval = interval
        self._started = time.monotonic()
        self._last = -interval
        self._held = ""
        self._phase = ""
        running = _Running(self)
        self._status = self._console.status(running) if self._console.is_terminal else None

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
        self._phase = line
        if self._status is None:
            self._print(self._timed(line))

    def __call__(self, line: str) -> None:
        """A line that may be passed over if another follows soon."""
        self._phase = line
        if self._status is not None:
            return
        self._held = self._timed(line)
        if time.monotonic() - self._last >= self._interval:
            self._flush()

    def running(self) -> str:
        """The seconds since the start, and what is being done."""
        return self._timed(self._phase)

    def _timed(self, line: str) -> str:
        return f"{time.monotonic() - self._started:7.1f} s  {line}"

    def _flush(self) -> None:
        if self._held:
            self._print(self._held)
            self._last = time.monotonic()
            self._held = ""

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


class _Running:
    """What stands beside the spinner: drawn anew several times a second, so that seconds pass."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich__(self) -> Text:
        return Text(self._progress.running(), no_wrap=True, overflow="ellipsis")
