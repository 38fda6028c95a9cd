"""Every form of the ordering problem by its name, and `least_peak` by any of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from benchmarks.papers.ilp_forms.interval_form import interval_model, order_of_steps
from benchmarks.papers.ilp_forms.lifetimes_ilp import LifetimeIlp
from benchmarks.special_solver import solve_special
from olla_xla.errors import InputError, SolverError
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.exact import forms
from olla_xla.schedule.exact.control import control_edges
from olla_xla.schedule.exact.forms import RUNNING, ExactOrder, Linear, ProblemForm
from olla_xla.schedule.exact.prepared import Prepared
from olla_xla.schedule.exact.scale import Scale
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status

_SOLVERS = {"cpsat": "benchmarks.papers.ilp_forms.cpsat_intervals"}


class Intervals:
    """The intervals of a graph, for CP-SAT."""

    def __init__(self, prepared: Prepared, equations: Collection[str] | None, bound: int) -> None:
        if equations is not None:
            raise InputError("form='intervals' has no equations to choose from")
        g = prepared.arrays
        self._model = interval_model(g, bound_bytes=bound, start=prepared.start)
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
        """The order of a point."""
        return order_of_steps(x)


def _linear(build: Callable[..., Any]) -> Callable[..., Linear]:
    return functools.partial(Linear, build)


_FORMS = {
    "running": RUNNING,
    "lifetimes": ProblemForm("lifetimes", _linear(LifetimeIlp)),
    "plain": ProblemForm("plain", _linear(functools.partial(LifetimeIlp, plain=True)), plain=True),
    "intervals": ProblemForm("intervals", Intervals, tuple(_SOLVERS)),
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
    graph: TensorGraph, *, form: str = "running", early_updates: bool = False, **asked: Any
) -> ExactOrder:
    """`schedule.exact.least_peak` by a form of `FORMS`.

    Args:
      graph: the graph. form: a name. asked: what that takes besides.
      early_updates: add the control edges of section 4.3.

    Raises:
      InputError: no such form. What that raises.
    """
    edges = control_edges(graph) if early_updates else []
    return forms.least_peak(graph, form=form_named(form), edges=edges, **asked)
