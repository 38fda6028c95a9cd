"""The paper's joint program (9): order and locations at once, with (6), (7) and (8).

Lifetimes follow from the order; pairs that can never meet, and steps at which a pair cannot, are
left out (sections 4.1 and 4.2). Addresses are in units of the greatest common divisor of all sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from olla_xla.check.graph import check_placement, check_schedule
from olla_xla.errors import InputError, SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import intervals, peak_bytes
from olla_xla.place.placer import place
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.exact.plain import plain_graph
from olla_xla.schedule.exact.spans import Reach, spans
from olla_xla.solvers.bounds import whole_units
from olla_xla.solvers.linear import Limits, Model, Status
from olla_xla.solvers.solve import solve

__all__ = ["MOST_ROWS", "JointPlan", "joint_program"]

MOST_ROWS = 200_000
"""Rows of (6) of the largest program that is built."""


class _Locations:
    """Addresses A in [0, M], the peak, and the rows of pairs.

    Args:
      sizes: in units. most: M, a height that is known to do, in units.
    """

    def __init__(self, model: Model, sizes: np.ndarray, most: int) -> None:
        self.model, self.sizes, self.most = model, sizes, most
        self.peak = model.add_variable(0, most, cost=1, name="peak")
        self.address = list(model.add_variables(len(sizes), 0, most, name="A[{}]".format))
        for i, size in enumerate(sizes.tolist()):
            model.add_row(
                [self.address[i], self.peak], [1, -1], upper=-size, tag="(8)"
            )  # A_i + S_i <= peak

    def add_pair(self, i: int, j: int) -> tuple[int, int]:
        """The binaries (a, b) of a pair: a = 1 puts i below j, b = 1 puts j below i."""
        model, most = self.model, self.most
        a = model.add_variable(name=f"a[{i},{j}]")
        b = model.add_variable(name=f"b[{i},{j}]")
        model.add_row([a, b], [1, 1], upper=1, tag="(6)")
        # A_i + S_i - A_j <= (1 - a) M
        below, above = self.address[i], self.address[j]
        model.add_row([below, above, a], [1, -1, most], upper=most - int(self.sizes[i]), tag="(7a)")
        # A_i - A_j - S_j >= (b - 1) M
        model.add_row(
            [below, above, b], [1, -1, -most], lower=int(self.sizes[j]) - most, tag="(7b)"
        )
        return a, b

    def offsets(self, x: np.ndarray, unit: int) -> np.ndarray:
        """Bytes, from a checked point."""
        return np.rint(x[self.address]).astype(np.int64) * unit


@dataclasses.dataclass(frozen=True, eq=False)
class JointPlan:
    """Order and offsets found together; sizes in bytes.

    Attributes:
      order: operator ids. offsets: by tensor id of the plain graph. height: of the arena.
      bound: no order and no places make a lower one. optimal: whether the solver proved the height.
      start: height of the greedy packing with which it began.
      peak_bytes: lifetime peak of the order. variables, rows: of the program.
    """

    order: tuple[int, ...]
    offsets: tuple[int, ...]
    height: int
    bound: int
    start: int
    peak_bytes: int
    optimal: bool
    variables: int
    rows: int


def joint_program(
    graph: TensorGraph,
    *,
    limits: Limits | None = None,
    backend: str = "highs",
    start: Sequence[int] | None = None,
) -> JointPlan:
    """The joint program (9): order and locations at once, for small graphs.

    One operator runs at each step. The graph is taken as the paper sees it (`plain_graph`): every
    tensor lives from its source to its last sink, and none shares memory.

    Args:
      graph: the graph. limits: of the solver. backend: which one.
      start: an order to begin with, and the places that a greedy rule finds for it; by default some
        legal order.

    Raises:
      InputError: the program would have more than MOST_ROWS rows.
      SolverError: the solver failed, or found no solution within the limits.
      CheckError: the referee rejected the solution (a bug).
    """
    graph = plain_graph(graph)
    arrays = GraphArrays.of(graph)
    reach = Reach.of(arrays)
    order = sorted(range(arrays.n), key=lambda v: (reach.before[v].bit_count(), v))
    order = order if start is None else list(start)
    pairs = _pairs(graph, arrays, reach)
    count = sum(len(steps) for _, _, steps in pairs)
    if count > MOST_ROWS:
        raise InputError(
            f"the joint program of {graph.name} has some {count:,} rows, of "
            f"{MOST_ROWS:,} that are built at most; find the order first, then the places"
        )
    unit = math.gcd(*arrays.bytes.tolist()) or 1
    first = _greedy(arrays, order)
    model = Model("joint")
    steps = _Steps(model, arrays)
    locations = _Locations(model, arrays.bytes // unit, first.height // unit)
    live = _live_columns(model, graph, steps)
    chosen = []
    for i, j, together in pairs:
        a, b = locations.add_pair(i, j)
        chosen.append((i, j, a, b))
        for t in together:
            # a + b >= live_i + live_j - 1
            model.add_row([a, b, live[i][t], live[j][t]], [1, 1, -1, -1], lower=-1, tag="(6)")
    model.start = _start(model, arrays, order, first, unit, steps, locations, live, chosen)
    result = solve(model, _in_bytes(limits, unit), [backend])
    x = result.point()
    found = steps.order(x)
    offsets = locations.offsets(x, unit)
    check_schedule(graph, found)
    places = {
        t.name: (int(o), t.bytes) for t, o in zip(graph.tensors, offsets, strict=True) if t.bytes
    }
    height = max((o + s for o, s in places.values()), default=0)
    check_placement(graph, found, places, height)
    return JointPlan(
        order=tuple(found),
        offsets=tuple(offsets.tolist()),
        height=height,
        bound=whole_units(result.bound) * unit,
        start=first.height,
        peak_bytes=peak_bytes(arrays, found),
        optimal=result.status is Status.OPTIMAL,
        variables=model.variables,
        rows=model.rows,
    )


def _in_bytes(limits: Limits | None, unit: int) -> Limits | None:
    """The limits with a watch that is told units."""
    if limits is None or limits.watch is None:
        return limits
    watch = limits.watch
    return dataclasses.replace(
        limits,
        watch=lambda value, bound: watch(
            None if value is None else value * unit, whole_units(bound) * unit
        ),
    )


def _greedy(arrays: GraphArrays, order: Sequence[int]) -> Packing:
    """Places under an order; their height is M of (7)."""
    lives = intervals(arrays, order)
    problem = PlacementProblem.of(lives[:, 0], lives[:, 1], arrays.bytes)
    return place(problem, method="greedy_size")


def _start(
    model: Model,
    arrays: GraphArrays,
    order: Sequence[int],
    packing: Packing,
    unit: int,
    steps: _Steps,
    locations: _Locations,
    live: list[list[int]],
    pairs: Sequence[tuple[int, int, int, int]],
) -> np.ndarray:
    """The point of an order and of a packing for it."""
    assert packing.offsets is not None
    x = np.zeros(model.variables)
    position = arrays.positions(order)
    for v, columns in enumerate(steps.has_run):
        x[columns] = np.arange(arrays.n) >= position[v]
    lives = intervals(arrays, order)
    for columns, (begin, stop) in zip(live, lives.tolist(), strict=True):
        x[columns] = (np.arange(arrays.n) >= begin) & (np.arange(arrays.n) < stop)
    at, sizes = packing.offsets // unit, locations.sizes
    x[locations.address] = at
    x[locations.peak] = packing.height // unit
    for i, j, a, b in pairs:
        x[a] = at[i] + sizes[i] <= at[j]
        x[b] = not x[a] and at[j] + sizes[j] <= at[i]
    return x


class _Steps:
    """Columns has_run[v][t]: operator v ran at step t or before; one operator a step."""

    def __init__(self, model: Model, arrays: GraphArrays) -> None:
        n = arrays.n
        self.n = n
        self.has_run = [
            list(model.add_variables(n, name=_named(f"has_run[{v}]"))) for v in range(n)
        ]
        for v in range(n):
            for t in range(1, n):
                model.add_row(
                    [self.has_run[v][t - 1], self.has_run[v][t]], [1, -1], upper=0, tag="once"
                )
        for t in range(n):
            column = [self.has_run[v][t] for v in range(n)]
            model.add_row(column, [1] * n, lower=t + 1, upper=t + 1, tag="serial")
            for v in range(n):
                for u in arrays.pred_idx[arrays.pred_ptr[v] : arrays.pred_ptr[v + 1]].tolist():
                    if t == 0:
                        model.fix(self.has_run[v][0], 0)
                    else:
                        model.add_row(
                            [self.has_run[v][t], self.has_run[u][t - 1]],
                            [1, -1],
                            upper=0,
                            tag="(5)",
                        )

    def order(self, x: np.ndarray) -> list[int]:
        """The operators by the step at which they run."""
        first = [self.n - round(float(x[self.has_run[v]].sum())) for v in range(self.n)]
        if sorted(first) != list(range(self.n)):
            raise SolverError("the solution does not run one operator at each step")
        return sorted(range(self.n), key=lambda v: first[v])


def _named(prefix: str) -> Callable[[int], str]:
    return lambda t: f"{prefix}[{t}]"


def _live_columns(model: Model, graph: TensorGraph, steps: _Steps) -> list[list[int]]:
    """Columns live[i][t], forced to 1 from a tensor's source to its last sink."""
    live = []
    for i, tensor in enumerate(graph.tensors):
        columns = list(model.add_variables(steps.n, integer=True, name=_named(f"live[{i}]")))
        source = steps.has_run[tensor.source]
        for t in range(steps.n):
            for user in {tensor.source, *tensor.sinks}:
                # live >= has_run(source, t) - has_run(user, t - 1)
                if t:
                    model.add_row(
                        [columns[t], source[t], steps.has_run[user][t - 1]], [1, -1, 1],
                        lower=0, tag="live",
                    )  # fmt: skip
                else:
                    model.add_row([columns[t], source[t]], [1, -1], lower=0, tag="live")
        live.append(columns)
    return live


def _pairs(graph: TensorGraph, arrays: GraphArrays, reach: Reach) -> list[tuple[int, int, range]]:
    """Pairs that may live together, and at which steps: section 4.2 rules out those that never do.

    By their maximum useful lifetimes, and by reachability: all users of one run before the other is
    made.
    """
    bounds = spans(arrays, reach)
    tensors = graph.tensors
    first = [int(bounds.first[t.source]) for t in tensors]
    last = [max(int(bounds.last[u]) for u in (t.source, *t.sinks)) for t in tensors]

    def dead_before(i: int, j: int) -> bool:
        source = tensors[j].source
        return all(reach.is_before(u, source) for u in (tensors[i].source, *tensors[i].sinks))

    return [
        (i, j, range(max(first[i], first[j]), min(last[i], last[j]) + 1))
        for i, j in itertools.combinations(range(len(tensors)), 2)
        if min(tensors[i].bytes, tensors[j].bytes) > 0
        and first[i] <= last[j]
        and first[j] <= last[i]
        and not (dead_before(i, j) or dead_before(j, i))
    ]
