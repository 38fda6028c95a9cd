"""Progress on stderr: what a command is doing, for how long, and the seconds since it started."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console

from olla_xla.compile.waiting import RunningPhase


class Progress:
    """Prints lines, each with the seconds since the start; a context manager.

    On a terminal only the latest line is shown, beside a spinner and a clock, and it is removed at
    the end. Elsewhere, as in a log file, every `stage` is printed, and of the lines between stages
    about one every `interval` seconds.

    Args:
      console: where to print; stderr by default.
      interval: least seconds between two lines that are not stages.
    """

    def __init__(self, console: Console | None = None, interval: float = 2.0) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._interval = interval
        self._last = -interval
        self._held = ""
        self._phase = RunningPhase("", _timed)
        self._status = self._console.status(self._phase) if self._console.is_terminal else None

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
        """Begins a stage named `line`; a log gets the line, also where other lines are left out."""
        self._flush()
        self._phase.begin(line)
        if self._status is None:
            self._print(_timed(self._phase.seconds, line))

    def __call__(self, line: str) -> None:
        """Reports progress within a stage; in a log, a line that follows soon may replace it."""
        self._phase.begin(line)
        if self._status is not None:
            return
        self._held = _timed(self._phase.seconds, line)
        if time.monotonic() - self._last >= self._interval:
            self._flush()

    def running(self) -> str:
        """Returns the latest line, with the seconds since the start, and since it was begun."""
        return str(self._phase)

    def _flush(self) -> None:
        if self._held:
            self._print(self._held)
            self._last = time.monotonic()
            self._held = ""

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _timed(seconds: float, line: str) -> str:
    return f"{seconds:7.1f} s  {line}"
