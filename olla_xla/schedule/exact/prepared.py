"""A graph made ready for a formulation: checked, numbered in a topological order, condensed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.check.graph import check_schedule
from olla_xla.memory.arrays import GraphArrays, topological_order
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.condense import reduce_graph
from olla_xla.schedule.exact.plain import plain_graph, renumbered, with_edges
from olla_xla.schedule.rules.greedy import by_priority


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A graph made ready for a formulation: checked, in topological order, perhaps condensed.

    Attributes:
      graph: the graph whose orders the referee judges; plain if `plain` was set.
      arrays: what is ordered: the graph's operators or groups of them.
      start: int64 [arrays.n], a legal order of them.
      back: from an order of them to one of the graph's operators.
    """

    graph: TensorGraph
    arrays: GraphArrays
    start: NDArray[np.int64]
    back: Callable[[NDArray[np.int64]], NDArray[np.int64]]


def prepare(
    graph: TensorGraph,
    *,
    plain: bool = False,
    edges: Sequence[tuple[int, int]] = (),
    reduce: bool = True,
    start: Sequence[int] | NDArray[np.int64] | None = None,
) -> Prepared:
    """Checks a graph, numbers it in a topological order, and condenses it.

    Args:
      graph: the graph. plain: count only what the paper counts (`plain_graph`); not condensed.
      edges: control edges to be added, (before, after). reduce: condense where that keeps the
        optimum.
      start: int64 [n], a legal order; by default some such order. Control edges may change it.

    Raises:
      GraphError: a cycle, a negative size, a tensor without source; it names the operators.
      CheckError: the start is not a legal order.
    """
    graph.validate()
    if start is not None:
        check_schedule(graph, list(start))
    judged = plain_graph(graph) if plain else graph
    ids = topological_order(with_edges(judged, edges))
    # The reduction wants ids in a topological order.
    restricted = renumbered(with_edges(judged, edges), ids.tolist())
    arrays = GraphArrays.of(plain_graph(restricted) if plain else restricted)
    first = np.arange(arrays.n)
    if start is not None:
        first = np.argsort(ids)[np.asarray(start, np.int64)]
        if edges:
            first = by_priority(arrays, arrays.positions(first))
    if plain or not reduce:
        return Prepared(judged, arrays, first, lambda order: ids[order])
    reduced = reduce_graph(arrays)
    return Prepared(
        judged, reduced.arrays, reduced.contract(first), lambda order: ids[reduced.expand(order)]
    )
