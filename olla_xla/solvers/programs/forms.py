"""Orders of least peak by a solver: any form of the problem, whose answer is checked."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from olla_xla.check.graph import check_schedule
from olla_xla.errors import CheckError, InputError, SolverError
from olla_xla.problem import refusals
from olla_xla.problem.graph import TensorGraph
from olla_xla.solvers.linear import LinearModel, SolverLimits, SolverResult, Status
from olla_xla.solvers.programs.prepared import Prepared, Scale, prepare
from olla_xla.solvers.programs.running_ilp import RunningIlp
from olla_xla.solvers.solve import BACKENDS, solve

_LEAST_SECONDS = 1e-3  # of a solver, however long building took

_logger = logging.getLogger("olla_xla")


class Task(Protocol):
    """Protocol: a problem, to find an order of one graph with the least peak, as solvers take it.

    Attributes:
      scale: of its units. size: `variables`, `rows` and `nonzeros` of a linear model, else zeros.
    """

    scale: Scale
    size: dict[str, int]

    def solve(self, limits: SolverLimits, backend: str) -> SolverResult:
        """Runs a solver, given by name, on the problem. SolverError if it fails."""
        ...

    def order(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Translates a solver's point, float64 [variables], into an order, int64 [n]."""
        ...


class Linear:
    """A least-peak problem stated as a linear model, which solvers (backends) solve.

    Args:
      built: the model, which maps orders to points and back, as RunningIlp does.
      start: int64 [n], an order to begin with; becomes the model's start.
    """

    def __init__(self, built: Any, start: NDArray[np.int64]) -> None:
        self.built = built
        model: LinearModel = built.model
        model.start = built.start(start)
        self.scale: Scale = built.scale
        self.size = {
            "variables": model.variables,
            "rows": model.rows,
            "nonzeros": model.nonzeros,
        }

    def solve(self, limits: SolverLimits, backend: str) -> SolverResult:
        """Solves the linear model by one backend, given by its name (see `solvers.solve`)."""
        return solve(self.built.model, limits, [backend])

    def order(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Translates a solver's point, float64 [variables], into an order, int64 [n]."""
        return self.built.decode(x)


def running(prepared: Prepared, bound_bytes: int) -> Linear:
    """States the problem of the least lifetime peak of a graph as the integer program `RunningIlp`,
    which begins with the graph's start. `bound_bytes`: a known lower bound on the peak.
    """
    return Linear(RunningIlp(prepared.arrays, bound_bytes=bound_bytes), prepared.start)


@dataclasses.dataclass(frozen=True)
class ExactOrder:
    """An order that a solver found, and what it proved about the least peak.

    Attributes:
      order: int64 [n], operators in execution order; accepted by the independent check.
      peak_bytes: its lifetime peak, as the statement of the problem (`form`) counts it.
      bound_bytes: no order has a smaller one.
      status: OPTIMAL (`peak_bytes` is the least of all), FEASIBLE at a limit, or ERROR: every
        backend failed, and the order is the start.
      seconds: building, solving and checking.
      backend: which solver. message: what it said. failures: of the backends tried before.
      variables, rows, nonzeros: size of the linear model; 0 where it is none.
    """

    order: NDArray[np.int64]
    peak_bytes: int
    bound_bytes: int
    status: Status
    seconds: float
    backend: str
    message: str
    failures: tuple[str, ...]
    variables: int
    rows: int
    nonzeros: int


def least_peak(
    graph: TensorGraph,
    *,
    form: Callable[[Prepared, int], Task] = running,
    limits: SolverLimits | None = None,
    backends: Sequence[str] = ("highs", "cpsat"),
    start: Sequence[int] | NDArray[np.int64] | None = None,
    bound_bytes: int = 0,
    edges: Sequence[tuple[int, int]] = (),
    counted: Callable[[TensorGraph], TensorGraph] | None = None,
    reduce: bool = True,
) -> ExactOrder:
    """Finds an order of least lifetime peak, or the best within limits. If a solver (backend)
    fails, is not licensed, or returns a point that is no order or has another peak than it claims,
    that is logged and reported in `failures`, and the next one is used.

    Args:
      graph: the graph. form: states the problem: (prepared graph, known lower bound) -> the task.
      limits: of each solver, less the seconds that building takes; `watch` is called with bytes.
      backends: names, in the order to try them.
      start: int64 [n], an order to begin with; by default some legal one.
      bound_bytes: a known lower bound on the peak, as `form` counts it.
      edges: additional control edges, (before, after). They exclude orders, so that only
        `bound_bytes` then bounds the peak.
      counted: maps the graph to one with only the bytes that `form` counts (`prepare`).
      reduce: condense the graph first; the optimum stays the same.

    Raises:
      GraphError: a cycle, a negative size, a tensor without source; it names the operators.
      InputError: no such backend.
      CheckError: the start is not a legal order.
    """
    if unknown := [name for name in backends if name not in BACKENDS]:
        raise InputError(f"backends={unknown}: choose some of {', '.join(BACKENDS)}")
    started = time.monotonic()
    prepared = prepare(graph, counted=counted, edges=edges, reduce=reduce, start=start)
    task = form(prepared, bound_bytes)
    limits = _watched_in_bytes(limits or SolverLimits(), task.scale)
    left = limits.time_limit - (time.monotonic() - started)
    limits = dataclasses.replace(limits, time_limit=max(left, _LEAST_SECONDS))
    result, order, peak = _first_sound(task, prepared, limits, backends)
    bound, status = bound_bytes, result.status
    if not edges:
        bound = max(bound, task.scale.to_bytes_up(result.bound))
    elif status is Status.OPTIMAL and peak > bound:
        status = Status.FEASIBLE
    if status is Status.FEASIBLE and peak <= bound:  # a solver out of time need not have noticed
        status = Status.OPTIMAL
    return ExactOrder(
        order=order,
        peak_bytes=peak,
        bound_bytes=bound,
        status=status,
        seconds=time.monotonic() - started,
        backend=result.backend,
        message=result.message,
        failures=result.failures,
        variables=task.size["variables"],
        rows=task.size["rows"],
        nonzeros=task.size["nonzeros"],
    )


def _watched_in_bytes(limits: SolverLimits, scale: Scale) -> SolverLimits:
    """The limits for a solver that reports peaks in `scale`'s units; its watch still gets bytes."""
    watch = limits.watch
    if watch is None:
        return limits

    def on_progress(value: float | None, bound: float) -> None:
        best = None if value is None else scale.to_bytes(value)
        watch(best, scale.to_bytes_up(bound))

    return dataclasses.replace(limits, watch=on_progress)


def _first_sound(
    task: Task, prepared: Prepared, limits: SolverLimits, backends: Sequence[str]
) -> tuple[SolverResult, NDArray[np.int64], int]:
    """Runs one solver after the other until an order passes the independent check: returns (result,
    order of the original graph, peak in bytes). If all fail: (a result with status ERROR, the
    start, its peak).
    """
    failures: list[str] = []
    for name in backends:
        try:
            result = task.solve(limits, name)
            reasons = result.failures
            if result.status is not Status.ERROR:
                order = prepared.back(task.order(result.point()))
                peak = _verified_peak(prepared.graph, order, result, task.scale)
                refusals.accepted()
                return dataclasses.replace(result, failures=tuple(failures)), order, peak
        except (CheckError, SolverError) as error:
            if isinstance(error, CheckError):
                refusals.note(f"the order that {name} found", error)
            reasons = (f"{name}: {type(error).__name__}: {error}",)
        for reason in reasons:
            _logger.warning("solver failed: %s", reason)
        failures += reasons
    order = prepared.back(prepared.start)
    peak = check_schedule(prepared.graph, order.tolist())
    failed = SolverResult(Status.ERROR, message="every backend failed", failures=tuple(failures))
    return failed, order, peak


def _verified_peak(
    graph: TensorGraph, order: NDArray[np.int64], result: SolverResult, scale: Scale
) -> int:
    """Checks an order independently; returns its lifetime peak in bytes. Raises SolverError if that
    contradicts the solver's `result`: its value, that it is optimal, or its bound.
    """
    peak = check_schedule(graph, order.tolist())
    value = math.inf if result.value is None else scale.to_bytes(result.value)
    proven = result.status is Status.OPTIMAL and peak != value
    if peak > value or proven or peak < scale.to_bytes_up(result.bound):
        raise SolverError(
            f"the solver claims a peak of {result.value} ({result.status}) and a bound of "
            f"{result.bound} units of {scale.unit} bytes, but the order has {peak} bytes"
        )
    return peak
