"""Solvers, one file each; nothing outside imports one.

A backend of the linear model is a module with two names: `IGNORES`, the fields of `SolverLimits`
that its solver has no counterpart for, and `solve(model, limits) -> SolverResult`. To add one,
write the file and its line in `_REGISTRY`.
"""

import contextlib
import dataclasses
import importlib
import math
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import InputError, SolverError
from olla_xla.solvers.linear import (
    INFINITY,
    LinearArrays,
    LinearModel,
    SolverLimits,
    SolverResult,
    Status,
    round_point,
    violation,
)
from olla_xla.version import to_install

_REGISTRY = {
    "highs": "olla_xla.solvers.backends.highs",
    "cpsat": "olla_xla.solvers.backends.cpsat",
    "gurobi": "olla_xla.solvers.backends.gurobi",
}

_EXTRAS = ("cpsat", "gurobi")  # backends whose solver is an extra of this package

_APART_ROWS = 2_000
"""Models of this many rows are worth a process of 0.5 s; smaller ones never overran a limit."""

BACKENDS = tuple(_REGISTRY)
"""Names of all backends, in the order in which they are tried by default."""

Solver = Callable[[LinearModel, SolverLimits], SolverResult]


def solve(
    model: LinearModel,
    limits: SolverLimits | None = None,
    backends: Sequence[str] = ("highs", "cpsat"),
) -> SolverResult:
    """Minimises a model with the first solver (backend) that does it without a failure. Whatever a
    solver returns is checked here: integer variables are rounded within a tolerance, then every
    bound and row is tested, and the bound is compared with the value and the start. A solver that
    is missing, unlicensed or caught contradicting itself is reported in `SolverResult.failures`,
    and the next one is used.

    Args:
      model: what to minimise; `model.start` is passed on as a warm start.
      limits: per backend; the default is `SolverLimits()`.
      backends: names from `BACKENDS`, in the order to try them.

    Returns:
      A result whose point, if any, is feasible. Its status is ERROR only if every backend failed.

    Raises:
      InputError: no backend or an unknown one, or a start that is not feasible.
    """
    unknown = [name for name in backends if name not in _REGISTRY]
    if unknown or not backends:
        raise InputError(f"backends={list(backends)}: choose some of {', '.join(BACKENDS)}")
    named = [(name, _loader(_REGISTRY[name])) for name in backends]
    return solve_with(model, limits or SolverLimits(), named)


def solve_with(
    model: LinearModel, limits: SolverLimits, solvers: Sequence[tuple[str, Callable[[], Solver]]]
) -> SolverResult:
    """Minimises a model as `solve` does, with solvers as (name, function that returns one)."""
    start = _checked_start(model)
    failures: list[str] = []
    for name, load in solvers:
        started = time.monotonic()
        try:
            result = _within(limits.gap, load()(model, limits))
            result = _checked(model, result, start)
        except ModuleNotFoundError as error:
            hint = f"; {to_install(name)}" if name in _EXTRAS else ""
            failures.append(f"{name}: {error.name} is missing{hint}")
            continue
        except Exception as error:  # a solver may raise anything; it is reported, never lost
            failures.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if result.status is Status.ERROR:
            failures.append(f"{name}: {result.message}")
            continue
        return dataclasses.replace(
            result,
            backend=name,
            seconds=time.monotonic() - started,
            failures=tuple(failures),
        )
    return SolverResult(Status.ERROR, message="every backend failed", failures=tuple(failures))


def _loader(module: str) -> Callable[[], Solver]:
    def load() -> Solver:
        try:
            backend = importlib.import_module(module)
        except ModuleNotFoundError:
            raise  # `solve_with` says what to install
        except ImportError as error:
            raise SolverError(f"is not usable here: {error}") from error
        ignored: frozenset[str] = backend.IGNORES

        def run(model: LinearModel, limits: SolverLimits) -> SolverResult:
            apart = limits.apart and model.rows >= _APART_ROWS
            result = solve_apart(module, model, limits) if apart else backend.solve(model, limits)
            unused = [f"{k} does not apply" for k in sorted(ignored) if getattr(limits, k)]
            return dataclasses.replace(result, message="; ".join([result.message, *unused]))

        return run

    return load


def _checked_start(model: LinearModel) -> SolverResult | None:
    """`model.start`, checked, as a FEASIBLE result; None without one. InputError if infeasible."""
    if model.start is None:
        return None
    try:
        x = round_point(model.arrays(), model.start)
    except SolverError as error:
        raise InputError(f"the initial solution is not valid: {error}") from error
    broken = violation(model, x)
    if broken:
        raise InputError(f"the initial solution is not feasible: {broken}")
    return SolverResult(Status.FEASIBLE, model.value(x), x=x)


def _checked(model: LinearModel, result: SolverResult, start: SolverResult | None) -> SolverResult:
    """A solver's result with its point rounded and tested (or the start if that is better), its
    value computed anew, the bound of an integer objective rounded up, and status OPTIMAL where both
    meet; with status ERROR, as it is. Raises SolverError if the point is not feasible, or statuses,
    values and bounds contradict each other.
    """
    x, value, bound = result.x, None, known(result.bound)
    if result.status is Status.ERROR:
        return result
    if x is not None:
        x = round_point(model.arrays(), x)
        broken = violation(model, x)
        if broken:
            raise SolverError(f"the solver returned an infeasible solution: {broken}")
        value = model.value(x)
    elif result.status in (Status.OPTIMAL, Status.FEASIBLE):
        raise SolverError(f"the solver says {result.status}, but returned no solution")
    if start is not None and result.status is Status.INFEASIBLE:
        raise SolverError("the solver says infeasible, but the initial solution is feasible")
    if model.arrays().integral_objective and math.isfinite(bound):
        bound = math.ceil(bound - model.offset - 1e-6) + model.offset
    status, message = result.status, result.message
    if start is not None and (value is None or start.value < value):  # type: ignore[operator]
        if status is Status.OPTIMAL:
            raise SolverError(f"the solver's optimum is {value}, but it began at {start.value}")
        x, value, status = start.x, start.value, Status.FEASIBLE
        message = f"{message}; found nothing better than the initial solution"
    if value is not None and bound > value + _slack(value):
        raise SolverError(f"the solver claims the bound {bound}, but its solution has {value}")
    if status is Status.OPTIMAL and value is not None and value > bound + _slack(value):
        raise SolverError(f"the solver's optimum is {value}, but its bound is {bound}")
    if status is Status.FEASIBLE and value is not None and value <= bound:
        status = Status.OPTIMAL
    return dataclasses.replace(
        result, status=status, value=value, bound=bound, x=x, message=message
    )


def _within(gap: float, result: SolverResult) -> SolverResult:
    """The result; if the solver could end at a `gap` above its bound, OPTIMAL becomes FEASIBLE."""
    if not gap or result.status is not Status.OPTIMAL:
        return result
    return dataclasses.replace(
        result, status=Status.FEASIBLE, message=f"{result.message} within {100 * gap:g} %"
    )


def _slack(value: float) -> float:
    """The rounding error allowed between an objective value and its bound."""
    return 1e-6 * max(1.0, abs(value))


_INFINITE = 1e20
"""From here on a number is some solver's infinity; CP-SAT's integers end at 2**63, or 9.2e18."""

_ROUNDING = 1e-6  # units by which a bound in floating-point numbers may be too high


def known(bound: float) -> float:
    """Returns `bound`, or minus infinity if its size is 1e20 or more: a solver then knows none."""
    return bound if -_INFINITE < bound < _INFINITE else -math.inf


def whole_units(bound: float) -> int:
    """Rounds a lower bound up, less a solver's rounding error; 0 where it is negative or unknown.

    Example:
      >>> whole_units(2.3), whole_units(2.0000001), whole_units(-math.inf)
      (3, 2, 0)
    """
    bound = known(bound)
    return max(math.ceil(bound - _ROUNDING), 0) if math.isfinite(bound) else 0


# A solver in a process of its own, which is killed if it does not stop in time.
#
# Solvers check their clocks between the parts of their work, and some parts (reading the model,
# probing, cliques, a first relaxation) take minutes on models of a hundred thousand rows, without a
# callback or a check for interrupts. The bound and the last point reported until then are used.


_GRACE = 2.0  # seconds past the limit in which a solver may still stop by itself

_LEAST_SECONDS = 0.01

_LONGEST_WAIT = threading.TIMEOUT_MAX / 2  # seconds; the platform has a longest timeout


class _Given:
    """A model's arrays and start, with the attributes that a backend's `solve` reads of a model."""

    def __init__(self, arrays: LinearArrays, start: NDArray[np.float64] | None) -> None:
        self._arrays = arrays
        self.start = start
        self.variables, self.rows = len(arrays.cost), len(arrays.row_lower)

    def arrays(self) -> LinearArrays:
        """The model's arrays."""
        return self._arrays

    def variable_name(self, column: int) -> str:
        """A made-up name for the variable in a column: "x" and its number."""
        return f"x{column}"


def solve_apart(backend: str, model: LinearModel, limits: SolverLimits) -> SolverResult:
    """Minimises a model in another process, killed if it still runs 2 s after the time limit.
    Returns its result; if it was killed, its last point, unchecked, and its best bound. Raises
    SolverError if the solver failed, or its process ended without a result.

    Args:
      backend: full name of the solver's Python module, which has a function `solve`.
      model: the model. limits: `watch` is called in this process; `points` is ignored.
    """
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "olla_xla.solvers.solve"]
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
    """Puts each object that a solver's process pickles to `stream` into `messages`, then None."""
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            messages.put(pickle.load(stream))
    messages.put(None)


def _followed(messages: queue.SimpleQueue[Any], limits: SolverLimits, until: float) -> SolverResult:
    """Waits for a solver's process, by its `messages`: returns its result, or, 2 s after the time
    `until`, the point and bound reported last. Calls `limits.watch` at its progress. SolverError if
    it fails or ends without a result.
    """
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
    """Reads a pickled model from stdin, solves it, writes progress, result or error to stdout."""
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
        ours = isinstance(error, SolverError)
        say("error", str(error) if ours else f"{type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
