"""A bound from the linear relaxation of an ILP on the condensed graph."""

from __future__ import annotations

from collections.abc import Collection

from benchmarks.papers.ilp_forms.forms import form_named
from olla_xla.errors import InputError
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.exact.forms import Linear
from olla_xla.schedule.exact.prepared import prepare
from olla_xla.solvers.linear import SolverLimits
from olla_xla.solvers.solve import solve

_ROUNDING = 1e-6  # by which fraction a floating-point optimum may be too high


def relaxed_bound(
    graph: TensorGraph,
    *,
    form: str = "running",
    equations: Collection[str] | None = None,
    limits: SolverLimits | None = None,
    backend: str = "highs",
) -> int:
    """Bytes below which no order's peak can fall, by the relaxation; 0 if it was not solved.

    Args:
      graph: the graph. form: a linear one of `FORMS`. equations: those to use.
      limits: of the solver. backend: HiGHS or Gurobi; CP-SAT has no continuous variables.

    Raises:
      GraphError: a cycle, a negative size, a tensor without source; it names the operators.
    """
    chosen = form_named(form)
    task = chosen.task(prepare(graph, counted=chosen.counted), equations, 0)
    if not isinstance(task, Linear):
        raise InputError(f"form={form!r} is not linear")
    built = task.built
    built.model.start = None
    built.model.relax()
    result = solve(built.model, limits, [backend])
    bound = result.bound
    return built.scale.to_bytes_up(bound - _ROUNDING * max(1.0, abs(bound)))
