"""Runs a worker process and reads the JSON lines that it prints."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from olla_xla.errors import OllaError


class WorkerError(OllaError):
    """A worker ended with an error.

    Attributes:
      code: its exit code. reason: the last line that it wrote to stderr, or where Python died.
      hung: whether it was killed because it printed nothing for too long.
    """

    def __init__(self, name: str, code: int, reason: str, hung: bool) -> None:
        super().__init__(f"{name} ended: {reason}")
        self.code, self.reason, self.hung = code, reason, hung


def worker_lines(
    module: str,
    about: dict[str, Any],
    name: str,
    *,
    environment: Mapping[str, str] | None = None,
    silent: tuple[float, float] = (math.inf, math.inf),
) -> Iterator[dict[str, Any]]:
    """Runs a module in a process of its own; yields what it prints, as it prints it.

    The process is killed if the caller stops reading.

    Args:
      module: its name; it takes one argument, JSON text, and prints an object a line. Lines that
        start otherwise are not for us.
      about: the argument.
      name: of the process, for a message.
      environment: of the process; ours by default. It finds this checkout in any case.
      silent: seconds for which it may print nothing: at first, and after its first line.

    Raises:
      WorkerError: the process ended with an error, or was silent for too long.
    """
    environment = dict(os.environ if environment is None else environment)
    paths = [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # Errors go to a file: a pipe that nobody reads while lines are read would fill and hold both.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(about)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        watch = _Watch(process, silent[0])
        with process:
            try:
                for line in process.stdout:
                    watch.heard(silent[1])
                    if line.startswith("{"):
                        yield json.loads(line)
                process.wait()
            finally:
                watch.end()
                process.kill()
        if process.returncode:
            errors.seek(0)
            reason = _last_line(errors.read())
            raise WorkerError(name, process.returncode, reason, watch.hung)


class _Watch:
    """Kills a process that has been silent for too long.

    Attributes:
      hung: whether it was.
    """

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self._process = process
        self._timer: threading.Timer | None = None
        self.hung = False
        self.heard(seconds)

    def heard(self, seconds: float) -> None:
        """The process has printed something, and may be silent for so many seconds now."""
        self.end()
        if seconds < math.inf:
            self._timer = threading.Timer(seconds, self._late)
            self._timer.daemon = True
            self._timer.start()

    def _late(self) -> None:
        self.hung = True
        self._process.kill()

    def end(self) -> None:
        """Stops watching."""
        if self._timer is not None:
            self._timer.cancel()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    faults = [line for line in lines if line.startswith("Fatal Python error")]
    return (faults or lines or ["no message"])[-1][:300]
