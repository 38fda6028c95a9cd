"""Every form of the ordering problem by its name, and `least_peak` by any of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from benchmarks.papers.ilp_forms.equations import RunningBy
from benchmarks.papers.ilp_forms.lifetimes_ilp import LifetimeIlp
from benchmarks.papers.ilp_forms.plain import plain_graph
from benchmarks.special_solver import solve_special
from olla_xla.errors import InputError, SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.mincut import least_live
from olla_xla.problem.graph import TensorGraph
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status
from olla_xla.solvers.programs import forms
from olla_xla.solvers.programs.forms import ExactOrder, Linear, Task
from olla_xla.solvers.programs.orders import control_edges
from olla_xla.solvers.programs.prepared import Prepared, Scale
from olla_xla.solvers.solve import BACKENDS

_SOLVERS = {"cpsat": "benchmarks.papers.ilp_forms.intervals"}


@dataclasses.dataclass(frozen=True, eq=False)
class IntervalModel:
    """A graph to be ordered; the optimum is the least peak, in the units of `Scale.of(graph)`.

    Attributes:
      graph: the graph. bound_bytes: a known lower bound on the peak. start: a legal order, or None.
    """

    graph: GraphArrays
    bound_bytes: int = 0
    start: Sequence[int] | np.ndarray | None = None


class Intervals:
    """The intervals of a graph, for CP-SAT."""

    def __init__(self, prepared: Prepared, equations: Collection[str] | None, bound: int) -> None:
        if equations is not None:
            raise InputError("form='intervals' has no equations to choose from")
        g = prepared.arrays
        self._model = IntervalModel(g, bound, prepared.start)
        self.scale = Scale.of(g)
        self.size = {"variables": 0, "rows": 0, "nonzeros": 0}
        self._start = g.positions(prepared.start).astype(np.float64)
        self._start_value = self.scale.to_units(peak_bytes(g, prepared.start))

    def solve(self, limits: SolverLimits, backend: str) -> SolverResult:
        """What CP-SAT finds."""
        result = solve_special(_SOLVERS, self._model, limits, backend)
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
        """The order of a point. Raises SolverError if two operators share a step."""
        order = np.argsort(x, kind="stable")
        if not np.array_equal(x[order], np.arange(len(x))):
            raise SolverError("the steps of the operators are not a permutation")
        return order


def _linear(build: Callable[..., Any]) -> Callable[..., Linear]:
    def task(prepared: Prepared, equations: Collection[str] | None, bound: int) -> Linear:
        chosen = {} if equations is None else {"equations": equations}
        return Linear(build(prepared.arrays, bound_bytes=bound, **chosen), prepared.start)

    return task


@dataclasses.dataclass(frozen=True)
class ProblemForm:
    """A way to state the problem of a least peak, such as a kind of integer program.

    Attributes:
      task: (prepared graph, equations to use or None for all, known lower bound on the peak in
        bytes) -> the task.
      backends: names of the backends that can solve it.
      counted: leaves in a graph what the form counts; None: all.
    """

    task: Callable[[Prepared, Collection[str] | None, int], Task]
    backends: tuple[str, ...] = BACKENDS
    counted: Callable[[TensorGraph], TensorGraph] | None = None


_FORMS = {
    "running": ProblemForm(_linear(RunningBy)),
    "lifetimes": ProblemForm(_linear(LifetimeIlp)),
    "plain": ProblemForm(_linear(functools.partial(LifetimeIlp, plain=True)), counted=plain_graph),
    "intervals": ProblemForm(Intervals, tuple(_SOLVERS)),
}

FORMS = {name: form.backends for name, form in _FORMS.items()}
"""Name of a form -> the backends that take it. `running`, `lifetimes` (integer linear models) and
`intervals` (CP-SAT's own terms) are serial and count all that the evaluator counts; `plain` is the
paper's ILP to the letter, of `plain_graph(graph)`."""


def form_named(name: str) -> ProblemForm:
    """The form of that name. Raises InputError."""
    if name not in _FORMS:
        raise InputError(f"form={name!r}: choose one of {', '.join(_FORMS)}")
    return _FORMS[name]


def least_peak(
    graph: TensorGraph,
    *,
    form: str = "running",
    equations: Collection[str] | None = None,
    backends: Sequence[str] | None = None,
    early_updates: bool = False,
    cuts: bool = False,
    **asked: Any,
) -> ExactOrder:
    """`solvers.programs.forms.least_peak` by a form of `FORMS`.

    Args:
      graph: the graph. form: a name. equations: of a linear form, those to use; all by default.
      backends: names, in the order to try them; HiGHS and CP-SAT by default.
      early_updates: add the control edges of section 4.3.
      cuts: tighten the model by the least live bytes at each operator (`memory.mincut`), a lower
        bound on the peak of every order; the optimum stays the same.
      asked: what that takes besides.

    Raises:
      InputError: no such form or equation, or a backend that cannot take it. What that raises.
    """
    chosen = form_named(form)
    if backends is None:
        backends = [name for name in ("highs", "cpsat") if name in chosen.backends]
    if not backends or not set(backends) <= set(chosen.backends):
        raise InputError(f"backends={list(backends)}: choose some of {', '.join(chosen.backends)}")

    def task(prepared: Prepared, bound: int) -> Task:
        g = prepared.arrays
        each = (least_live(g, v).bytes for v in range(g.n)) if cuts else ()
        return chosen.task(prepared, equations, max(bound, *each, 0))

    edges = control_edges(graph) if early_updates else []
    return forms.least_peak(
        graph, form=task, counted=chosen.counted, backends=backends, edges=edges, **asked
    )
