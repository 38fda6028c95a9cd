"""A solver in a process of its own, which is killed if it does not stop in time.

HiGHS checks its clock between the parts of its work, and some parts (probing, cliques, a first
relaxation) take minutes on models of a hundred thousand rows, without a callback or a check for
interrupts. The bound and the last point that it reported until then are used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import SolverError
from olla_xla.solvers.linear import (
    INFINITY,
    LinearArrays,
    LinearModel,
    SolverLimits,
    SolverResult,
    Status,
)

_GRACE = 2.0
"""Seconds past the limit in which a solver may still stop by itself."""

_LEAST_SECONDS = 0.01

_LONGEST_WAIT = threading.TIMEOUT_MAX / 2  # seconds; the platform has a longest timeout


class _Given:
    """What a backend needs of a model."""

    def __init__(self, arrays: LinearArrays, start: NDArray[np.float64] | None) -> None:
        self._arrays = arrays
        self.start = start

    def arrays(self) -> LinearArrays:
        """The data."""
        return self._arrays


def solve_apart(backend: str, model: LinearModel, limits: SolverLimits) -> SolverResult:
    """Minimises a model in another process, killed if it still runs 2 s after the time limit.

    Args:
      backend: full name of the solver's Python module, which has a function `solve`.
      model: the model.
      limits: `watch` is called in this process; `points` is ignored.

    Returns:
      The solver's result; if it was killed, its last point, unchecked, and its best bound.

    Raises:
      SolverError: the solver failed, or its process ended without a result.
    """
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "olla_xla.solvers.apart"]
    pipe, until = subprocess.PIPE, time.monotonic() + limits.time_limit
    plain = dataclasses.replace(limits, watch=None, points=None)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout, messages), daemon=True)
        reader.start()
        given = (backend, model.arrays(), model.start, plain, limits.watch is not None, time.time())
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                pickle.dump(given, process.stdin)
            return _followed(messages, limits, until)
        finally:
            process.kill()
            reader.join()


def _read(stream: IO[bytes], messages: queue.SimpleQueue[Any]) -> None:
    """Puts what the process writes into `messages`, and None at its end."""
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            messages.put(pickle.load(stream))
    messages.put(None)


def _followed(messages: queue.SimpleQueue[Any], limits: SolverLimits, until: float) -> SolverResult:
    """The result, or the point and bound reported until the time was up."""
    x, bound = None, -INFINITY
    while True:
        try:
            left = max(until + _GRACE - time.monotonic(), 0)
            said = messages.get(timeout=min(left, _LONGEST_WAIT))
        except queue.Empty:
            status = Status.UNKNOWN if x is None else Status.FEASIBLE
            message = f"ended {_GRACE:g} s after its time limit"
            return SolverResult(status, bound=bound, x=x, message=message)
        if said is None:
            raise SolverError("the solver's process ended without a result")
        kind, value = said
        if kind == "result":
            return value
        if kind == "error":
            raise SolverError(value)
        if kind == "point":
            x = value
        else:
            bound = max(bound, value[1])
            if limits.watch is not None:
                limits.watch(*value)


def main() -> int:
    """Reads a pickled model from stdin, solves it, and writes progress and result to stdout."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints goes to stderr
    lock = threading.Lock()

    def say(kind: str, value: Any) -> None:
        with lock:
            pickle.dump((kind, value), out)
            out.flush()

    backend, arrays, start, limits, watched, sent = pickle.load(sys.stdin.buffer)
    left = max(limits.time_limit - (time.time() - sent), _LEAST_SECONDS)
    limits = dataclasses.replace(
        limits,
        time_limit=left,
        watch=(lambda value, bound: say("progress", (value, bound))) if watched else None,
        points=lambda x: say("point", x),
    )
    try:
        model: Any = _Given(arrays, start)
        say("result", importlib.import_module(backend).solve(model, limits))
    except Exception as error:  # a solver may raise anything; it is reported, never lost
        say("error", f"{type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
