"""A module of ours run in a fresh process; its answer is the last line that it prints, in JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Child(NamedTuple):
    """A process that has ended: its exit code, and the last lines of both outputs, or "".
    `answer` is what it printed last, read as JSON; None where it failed or printed nothing.
    """

    code: int
    last: str
    error: str
    answer: Any

    @property
    def trouble(self) -> str:
        """Says why there is no answer: the exit code, and the last line of standard error."""
        return f"the process ended with code {self.code}: {self.error}"


def run_module(
    module: str, argument: str, environment: Mapping[str, str], timeout: float | None = None
) -> Child:
    """Runs `python -m MODULE ARGUMENT`, with more environment variables, to its end; the Child.
    Raises subprocess.TimeoutExpired if it took over `timeout` seconds, and was killed.
    """
    paths = [str(Path(__file__).parents[2]), os.getcwd(), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, "-m", module, argument],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    last = next(reversed(run.stdout.splitlines()), "")
    error = next((x.strip() for x in reversed(run.stderr.splitlines()) if x.strip()), "")
    answer = None
    if run.returncode == 0 and last:
        try:
            answer = json.loads(last)
        except ValueError:
            error = f"its last line is not JSON: {last[:100]}"
    return Child(run.returncode, last, error, answer)
