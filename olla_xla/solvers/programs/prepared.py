"""A graph made ready for a formulation: checked, numbered in a topological order, condensed.

Byte sizes are made small before a solver sees them, and turned back afterwards (`Scale`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.check.graph import check_schedule
from olla_xla.memory.arrays import GraphArrays, topological_order
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.condense import reduce_graph
from olla_xla.schedule.rules import by_priority
from olla_xla.solvers.linear import LinearModel
from olla_xla.solvers.solve import whole_units


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A graph made ready for a formulation: checked, in topological order, perhaps condensed.

    Attributes:
      graph: the graph by which orders are verified, as `counted` makes it (see `prepare`).
      arrays: what is ordered: the graph's operators or groups of them.
      start: int64 [arrays.n], a legal order of them.
      back: turns an order of them into one of the graph's operators.
    """

    graph: TensorGraph
    arrays: GraphArrays
    start: NDArray[np.int64]
    back: Callable[[NDArray[np.int64]], NDArray[np.int64]]


def prepare(
    graph: TensorGraph,
    *,
    counted: Callable[[TensorGraph], TensorGraph] | None = None,
    edges: Sequence[tuple[int, int]] = (),
    reduce: bool = True,
    start: Sequence[int] | NDArray[np.int64] | None = None,
) -> Prepared:
    """Checks a graph, numbers it topologically, and joins operators without tensors to neighbours.

    Args:
      graph: the graph. counted: maps it to one with only the bytes that count; then no operators
        are joined.
      edges: control edges to be added, (before, after). reduce: whether to join operators.
      start: int64 [n], a legal order; by default some such order. Control edges may change it.

    Raises:
      GraphError: a cycle, a negative size, a tensor without source; it names the operators.
      CheckError: the start is not a legal order.
    """
    graph.validate()
    if start is not None:
        check_schedule(graph, list(start))
    judged = graph if counted is None else counted(graph)
    ids = topological_order(with_edges(judged, edges))
    # The reduction wants ids in a topological order.
    restricted = renumbered(with_edges(judged, edges), ids.tolist())
    arrays = GraphArrays.of(restricted if counted is None else counted(restricted))
    first = np.arange(arrays.n)
    if start is not None:
        first = np.argsort(ids)[np.asarray(start, np.int64)]
        if edges:
            first = by_priority(arrays, arrays.positions(first))
    if counted is not None or not reduce:
        return Prepared(judged, arrays, first, lambda order: ids[order])
    reduced = reduce_graph(arrays)
    return Prepared(
        judged, reduced.arrays, reduced.contract(first), lambda order: ids[reduced.expand(order)]
    )


def with_edges(graph: TensorGraph, edges: Iterable[tuple[int, int]]) -> TensorGraph:
    """A copy of the graph with additional control edges, (before, after)."""
    return dataclasses.replace(graph, edges=(*graph.edges, *edges))


def renumbered(graph: TensorGraph, order: Sequence[int]) -> TensorGraph:
    """A copy of the graph in which operator `order[k]` has the number k."""
    number = {v: k for k, v in enumerate(order)}
    return dataclasses.replace(
        graph,
        operators=tuple(graph.operators[v] for v in order),
        tensors=tuple(
            dataclasses.replace(
                t, source=number[t.source], sinks=tuple(sorted(number[s] for s in t.sinks))
            )
            for t in graph.tensors
        ),
        edges=tuple((number[u], number[v]) for u, v in graph.edges),
        alias_edges=tuple((number[u], number[v]) for u, v in graph.alias_edges),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Scale:
    """A unit for byte sizes in a model: a peak of `v` units stands for `base + unit * v` bytes.

    Attributes:
      unit: bytes, the greatest common divisor of all sizes.
      base: bytes live at every step: the least transient bytes of any operator.
      sizes: int64 [m] in units. transient: int64 [n] in units beyond `base`, not negative.
      most: units, no order has a larger peak.
    """

    unit: int
    base: int
    sizes: NDArray[np.int64]
    transient: NDArray[np.int64]
    most: int

    @classmethod
    def of(cls, g: GraphArrays) -> Scale:
        """Makes the scale of a graph with the largest unit that represents every sum exactly."""
        base = int(g.transient.min()) if g.n else 0
        extra = g.transient - base
        unit = math.gcd(*g.bytes.tolist(), *extra.tolist()) or 1
        sizes, extra = g.bytes // unit, extra // unit
        return cls(unit, base, sizes, extra, int(sizes.sum() + extra.max(initial=0)))

    def add_peak(self, model: LinearModel, bound_bytes: int) -> int:
        """Adds to `model` the variable to minimise, the peak in this scale's units, which is at
        least `bound_bytes`; returns its column.
        """
        return model.add_variable(self.to_units(bound_bytes), self.most, cost=1, name="peak")

    def to_bytes(self, units: float) -> int:
        """Converts a peak in this scale's units, rounded to an integer, to bytes; at least 0."""
        return max(self.base + self.unit * round(units), 0)

    def to_bytes_up(self, units: float) -> int:
        """Converts a solver's lower bound in units, rounded up, 0 if unknown, to bytes."""
        return self.to_bytes(whole_units(units))

    def to_units(self, peak_bytes: int) -> int:
        """Returns the fewest units, at least 0, that stand for no less than a peak in bytes."""
        return max(-((self.base - peak_bytes) // self.unit), 0)
