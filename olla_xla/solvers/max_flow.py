"""Minimum cuts, by the push-relabel maximum flow of OR-Tools."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.graph.python import max_flow

from olla_xla.errors import SolverError

__all__ = ["min_cut"]


def min_cut(
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    capacities: NDArray[np.int64],
    source: int,
    sink: int,
) -> tuple[int, NDArray[np.int64]]:
    """A minimum cut of a directed graph.

    Args:
      tails, heads, capacities: int64 [arcs]; nodes are numbers from 0, capacities not negative.
      source, sink: nodes; the source side holds `source`, not `sink`.

    Returns:
      Its capacity, and the nodes of the smallest source side, int64.

    Raises:
      SolverError: the solver did not reach the maximum flow.
    """
    if not len(tails):
        return 0, np.array([source], np.int64)
    flow = max_flow.SimpleMaxFlow()
    # The stub names a scalar type where an array's is meant.
    arcs: tuple[Any, ...] = (tails, heads, capacities)
    flow.add_arcs_with_capacity(*arcs)
    status = flow.solve(source, sink)
    if status != flow.OPTIMAL:
        raise SolverError(f"maximum flow ended with status {status}")
    return flow.optimal_flow(), np.asarray(flow.get_source_side_min_cut(), np.int64)
