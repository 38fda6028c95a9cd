"""The paper's method for orders: its integer program, of one computation at a time (section 4.4).

The lifetimes of equations (1) to (5) and (10) to (14), in the cumulative form of
`running_ilp`, on the condensed graph with tightened spans. The program starts from
the search's order, with the search's minimum cut as its bound. XLA places buffers by a rule of its
own, so a search for the order of least total follows, as in any other plan.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import Proof
from olla_xla.schedule.condense import reduce_graph
from olla_xla.solvers.linear import SolverLimits, Status
from olla_xla.solvers.programs.control import control_edges
from olla_xla.solvers.programs.forms import least_peak
from olla_xla.solvers.programs.spans import coefficients

Progress = Callable[[str], None]

_MOST = 8_000_000
"""Coefficients of the largest program that is built: a gigabyte, and half a minute for nothing."""

_MIB = 2**20


def order_by_ilp(
    graph: TensorGraph,
    start: NDArray[np.int64],
    start_bytes: int,
    bound_bytes: int,
    options: PlanOptions,
    seconds: float,
    progress: Progress | None,
) -> tuple[NDArray[np.int64], Proof]:
    """Solves an integer program for the order of a computation with the least lifetime peak.

    Args:
      graph: of the computation.
      start: int64 [n], the search's order. start_bytes: its lifetime peak.
      bound_bytes: the search's lower bound on the lifetime peak of every order.
      options: with the backend. seconds: for the solver, at most.
      progress: called with the incumbent and the bound, in one line.

    Returns:
      The solver's order, int64 [n], and what was proved. The order is the search's where that meets
      the lower bound, so that nothing is solved, where the solver fails, or where the program is
      too large; the proof says so.

    Raises:
      CheckError: the referee rejected an order (a bug).
    """
    began = time.monotonic()
    proof = _of_search(graph.name, options.backend, start_bytes, bound_bytes)
    if start_bytes <= bound_bytes:
        return start, proof
    size = coefficients(reduce_graph(GraphArrays.of(graph)).arrays)
    if size > _MOST:
        message = f"too large: {size:,} coefficients, but at most {_MOST:,} are allowed"
        taken = time.monotonic() - began
        return start, dataclasses.replace(
            proof, status=Status.UNKNOWN, seconds=taken, message=message
        )
    found = least_peak(
        graph,
        backends=[options.backend],
        limits=SolverLimits(
            time_limit=max(seconds, 0.01),
            seed=options.seed % 2**31,
            watch=None if progress is None else _watch(graph.name, options.backend, progress),
            apart=True,
        ),
        start=start,
        bound_bytes=bound_bytes,
        edges=control_edges(graph) if options.early_updates else (),
    )
    proof = dataclasses.replace(
        proof,
        status=found.status,
        peak_bytes=found.peak_bytes,
        bound_bytes=min(found.bound_bytes, found.peak_bytes),
        variables=found.variables,
        rows=found.rows,
        seconds=time.monotonic() - began,
        message=found.failures[0] if found.failures else found.message,
    )
    return np.asarray(found.order), proof


def _of_search(computation: str, backend: str, start_bytes: int, bound_bytes: int) -> Proof:
    """What is known without a solver: the search's order, which the lower bound proves."""
    return Proof(
        computation=computation,
        backend=backend,
        status=Status.OPTIMAL,
        start_bytes=start_bytes,
        peak_bytes=start_bytes,
        cut_bytes=bound_bytes,
        bound_bytes=bound_bytes,
        variables=0,
        rows=0,
        seconds=0.0,
        message="the search's order meets the lower bound",
    )


def _watch(name: str, backend: str, progress: Progress) -> Callable[[float | None, float], None]:
    """Tells `progress` of incumbents and bounds, in MB of 2^20 bytes."""

    def on_progress(value: float | None, bound: float) -> None:
        best = "none yet" if value is None else f"{value / _MIB:.2f} MB"
        progress(f"{backend}, {name}: incumbent {best}, bound {bound / _MIB:.2f} MB")

    return on_progress
