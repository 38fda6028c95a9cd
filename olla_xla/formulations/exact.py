"""Orders of least peak by a solver: every formulation behind one call, its answer refereed."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from olla_xla.backends import solve
from olla_xla.bounds import topological_order
from olla_xla.check import check_schedule
from olla_xla.errors import InputError, SolverError
from olla_xla.formulations.lifetimes_ilp import LifetimeIlp
from olla_xla.formulations.plain import plain_graph, renumbered
from olla_xla.formulations.running_ilp import RunningIlp
from olla_xla.formulations.scale import Scale
from olla_xla.lifetimes import GraphArrays
from olla_xla.linear import Limits, Model, Result, Status
from olla_xla.problem import TensorGraph
from olla_xla.schedule.reduce import reduce_graph

__all__ = ["FORMS", "ExactOrder", "least_peak"]


class Formulation(Protocol):
    """A model of all orders of a graph, and the way from one to the other and back."""

    model: Model
    scale: Scale

    def start(self, order: Sequence[int] | np.ndarray) -> np.ndarray:
        """The point of an order."""
        ...

    def decode(self, x: np.ndarray) -> np.ndarray:
        """The order of a point."""
        ...


FORMS: dict[str, Callable[..., Formulation]] = {
    "running": RunningIlp,
    "lifetimes": LifetimeIlp,
    "plain": functools.partial(LifetimeIlp, plain=True),
}
"""By name: `running` and `lifetimes` are serial and count all that the evaluator counts; `plain` is
the paper's ILP to the letter, of `plain_graph(graph)`."""


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
      variables, rows, nonzeros: size of the model.
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
    backends: Sequence[str] = ("highs", "cpsat"),
    start: Sequence[int] | np.ndarray | None = None,
    bound_bytes: int = 0,
    reduce: bool = True,
) -> ExactOrder:
    """Finds an order of least lifetime peak, or the best within limits.

    Args:
      graph: the graph. form: from `FORMS`.
      equations: of the form, those to use; all by default.
      limits: of each solver. backends: names from `olla_xla.backends`, in the order to try them.
      start: an order to begin with; by default some legal one.
      bound_bytes: a known lower bound on the peak, in the reading of the form.
      reduce: condense the graph first; the optimum stays the same.

    Raises:
      GraphError: a cycle, a negative size, a tensor without source; it names the operators.
      InputError: no such form, equation or backend.
      CheckError: the start is not a legal order.
      SolverError: a solver's proof contradicts the referee.
    """
    if form not in FORMS:
        raise InputError(f"form={form!r}: choose one of {', '.join(FORMS)}")
    started = time.monotonic()
    graph.validate()
    if form == "plain":
        graph = plain_graph(graph)
    # The reduction wants ids in a topological order.
    ids = topological_order(graph)
    named = renumbered(graph, ids.tolist())
    arrays = GraphArrays.of(named)
    first = np.arange(arrays.n)
    if start is not None:
        check_schedule(graph, list(start))
        first = np.argsort(ids)[np.asarray(start, np.int64)]
    if reduce and form != "plain" and _reducible(arrays):
        reduced = reduce_graph(arrays)
        arrays, first, expand = reduced.arrays, reduced.contract(first), reduced.expand
    else:
        expand = np.asarray
    chosen = {} if equations is None else {"equations": equations}
    built = FORMS[form](arrays, bound_bytes=bound_bytes, **chosen)
    built.model.start = built.start(first)
    result = solve(built.model, limits, backends)
    order = ids[expand(first if result.x is None else built.decode(result.x))]
    bound = max(bound_bytes, built.scale.to_bytes(max(result.bound, 0)))
    return ExactOrder(
        order=order,
        peak_bytes=_refereed(graph, order, result, built.scale),
        bound_bytes=bound,
        status=result.status,
        seconds=time.monotonic() - started,
        backend=result.backend,
        message=result.message,
        failures=result.failures,
        variables=built.model.variables,
        rows=built.model.rows,
        nonzeros=built.model.nonzeros,
    )


def _reducible(g: GraphArrays) -> bool:
    """Whether condensing keeps the optimum.

    It drops empty tensors, also one that passes an empty buffer on to a tensor with bytes, which
    then takes over no other input.
    """
    empty = g.pair_must & (g.bytes[g.pair_a] == 0) & (g.bytes[g.pair_b] > 0)
    return not empty.any()


def _refereed(graph: TensorGraph, order: np.ndarray, result: Result, scale: Scale) -> int:
    """The referee's peak of an order, held against what the solver claims."""
    peak = check_schedule(graph, order.tolist())
    value = math.inf if result.value is None else scale.to_bytes(result.value)
    proven = result.status is Status.OPTIMAL and peak != value
    if peak > value or proven or peak < scale.to_bytes(max(result.bound, 0)):
        raise SolverError(
            f"{result.backend} claims a peak of {result.value} ({result.status.value}) and a bound "
            f"of {result.bound} units of {scale.unit} bytes, but the order has {peak} bytes"
        )
    return peak
