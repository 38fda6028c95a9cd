"""The paper's integer programs for locations: (6), (7), (8), and the joint program (9).

With lifetimes given, (15), only pairs that do live together get rows, and each must be decided:
a + b = 1. In the joint program lifetimes follow from the order, and pairs that can never meet are
left out (section 4.2). Addresses are in units of the greatest common divisor of all sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from olla_xla.check.graph import check_placement, check_schedule
from olla_xla.errors import InputError, SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import intervals, peak_bytes
from olla_xla.place.placer import place
from olla_xla.place.problem import PlacementProblem
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.exact.plain import plain_graph
from olla_xla.schedule.exact.spans import Reach, spans
from olla_xla.solvers import solve
from olla_xla.solvers.linear import Limits, Model, Result, Status

__all__ = ["JointPlan", "joint_program", "location_ilp", "pyramid"]


def pyramid(problem: PlacementProblem) -> dict[int, int]:
    """Preplacement of section 4.5, algorithm 5: blocks nested in time at increasing addresses.

    The longest-lived block lies at address 0; on it the longest-lived one within its lifetime, and
    so on. In training these are the activations, the first made and the last freed.

    Returns:
      Block -> offset in bytes.
    """
    start, stop = int(problem.lower.min(initial=0)), int(problem.upper.max(initial=0))
    placed: dict[int, int] = {}
    address = 0
    while True:
        inside = [
            i
            for i in np.flatnonzero((problem.lower >= start) & (problem.upper <= stop)).tolist()
            if i not in placed and problem.size[i] > 0
        ]
        if not inside:
            return placed
        i = max(inside, key=lambda k: (problem.upper[k] - problem.lower[k], problem.size[k], -k))
        placed[i] = address
        address += int(problem.size[i])
        start, stop = int(problem.lower[i]), int(problem.upper[i])


def location_ilp(
    problem: PlacementProblem,
    *,
    preplaced: Mapping[int, int] | None = None,
    limits: Limits | None = None,
) -> tuple[np.ndarray, int, Result]:
    """Offsets by the paper's program with given lifetimes.

    Args:
      problem: blocks of one memory space, each a group of its own, without alignment or capacity.
      preplaced: block -> offset that is kept (bytes); the solver places the rest.

    Returns:
      (offsets in bytes, height in bytes, the solver's result in units).

    Raises:
      InputError: the problem has what the program has no rows for.
      SolverError: no solution within the limits.
    """
    n = len(problem)
    plain = np.unique(problem.group).size == n and np.unique(problem.space).size <= 1
    if not plain or (problem.alignment != 1).any() or problem.capacity:
        raise InputError("the location program takes no groups, spaces, alignment or capacity")
    pins = {int(i): int(problem.fixed[i]) for i in np.flatnonzero(problem.fixed >= 0)}
    pins |= dict(preplaced or {})
    unit = math.gcd(*problem.size.tolist(), *pins.values()) or 1
    fixed = np.full(n, -1, np.int64)
    for i, offset in pins.items():
        fixed[i] = offset
    greedy = place(dataclasses.replace(problem, fixed=fixed), method="greedy_size")
    if greedy.offsets is None:
        raise InputError("preplaced blocks overlap while both live")
    model = Model("locations")
    sizes = problem.size // unit
    locations = _Locations(model, sizes, greedy.height // unit)
    for i, offset in pins.items():
        model.fix(locations.address[i], offset // unit)
    for i, j in itertools.combinations(np.flatnonzero(sizes).tolist(), 2):
        if problem.lower[i] < problem.upper[j] and problem.lower[j] < problem.upper[i]:
            a, b = locations.add_pair(i, j)
            model.add_row([a, b], [1, 1], lower=1, tag="(6)")
    result = solve.solve(model, limits)
    offsets = locations.offsets(result.point(), unit)
    heights = problem.check(offsets)
    return offsets, max(heights.values(), default=0), result


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
      peak_bytes: lifetime peak of the order. optimal: whether the solver proved the height.
    """

    order: tuple[int, ...]
    offsets: tuple[int, ...]
    height: int
    peak_bytes: int
    optimal: bool


def joint_program(graph: TensorGraph, *, limits: Limits | None = None) -> JointPlan:
    """The joint program (9): order and locations at once, for small graphs.

    One operator runs at each step. The graph is taken as the paper sees it (`plain_graph`): every
    tensor lives from its source to its last sink, and none shares memory.

    Raises:
      SolverError: no solution within the limits.
      CheckError: the referee rejected the solution (a bug).
    """
    graph = plain_graph(graph)
    arrays = GraphArrays.of(graph)
    reach = Reach.of(arrays)
    order = sorted(range(arrays.n), key=lambda v: (reach.before[v].bit_count(), v))
    unit = math.gcd(*arrays.bytes.tolist()) or 1
    model = Model("joint")
    steps = _Steps(model, arrays)
    locations = _Locations(model, arrays.bytes // unit, _start_height(arrays, order) // unit)
    live = _live_columns(model, graph, steps)
    for i, j in _pairs(graph, arrays, reach):
        a, b = locations.add_pair(i, j)
        for t in range(arrays.n):
            # a + b >= live_i + live_j - 1
            model.add_row([a, b, live[i][t], live[j][t]], [1, 1, -1, -1], lower=-1, tag="(6)")
    result = solve.solve(model, limits)
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
        peak_bytes=peak_bytes(arrays, found),
        optimal=result.status is Status.OPTIMAL,
    )


def _start_height(arrays: GraphArrays, order: Sequence[int]) -> int:
    """A height that one order is known to do with: M of (7)."""
    lives = intervals(arrays, order)
    packing = place(
        PlacementProblem.of(lives[:, 0], lives[:, 1], arrays.bytes), method="greedy_size"
    )
    return packing.height


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


def _pairs(graph: TensorGraph, arrays: GraphArrays, reach: Reach) -> list[tuple[int, int]]:
    """Pairs that may live together: section 4.2 rules out those that never do.

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
        (i, j)
        for i, j in itertools.combinations(range(len(tensors)), 2)
        if min(tensors[i].bytes, tensors[j].bytes) > 0
        and first[i] <= last[j]
        and first[j] <= last[i]
        and not (dead_before(i, j) or dead_before(j, i))
    ]
