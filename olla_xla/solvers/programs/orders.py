"""The paper's method for orders: its integer program, of one computation at a time (section 4.4).

The lifetimes of equations (1) to (5) and (10) to (14), in the cumulative form of
`running_ilp`, on the condensed graph with tightened spans. The program starts from
the search's order, with the search's minimum cut as its bound. XLA places buffers by a rule of its
own, so a search for the order of least total follows, as in any other plan.
"""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays, topological_order
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import Proof
from olla_xla.schedule.condense import reduce_graph
from olla_xla.solvers.linear import SolverLimits, Status
from olla_xla.solvers.programs.forms import least_peak
from olla_xla.solvers.programs.spans import coefficients

Progress = Callable[[str], None]

_MOST, _A_SECOND = 8_000_000, 400_000
"""Coefficients of the largest program that is built, a gigabyte; and how many of them take a second
to build. No program is begun whose building would take the whole of its time."""

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
      options: with the backend, gap and seed. seconds: for the solver, at most.
      progress: called with the best peak so far and the bound, in one line.

    Returns:
      The solver's order, int64 [n], and what was proved. The order is the search's where that is
      within the gap of the lower bound, so that nothing is solved, where the solver fails, or where
      the program is too large; the proof says so. Raises CheckError if the independent check
      rejected the search's order (a bug).
    """
    began, seconds = time.monotonic(), max(seconds, 0.0)
    proof = _of_search(graph.name, options.backend, start_bytes, bound_bytes)
    if start_bytes <= (1 + options.gap) * bound_bytes:
        return start, proof
    size = coefficients(reduce_graph(GraphArrays.of(graph)).arrays)
    most = min(_MOST, int(_A_SECOND * seconds))
    if size > most:
        message = f"too large: {size:,} coefficients, only {most:,} can be built in {seconds:.1f} s"
        taken = time.monotonic() - began
        return start, dataclasses.replace(
            proof, status=Status.UNKNOWN, seconds=taken, message=message
        )
    solved = least_peak(
        graph,
        backends=[options.backend],
        limits=SolverLimits(
            time_limit=seconds,
            seed=options.seed % 2**31,
            watch=None if progress is None else _watch(graph.name, options.backend, progress),
            gap=options.gap,
            apart=True,
        ),
        start=start,
        bound_bytes=bound_bytes,
        edges=control_edges(graph) if options.early_updates else (),
    )
    proof = dataclasses.replace(
        proof,
        status=solved.status,
        peak_bytes=solved.peak_bytes,
        bound_bytes=min(solved.bound_bytes, solved.peak_bytes),
        variables=solved.variables,
        rows=solved.rows,
        seconds=time.monotonic() - began,
        message=solved.failures[0] if solved.failures else solved.message,
    )
    return np.asarray(solved.order), proof


def _of_search(computation: str, backend: str, start_bytes: int, bound_bytes: int) -> Proof:
    """The Proof without a solver: the search's order, with its peak, and its lower bound."""
    return Proof(
        computation=computation,
        backend=backend,
        status=Status.OPTIMAL if start_bytes <= bound_bytes else Status.FEASIBLE,
        start_bytes=start_bytes,
        peak_bytes=start_bytes,
        cut_bytes=bound_bytes,
        bound_bytes=bound_bytes,
        variables=0,
        rows=0,
        seconds=0.0,
        message=f"the search's order {'meets' if start_bytes <= bound_bytes else 'is near'} the "
        "lower bound",
    )


def _watch(name: str, backend: str, progress: Progress) -> Callable[[float | None, float], None]:
    """Makes a callback for solvers that passes value and bound on to `progress`, as text in MB."""

    def on_progress(value: float | None, bound: float) -> None:
        best = "none yet" if value is None else f"{value / _MIB:.2f} MB"
        progress(f"{backend}, {name}: incumbent {best}, bound {bound / _MIB:.2f} MB")

    return on_progress


# Control edges that make weight updates run early (section 4.3 of the paper).
#
# Nothing reads an updated weight, so its update may run at any step up to the end, and a solver has
# to try them all. An edge of zero bytes from the update to an anchor, an operator that runs soon
# after in any sensible order, excludes the later steps. Since this excludes orders, the optimum may
# rise, and a bound found with such edges holds only with them.


def weight_updates(graph: TensorGraph) -> list[int]:
    """The operators whose results overwrite arguments, such as weight updates; ascending."""
    arguments = {t.buffer for t in graph.tensors if t.live_in}
    return sorted(
        {t.source for t in graph.tensors if t.live_out and not t.live_in and t.buffer in arguments}
    )


def control_edges(graph: TensorGraph) -> list[tuple[int, int]]:
    """Edges (update, anchor) that make weight updates run early; none for one without an anchor, an
    operator that the update must come before. The search goes from the update's predecessors to
    theirs, and stops where one has a successor on a higher level than the update that is no update
    itself. Of these the anchor is the one farthest from the end (earliest in the reversed
    levelization); ties by level and number. Levels (longest paths to an operator) rise along every
    edge, old and new, so that no cycle closes. Raises GraphError if there is a cycle already.
    """
    g = GraphArrays.of(graph)
    level, to_end = _levels(g)
    updates = weight_updates(graph)
    own = set(updates)
    edges = []
    for update in updates:
        anchor = _anchor(g, update, own, level, to_end)
        if anchor is not None:
            edges.append((update, anchor))
    return edges


def _levels(g: GraphArrays) -> tuple[list[int], list[int]]:
    """The longest path to each operator, and the longest from it to the end, both in edges."""
    order = topological_order(g).tolist()
    level, to_end = [0] * g.n, [0] * g.n
    for v in order:
        level[v] = max((level[u] + 1 for u in _near(g.pred_ptr, g.pred_idx, v)), default=0)
    for v in reversed(order):
        to_end[v] = max((to_end[u] + 1 for u in _near(g.succ_ptr, g.succ_idx, v)), default=0)
    return level, to_end


def _anchor(
    g: GraphArrays, update: int, updates: set[int], level: list[int], to_end: list[int]
) -> int | None:
    met: set[int] = set()
    wave = set(_near(g.pred_ptr, g.pred_idx, update))
    while wave:
        anchors = {
            a
            for u in wave
            for a in _near(g.succ_ptr, g.succ_idx, u)
            if level[a] > level[update] and a not in updates
        }
        if anchors:
            return min(anchors, key=lambda a: (-to_end[a], level[a], a))
        met |= wave
        wave = {u for v in wave for u in _near(g.pred_ptr, g.pred_idx, v)} - met
    return None


def _near(ptr: NDArray[np.int64], idx: NDArray[np.int64], v: int) -> list[int]:
    return idx[ptr[v] : ptr[v + 1]].tolist()
