"""Orders by simple rules, from which the search starts and against which it competes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.condense import reduce_graph
from olla_xla.schedule.rules.depth_first import dfs_order, post_order
from olla_xla.schedule.rules.greedy import backward_order, least_peak_order, list_order

HEURISTICS = {
    "list": list_order,
    "least_peak": least_peak_order,
    "backward_list": backward_order,
    "dfs": dfs_order,
    "post_order": post_order,
}
"""Name -> rule, from the arrays of a condensed graph to an order of its groups."""


def candidates(graph: TensorGraph | GraphArrays) -> dict[str, NDArray[np.int64]]:
    """Name -> legal order of all operators, int64 [n], one for each rule of `HEURISTICS`."""
    reduced = reduce_graph(GraphArrays.of(graph))
    return {name: reduced.expand(rule(reduced.arrays)) for name, rule in HEURISTICS.items()}
