"""Runs a worker process and reads the JSON lines that it prints."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from olla_xla.errors import OllaError


def worker_lines(module: str, about: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Runs a module in a process of its own; yields what it prints, as it prints it.

    The process is killed if the caller stops reading.

    Args:
      module: its name; it takes one argument, JSON text, and prints an object a line. Lines that
        start otherwise are not for us.
      about: the argument.
      name: of the process, for a message.

    Raises:
      OllaError: the process ended with an error; the message has the last line of it.
    """
    # Errors go to a file: a pipe that nobody reads while lines are read would fill and hold both.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(about)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        with process:
            try:
                for line in process.stdout:
                    if line.startswith("{"):
                        yield json.loads(line)
                process.wait()
            finally:
                process.kill()
        if process.returncode:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["no message"]
            raise OllaError(f"{name} ended: {last[0]}")
