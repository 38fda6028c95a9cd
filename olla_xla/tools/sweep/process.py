"""One cell in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from olla_xla.tools.sweep.grid import Cell, SweepSettings

KILLED = "killed"
"""The error of a row whose process was killed, as by a system that is short of memory."""


def run_process(
    cell: Cell, settings: SweepSettings, program: str = "olla_xla.tools.sweep.cell"
) -> dict[str, Any]:
    """Runs a cell in a fresh process; if that fails, the row has `error`, and nothing is raised.

    Args:
      cell, settings: the request. program: the module that answers it.

    Returns:
      The row's fields besides those that name the cell.
    """
    request = json.dumps({**dataclasses.asdict(cell), "settings": dataclasses.asdict(settings)})
    paths = [str(Path(__file__).parents[3]), os.getcwd()]
    if given := os.environ.get("PYTHONPATH"):
        paths.append(given)
    try:
        run = subprocess.run(
            [sys.executable, "-m", program, request],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=settings.cell_timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {settings.cell_timeout:g} s"}
    lines = run.stdout.splitlines()
    if run.returncode == 0 and lines:
        return json.loads(lines[-1])
    if run.returncode == -signal.SIGKILL:
        return {"error": KILLED}
    last = next((line for line in reversed(run.stderr.splitlines()) if line.strip()), "")
    return {"error": f"the process ended with code {run.returncode}: {last.strip()}"}
