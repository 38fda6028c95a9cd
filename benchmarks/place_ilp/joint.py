"""The paper's joint program (9): order and locations at once, with (6), (7) and (8).

Lifetimes are columns within the spans of (10) to (12), of the condensed graph, in the form of
`schedule.exact.running_ilp`; its (14) stays, since no arena is lower than a live sum. Pairs that
can never meet, and steps at which a pair cannot, have no rows (section 4.2); a pair that meets in
every order has one binary. Addresses are in units of the greatest common divisor of all sizes.
The solver begins at the search's order and the placer's places, and is told the cut's bound.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.place_ilp.late_sources import with_late_sources
from olla_xla import schedule
from olla_xla.check.graph import check_placement, check_schedule
from olla_xla.errors import InputError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import intervals, peak_bytes
from olla_xla.memory.mincut import least_live
from olla_xla.place.placer import place
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.exact.plain import plain_graph
from olla_xla.schedule.exact.prepared import prepare
from olla_xla.schedule.exact.running_ilp import RunningIlp
from olla_xla.schedule.exact.spans import Reach
from olla_xla.schedule.search import phases
from olla_xla.solvers.bounds import whole_units
from olla_xla.solvers.linear import Limits, Model, Status
from olla_xla.solvers.solve import solve
from olla_xla.solvers.terms import Terms

__all__ = ["MOST_ROWS", "JointPlan", "joint_program"]

MOST_ROWS = 200_000
"""Rows of (6) of the largest program that is built."""

_START = 0.1
"""Part of the time for the search's order, and as much for its places; at most _SECONDS each."""
_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, eq=False)
class JointPlan:
    """Order and offsets found together; sizes in bytes.

    Attributes:
      order: operator ids. offsets: by tensor id of the plain graph. height: of the arena.
      bound: no order and no places make a lower one. optimal: whether the height is that.
      start: height of the packing with which the solver began. cut: the bound that it was told.
      peak_bytes: lifetime peak of the order.
      variables, rows: of the program; 0 where the start met the cut's bound and it was too large.
    """

    order: tuple[int, ...]
    offsets: tuple[int, ...]
    height: int
    bound: int
    start: int
    cut: int
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
    cut: bool = True,
) -> JointPlan:
    """The joint program (9): order and locations at once, for small graphs.

    One operator runs at each step. The graph is taken as the paper sees it (`plain_graph`): every
    tensor lives from its source to its last sink, and none shares memory.

    Args:
      graph: the graph. limits: of the solver; the start comes off its seconds. backend: which one.
      start: an order to begin with; by default the one that the search finds.
      cut: tell the solver the least live bytes by minimum cuts, below which no order is.

    Raises:
      InputError: the program would have more than MOST_ROWS rows of (6), and the start leaves
        something to solve.
      SolverError: the solver failed, or found no solution within the limits.
      CheckError: the referee rejected the solution (a bug).
    """
    limits = limits or Limits()
    plain = plain_graph(graph)
    late = with_late_sources(plain)
    first = None if start is None else late.contract(start)
    arrays = GraphArrays.of(late.graph)
    portion = min(_START * limits.time_limit, _SECONDS)
    prepared = prepare(late.graph, start=_searched(arrays, portion) if first is None else first)
    g = prepared.arrays
    packing = _placed(g, prepared.start, portion)
    bound = max((least_live(g, v).bytes for v in range(g.n)), default=0) if cut else 0
    tensors = np.flatnonzero(arrays.bytes) if g.m < arrays.m else np.arange(arrays.m)

    def plan(
        order: np.ndarray, offsets: np.ndarray, program: _Program | None, value: int
    ) -> JointPlan:
        by_tensor = np.zeros(len(plain.tensors), np.int64)
        by_tensor[tensors] = offsets
        found = late.expand(prepared.back(order).tolist())
        height = int((by_tensor[tensors] + g.bytes).max(initial=0))
        _check(plain, found, by_tensor, height)
        return JointPlan(
            order=tuple(found),
            offsets=tuple(by_tensor.tolist()),
            height=height,
            bound=min(max(value, bound), height),
            start=packing.height,
            cut=bound,
            peak_bytes=peak_bytes(GraphArrays.of(plain), found),
            optimal=height <= max(value, bound),
            variables=program.model.variables if program else 0,
            rows=program.model.rows if program else 0,
        )

    assert packing.offsets is not None
    pairs = list(_pairs(g))
    if _rows(g, pairs) > MOST_ROWS:
        if packing.height <= bound:
            return plan(prepared.start, packing.offsets, None, bound)
        raise InputError(
            f"the joint program of {graph.name} has some {_rows(g, pairs):,} rows, of "
            f"{MOST_ROWS:,} that are built at most; find the order first, then the places"
        )
    program = _Program(g, pairs, bound, packing.height)
    program.model.start = program.start(prepared.start, packing)
    result = solve(program.model, _in_bytes(limits, program.ilp.scale.unit), [backend])
    x = result.point()
    value = whole_units(result.bound) * program.ilp.scale.unit
    found = plan(program.ilp.decode(x), program.offsets(x), program, value)
    return dataclasses.replace(found, optimal=found.optimal or result.status is Status.OPTIMAL)


def _check(plain: TensorGraph, order: Sequence[int], offsets: np.ndarray, height: int) -> None:
    """The referee's word on a solution."""
    check_schedule(plain, order)
    places = {
        t.name: (int(o), t.bytes) for t, o in zip(plain.tensors, offsets, strict=True) if t.bytes
    }
    check_placement(plain, order, places, height)


def _searched(arrays: GraphArrays, seconds: float) -> list[int]:
    """The order that the search finds."""
    starts = {"as given": np.arange(arrays.n), **schedule.candidates(arrays)}
    bound, _ = forced_live_bound(arrays)[:2]
    found = phases.search(arrays, starts, time_limit=max(seconds, 0.01), bound_bytes=bound)
    return found.lifetime_order.tolist()


def _placed(g: GraphArrays, order: Sequence[int] | np.ndarray, seconds: float) -> Packing:
    """Places under an order; their height is M of (7)."""
    lives = intervals(g, order)
    problem = PlacementProblem.of(lives[:, 0], lives[:, 1], g.bytes)
    return place(problem, time_limit=max(seconds, 0.01))


def _in_bytes(limits: Limits, unit: int) -> Limits:
    """The limits with a watch that is told units."""
    watch = limits.watch
    if watch is None:
        return limits
    return dataclasses.replace(
        limits,
        watch=lambda value, bound: watch(
            None if value is None else value * unit, whole_units(bound) * unit
        ),
    )


def _pairs(g: GraphArrays) -> Iterator[tuple[int, int]]:
    """Pairs that may be live together by reachability: section 4.2 rules out the others.

    All users of one run before the other is made.
    """
    reach = Reach.of(g)
    users = [
        {int(g.source[e]), *g.sink_idx[g.sink_ptr[e] : g.sink_ptr[e + 1]].tolist()}
        for e in range(g.m)
    ]

    def dead_before(i: int, j: int) -> bool:
        return all(reach.is_before(u, int(g.source[j])) for u in users[i])

    for i, j in itertools.combinations(range(g.m), 2):
        if g.bytes[i] and g.bytes[j] and not (dead_before(i, j) or dead_before(j, i)):
            yield i, j


def _rows(g: GraphArrays, pairs: Sequence[tuple[int, int]]) -> int:
    """About how many rows of (6) there are, at most."""
    return len(pairs) * g.n


class _Program:
    """Lifetimes, addresses A in [0, M], and the rows of pairs.

    Args:
      g: the graph. pairs: of tensors that may be live together. bound: no arena is lower (bytes).
      most: M, a height that is known to do (bytes).
    """

    def __init__(
        self, g: GraphArrays, pairs: Sequence[tuple[int, int]], bound: int, most: int
    ) -> None:
        self.ilp = RunningIlp(g, bound_bytes=bound)
        self.model: Model = self.ilp.model
        self._sizes = self.ilp.scale.sizes
        self._most = most // self.ilp.scale.unit
        self.model.bound(self.ilp.peak, min(self.ilp.scale.to_units(bound), self._most), self._most)
        highest = np.maximum(self._most - self._sizes, 0)
        self._address = [
            self.model.add_variable(0, int(high), name=f"A[{i}]")
            for i, high in enumerate(highest.tolist())
        ]
        for i, size in enumerate(self._sizes.tolist()):
            if size:  # A_i + S_i <= peak
                self.model.add_row(
                    [self._address[i], self.ilp.peak], [1, -1], upper=-size, tag="(8)"
                )
        self._chosen: list[tuple[int, int, int, int | None]] = []
        useful = self.ilp.useful
        for i, j in pairs:
            steps = range(
                max(useful[i].start, useful[j].start), min(useful[i].stop, useful[j].stop)
            )
            if steps:
                self._add_pair(i, j, steps)

    def _add_pair(self, i: int, j: int, steps: range) -> None:
        """Binaries a, i lies below j, and b, j below i; one of them is 1 where both live, (6)."""
        meeting: list[Terms] | None = []
        for t in steps:
            both = self.ilp.live_at(self.ilp.live_at(Terms(), i, t, -1), j, t, -1)
            if both.constant == -2 and not both.columns:
                meeting = None  # whatever the order is
                break
            if len(both.columns) - both.constant >= 2:  # else one of them is certainly not live
                meeting.append(both)
        if meeting is not None and not meeting:
            return
        a = self.model.add_variable(name=f"a[{i},{j}]")
        b = None if meeting is None else self.model.add_variable(name=f"b[{i},{j}]")
        self._chosen.append((i, j, a, b))
        if b is not None:
            self.model.add_row([a, b], [1, 1], upper=1, tag="(6)")
            for both in meeting or ():
                both.plus(a).plus(b).into(self.model, lower=-1, tag="(6)")
        self._add_below(i, j, a, 1, "(7a)")
        self._add_below(j, i, a if b is None else b, int(b is not None), "(7b)")

    def _add_below(self, i: int, j: int, chosen: int, value: int, tag: str) -> None:
        """A_i + S_i - A_j <= M where `chosen` has not that value, else 0."""
        size, most = int(self._sizes[i]), self._most
        columns = [self._address[i], self._address[j], chosen]
        if value:
            self.model.add_row(columns, [1, -1, most], upper=most - size, tag=tag)
        else:
            self.model.add_row(columns, [1, -1, -most], upper=-size, tag=tag)

    def start(self, order: np.ndarray, packing: Packing) -> np.ndarray:
        """The point of an order and of a packing for it."""
        assert packing.offsets is not None
        x = self.ilp.start(order)
        at = packing.offsets // self.ilp.scale.unit
        x[self._address] = at
        x[self.ilp.peak] = packing.height // self.ilp.scale.unit
        for i, j, a, b in self._chosen:
            x[a] = at[i] + self._sizes[i] <= at[j]
            if b is not None:
                x[b] = not x[a] and at[j] + self._sizes[j] <= at[i]
        return x

    def offsets(self, x: np.ndarray) -> np.ndarray:
        """Bytes, of a checked point."""
        return np.rint(x[self._address]).astype(np.int64) * self.ilp.scale.unit
