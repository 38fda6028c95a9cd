"""Orders of least peak by a solver: every formulation behind one call, its answer refereed."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from olla_xla.check.graph import check_schedule
from olla_xla.errors import CheckError, InputError, SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.mincut import least_live
from olla_xla.problem import refusals
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.exact.interval_form import interval_model, order_of_steps
from olla_xla.schedule.exact.lifetimes_ilp import LifetimeIlp
from olla_xla.schedule.exact.prepared import Prepared, prepare
from olla_xla.schedule.exact.running_ilp import RunningIlp
from olla_xla.schedule.exact.scale import Scale
from olla_xla.solvers.linear import Limits, Model, Result, Status
from olla_xla.solvers.solve import BACKENDS, solve, solve_intervals

__all__ = ["FORMS", "ExactOrder", "Formulation", "least_peak", "linear_model"]


_LEAST_SECONDS = 1e-3  # of a solver, however long building took

_logger = logging.getLogger("olla_xla")


class Formulation(Protocol):
    """A linear model of all orders of a graph, and the way from one to the other and back."""

    model: Model
    scale: Scale

    def start(self, order: Sequence[int] | np.ndarray) -> np.ndarray:
        """The point of an order."""
        ...

    def decode(self, x: np.ndarray) -> np.ndarray:
        """The order of a point."""
        ...


_LINEAR: dict[str, Callable[..., Formulation]] = {
    "running": RunningIlp,
    "lifetimes": LifetimeIlp,
    "plain": functools.partial(LifetimeIlp, plain=True),
}

FORMS = {**{name: BACKENDS for name in _LINEAR}, "intervals": ("cpsat",)}
"""Name of a form -> the backends that take it. `running`, `lifetimes` (integer linear models) and
`intervals` (CP-SAT's own terms) are serial and count all that the evaluator counts; `plain` is the
paper's ILP to the letter, of `plain_graph(graph)`."""


@dataclasses.dataclass(frozen=True)
class ExactOrder:
    """What a solver found out about a graph.

    Attributes:
      order: int64 [n], operators in execution order; accepted by the referee.
      peak_bytes: its lifetime peak, in the reading of the form.
      bound_bytes: no order has a smaller one.
      status: OPTIMAL (`peak_bytes` is the least of all), FEASIBLE at a limit, or ERROR: every
        backend failed, and the order is the start.
      seconds: building, solving and checking.
      backend: which solver. message: what it said. failures: of the backends tried before.
      variables, rows, nonzeros: size of the linear model; 0 for `intervals`.
    """

    order: np.ndarray
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
    form: str = "running",
    equations: Collection[str] | None = None,
    limits: Limits | None = None,
    backends: Sequence[str] | None = None,
    start: Sequence[int] | np.ndarray | None = None,
    bound_bytes: int = 0,
    reduce: bool = True,
    early_updates: bool = False,
    cuts: bool = False,
) -> ExactOrder:
    """Finds an order of least lifetime peak, or the best within limits.

    A backend that fails, is not licensed or returns a point that is no order of the peak it claims
    is logged and reported in `failures`, and the next one is used.

    Args:
      graph: the graph. form: from `FORMS`.
      equations: of a linear form, those to use; all by default.
      limits: of each solver; building comes off its seconds, and its watch is told bytes.
      backends: names, in the order to try them; HiGHS and CP-SAT by default.
      start: an order to begin with; by default some legal one.
      bound_bytes: a known lower bound on the peak, in the reading of the form.
      reduce: condense the graph first; the optimum stays the same.
      early_updates: add the control edges of section 4.3. They take orders away, so that only
        `bound_bytes` then bounds the peak.
      cuts: tighten the model by the least live bytes at each operator (`memory.mincut`), which
        no order's peak is below; the optimum stays the same.

    Raises:
      GraphError: a cycle, a negative size, a tensor without source; it names the operators.
      InputError: no such form, equation or backend, or a backend that cannot take the form.
      CheckError: the start is not a legal order.
    """
    names = _backends(form, equations, backends)
    started = time.monotonic()
    prepared = prepare(
        graph, plain=form == "plain", early_updates=early_updates, reduce=reduce, start=start
    )
    tightest = max(bound_bytes, _cut(prepared.arrays)) if cuts else bound_bytes
    task = (
        _Intervals(prepared, tightest)
        if form == "intervals"
        else _Linear(prepared, form, equations, tightest)
    )
    limits = _told_bytes(limits or Limits(), task.scale)
    left = limits.time_limit - (time.monotonic() - started)
    limits = dataclasses.replace(limits, time_limit=max(left, _LEAST_SECONDS))
    result, order, peak = _first_sound(task, prepared, limits, names)
    bound, status = bound_bytes, result.status
    if not early_updates:
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
        **task.size,
    )


def linear_model(
    prepared: Prepared,
    form: str,
    *,
    equations: Collection[str] | None = None,
    bound_bytes: int = 0,
) -> Formulation:
    """The linear form of that name, of a prepared graph."""
    chosen = {} if equations is None else {"equations": equations}
    return _LINEAR[form](prepared.arrays, bound_bytes=bound_bytes, **chosen)


def _told_bytes(limits: Limits, scale: Scale) -> Limits:
    """The limits with a watch that is told units."""
    watch = limits.watch
    if watch is None:
        return limits

    def told(value: float | None, bound: float) -> None:
        best = None if value is None else scale.to_bytes(value)
        watch(best, scale.to_bytes_up(bound))

    return dataclasses.replace(limits, watch=told)


def _cut(g: GraphArrays) -> int:
    """The largest over all operators of the least bytes that can be live there."""
    return max((least_live(g, v).bytes for v in range(g.n)), default=0)


def _backends(
    form: str, equations: Collection[str] | None, backends: Sequence[str] | None
) -> Sequence[str]:
    if form not in FORMS:
        raise InputError(f"form={form!r}: choose one of {', '.join(FORMS)}")
    if form == "intervals" and equations is not None:
        raise InputError("form='intervals' has no equations to choose from")
    if backends is None:
        return [name for name in ("highs", "cpsat") if name in FORMS[form]]
    unknown = [name for name in backends if name not in FORMS[form]]
    if unknown or not backends:
        raise InputError(f"backends={list(backends)}: choose some of {', '.join(FORMS[form])}")
    return backends


class _Linear:
    """A linear form of a graph, for backends of the linear model."""

    def __init__(
        self, prepared: Prepared, form: str, equations: Collection[str] | None, bound: int
    ) -> None:
        self._built = linear_model(prepared, form, equations=equations, bound_bytes=bound)
        model = self._built.model
        model.start = self._built.start(prepared.start)
        self.scale = self._built.scale
        self.size = {
            "variables": model.variables,
            "rows": model.rows,
            "nonzeros": model.nonzeros,
        }

    def solve(self, limits: Limits, backend: str) -> Result:
        return solve(self._built.model, limits, [backend])

    def order(self, x: np.ndarray) -> np.ndarray:
        return self._built.decode(x)


class _Intervals:
    """The intervals of a graph, for CP-SAT."""

    def __init__(self, prepared: Prepared, bound: int) -> None:
        g = prepared.arrays
        self._model = interval_model(g, bound_bytes=bound, start=prepared.start)
        self.scale = Scale.of(g)
        self.size = {"variables": 0, "rows": 0, "nonzeros": 0}
        self._start = g.positions(prepared.start).astype(np.float64)
        self._start_value = self.scale.to_units(peak_bytes(g, prepared.start))

    def solve(self, limits: Limits, backend: str) -> Result:
        result = solve_intervals(self._model, limits, backend)
        if result.status is Status.ERROR:
            return result
        if result.value is not None and result.value <= self._start_value:
            return result
        if result.status is Status.OPTIMAL:
            raise SolverError(f"says {result.value} is optimal, the start has {self._start_value}")
        return dataclasses.replace(
            result,
            status=Status.OPTIMAL if self._start_value <= result.bound else Status.FEASIBLE,
            value=self._start_value,
            x=self._start,
            message=f"{result.message}; nothing better than the start",
        )

    def order(self, x: np.ndarray) -> np.ndarray:
        return order_of_steps(x)


def _first_sound(
    task: _Linear | _Intervals, prepared: Prepared, limits: Limits, backends: Sequence[str]
) -> tuple[Result, np.ndarray, int]:
    """The result of the first backend that the referee agrees with, its order and its peak."""
    failures: list[str] = []
    for name in backends:
        try:
            result = task.solve(limits, name)
            reasons = result.failures
            if result.status is not Status.ERROR:
                order = prepared.back(task.order(result.point()))
                peak = _refereed(prepared.graph, order, result, task.scale)
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
    failed = Result(Status.ERROR, message="every backend failed", failures=tuple(failures))
    return failed, order, peak


def _refereed(graph: TensorGraph, order: np.ndarray, result: Result, scale: Scale) -> int:
    """The referee's peak of an order, held against what the solver claims."""
    peak = check_schedule(graph, order.tolist())
    value = math.inf if result.value is None else scale.to_bytes(result.value)
    proven = result.status is Status.OPTIMAL and peak != value
    if peak > value or proven or peak < scale.to_bytes_up(result.bound):
        raise SolverError(
            f"claims a peak of {result.value} ({result.status}) and a bound of "
            f"{result.bound} units of {scale.unit} bytes, but the order has {peak} bytes"
        )
    return peak
