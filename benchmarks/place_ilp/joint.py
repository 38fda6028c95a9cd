"""The paper's joint program (9): order and locations at once, with (6), (7) and (8).

Lifetimes are columns within the spans of (10) to (12), of the condensed graph, in the form of
`programs.running_ilp`; its (14) stays, since no arena is lower than a live sum. For a pair of
buffers that may be live together there are the binaries a and b of (6) and (7); where an order can
keep two of their tensors apart, a binary says that it does, which takes the place of (6) at each
step: it holds if all that touches the one runs before the other is made. Pairs that no order lets
meet have no rows (section 4.2), a pair that meets in every order has one binary, and buffers that
are live all the time lie at the bottom. Addresses are in units of the greatest common divisor of
all sizes. The solver begins at the order of rules and search that takes the least arena, and it is
told the cut.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from olla_xla import schedule
from olla_xla.check.graph import check_placement, check_schedule
from olla_xla.errors import InputError, SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import intervals, peak_bytes
from olla_xla.memory.mincut import least_live
from olla_xla.place.placer import place
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.problem.graph import Tensor, TensorGraph
from olla_xla.schedule.search import phases
from olla_xla.solvers.linear import LinearModel, LinearTerms, SolverLimits, Status
from olla_xla.solvers.programs.prepared import Prepared, prepare
from olla_xla.solvers.programs.running_ilp import RunningIlp
from olla_xla.solvers.programs.spans import Reach
from olla_xla.solvers.solve import solve, whole_units

__all__ = ["MOST_PAIRS", "JointPlan", "joint_program"]

MOST_PAIRS = 20_000
"""Pairs of tensors of the largest program that is built."""

_START = 0.1
"""Part of the time for the search's order, and as much for its places; at most _SECONDS each."""
_SECONDS = 5.0
_LEAST_SECONDS = 1e-3  # rules come first whatever the limit


@dataclasses.dataclass(frozen=True, eq=False)
class JointPlan:
    """An order and offsets that were found together; sizes in bytes.

    Attributes:
      order: operator ids. offsets: by tensor's name. height: of the arena.
      bound: no order and no places make a lower one. optimal: whether the height is that.
      start: height of the packing with which the solver began. cut: the bound that it was told.
      peak_bytes: lifetime peak of the order.
      variables, rows: of the program.
    """

    order: tuple[int, ...]
    offsets: dict[str, int]
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
    limits: SolverLimits | None = None,
    backend: str = "highs",
    start: Sequence[int] | None = None,
    cut: bool = True,
) -> JointPlan:
    """The joint program (9): order and locations at once, for small graphs.

    One operator runs at each step. Tensors of one buffer have one place, as large as the largest of
    them; no other two share any, whatever the graph allows in place. What an operator needs while
    it runs is placed too.

    Args:
      graph: the graph. limits: of the solver. backend: which one.
      start: an order to begin with; by default, of those that rules and the search find, one under
        which the least arena is found. Orders of one peak may differ in that.
      cut: tell the solver the least live bytes by minimum cuts, below which no order is.

    Raises:
      InputError: the program would have more than MOST_PAIRS pairs of tensors.
      SolverError: the solver failed, or found no solution within the limits.
      CheckError: the referee rejected the solution (a bug).
    """
    limits = limits or SolverLimits()
    graph = _counted(graph)
    whole = GraphArrays.of(graph)
    portion = max(min(_START * limits.time_limit, _SECONDS), 0.01)
    orders = _orders(whole, portion) if start is None else [start]
    prepared, packing = min(
        (_placed(graph, order, portion / len(orders)) for order in orders),
        key=lambda begun: begun[1].height,
    )
    g = prepared.arrays
    bound = max((least_live(g, v).bytes for v in range(g.n)), default=0) if cut else 0
    program = _Program(g, bound, packing.height)
    program.model.start = program.start(prepared.start, packing)
    unit, base = program.ilp.scale.unit, program.ilp.scale.base
    result = solve(program.model, _in_bytes(limits, unit, base), [backend])
    x = result.point()
    order = prepared.back(program.ilp.decode(x)).tolist()
    offsets = _by_name(graph, whole, g, program.offsets(x) + base, base)
    height = max((offsets[t.name] + t.bytes for t in graph.tensors if t.bytes), default=0)
    check_schedule(graph, order)
    check_placement(graph, order, _places(graph, offsets), height)
    claimed = base + round(program.model.value(x)) * unit
    if height > claimed:
        raise SolverError(f"claims an arena of {claimed} bytes, but its places need {height}")
    least = max(base + whole_units(result.bound) * unit, bound)
    return JointPlan(
        order=tuple(order),
        offsets=offsets,
        height=height,
        bound=min(least, height),
        start=packing.height + base,
        cut=bound,
        peak_bytes=peak_bytes(whole, order),
        optimal=height <= least or result.status is Status.OPTIMAL,
        variables=program.model.variables,
        rows=program.model.rows,
    )


def _counted(graph: TensorGraph) -> TensorGraph:
    """The graph with nothing in place by choice, and operators' own bytes as tensors."""
    own = [
        Tensor(f"{o.name}/own", o.transient_bytes, v, (), -1)
        for v, o in enumerate(graph.operators)
        if o.transient_bytes
    ]
    free = max((t.buffer for t in graph.tensors), default=-1) + 1
    return dataclasses.replace(
        graph,
        operators=tuple(dataclasses.replace(o, transient_bytes=0) for o in graph.operators),
        tensors=(
            *graph.tensors,
            *(dataclasses.replace(t, buffer=free + k) for k, t in enumerate(own)),
        ),
        inplace=(),
    )


def _by_name(
    graph: TensorGraph, whole: GraphArrays, g: GraphArrays, offsets: np.ndarray, base: int
) -> dict[str, int]:
    """Offsets of all tensors with bytes; what is live all the time lies below `base`."""
    constant = whole.live_in & whole.live_out
    kept = np.arange(whole.m)
    if g.m < whole.m:
        passed = np.concatenate([whole.pair_b[whole.pair_must], whole.pair_a[whole.pair_must]])
        kept = np.flatnonzero(((whole.bytes > 0) | np.isin(kept, passed)) & ~constant)
    found = dict(zip((graph.tensors[e].name for e in kept), offsets.tolist(), strict=True))
    below = 0
    for e in np.flatnonzero(constant & (whole.bytes > 0)).tolist() if base else ():
        found[graph.tensors[e].name] = below
        below += int(whole.bytes[e])
    return {t.name: found[t.name] for t in graph.tensors if t.bytes}


def _places(graph: TensorGraph, offsets: dict[str, int]) -> dict[str, tuple[int, int]]:
    return {t.name: (offsets[t.name], t.bytes) for t in graph.tensors if t.bytes}


def _orders(arrays: GraphArrays, seconds: float) -> list[list[int]]:
    """The search's order, and those of the rules, without those that come again."""
    starts = {"as given": np.arange(arrays.n), **schedule.candidates(arrays)}
    bound = forced_live_bound(arrays)[0]
    found = phases.search(arrays, starts, time_limit=seconds, bound_bytes=bound)
    orders = [found.lifetime_order, *starts.values()]
    return [list(order) for order in dict.fromkeys(tuple(o.tolist()) for o in orders)]


def _placed(graph: TensorGraph, order: Sequence[int], seconds: float) -> tuple[Prepared, Packing]:
    """The graph, condensed, with an order to begin at, and its places under that."""
    prepared = prepare(graph, start=order)
    problem = _Program.problem(prepared.arrays, prepared.start)
    return prepared, place(problem, time_limit=max(seconds, _LEAST_SECONDS))


def _in_bytes(limits: SolverLimits, unit: int, base: int) -> SolverLimits:
    """The limits, with a watch that converts units to bytes."""
    watch = limits.watch
    if watch is None:
        return limits
    return dataclasses.replace(
        limits,
        watch=lambda value, bound: watch(
            None if value is None else base + value * unit, base + whole_units(bound) * unit
        ),
    )


def _users(g: GraphArrays, e: int) -> list[int]:
    """The operators that touch a tensor."""
    return sorted({int(g.source[e]), *g.sink_idx[g.sink_ptr[e] : g.sink_ptr[e + 1]].tolist()})


def _always_live(g: GraphArrays) -> list[int]:
    """The buffers that hold something at every step: an argument, and from its last use a result.

    Nothing lies between the two if the operator that makes the result reads the argument, since
    all its other readers run before.
    """
    found = []
    for buffer in np.unique(g.buffer[g.live_in]).tolist():
        mine = np.flatnonzero(g.buffer == buffer)
        given, made = mine[g.live_in[mine]], mine[~g.live_in[mine]]
        if len(given) == len(made) == 1 and g.live_out[made[0]]:
            if int(g.source[made[0]]) in _users(g, int(given[0])):
                found.append(buffer)
    return found


class _Program:
    """Lifetimes, addresses A in [0, M], and the rows of pairs.

    Args:
      g: the condensed graph. bound: no arena is lower, bytes.
      most: M, a height above what is live all the time that is known to do, bytes.

    Raises:
      InputError: there are too many pairs.
    """

    def __init__(self, g: GraphArrays, bound: int, most: int) -> None:
        pairs = self._pairs(g)
        if len(pairs) > MOST_PAIRS:
            raise InputError(
                f"the joint program has {len(pairs):,} pairs of tensors, of {MOST_PAIRS:,} that "
                "are built at most; find the order first, then the places"
            )
        self._g = g
        self.ilp = RunningIlp(g, bound_bytes=bound)
        self.model: LinearModel = self.ilp.model
        scale = self.ilp.scale
        self._most = most // scale.unit
        self.model.bound(self.ilp.peak, min(scale.to_units(bound), self._most), self._most)
        self._buffers, self._number = np.unique(g.buffer, return_inverse=True)
        self._sizes = np.zeros(len(self._buffers), np.int64)
        np.maximum.at(self._sizes, self._number, scale.sizes)
        bottom, fixed = 0, {}
        for buffer in _always_live(g):
            k = int(np.searchsorted(self._buffers, buffer))
            fixed[k] = bottom
            bottom += int(self._sizes[k])
        self._address = []
        for k, size in enumerate(self._sizes.tolist()):
            low = fixed.get(k, bottom if size else 0)
            high = fixed.get(k, max(self._most - size, low))
            self._address.append(self.model.add_variable(low, high, name=f"A[{k}]"))
            if size and k not in fixed:  # A_k + S_k <= peak
                self.model.add_row(
                    [self._address[k], self.ilp.peak], [1, -1], upper=-size, tag="(8)"
                )
        self._chosen: dict[tuple[int, int], tuple[int, int | None]] = {}
        self._reach = Reach.of(g)
        self._apart: dict[tuple[tuple[int, ...], int], int] = {}
        self._add_pairs(pairs, set(fixed))

    @staticmethod
    def problem(g: GraphArrays, order: Sequence[int] | np.ndarray) -> PlacementProblem:
        """Places under an order: what is live all the time at the bottom."""
        lives = intervals(g, order)
        fixed = np.full(g.m, -1, np.int64)
        bottom = 0
        for buffer in _always_live(g):
            fixed[g.buffer == buffer] = bottom
            bottom += int(g.bytes[g.buffer == buffer].max())
        upper = np.maximum(lives[:, 1], lives[:, 0] + 1)
        _, group = np.unique(g.buffer, return_inverse=True)
        size = np.zeros(g.m, np.int64)
        np.maximum.at(size, group, g.bytes)  # the program has one size for a buffer
        return PlacementProblem.of(lives[:, 0], upper, size[group], fixed=fixed, group=group)

    @staticmethod
    def _pairs(g: GraphArrays) -> list[tuple[int, int, bool, bool]]:
        """Pairs (i, j) of tensors, and whether an order may keep i before j, and j before i.

        Section 4.2 rules out those of which one is dead before the other is made in every order.
        """
        reach = Reach.of(g)
        users = [_users(g, e) for e in range(g.m)]

        def always(i: int, j: int) -> bool:
            source = int(g.source[j])
            ends = not g.live_out[i] and not g.live_in[j]
            return ends and all(reach.is_before(u, source) for u in users[i])

        def ever(i: int, j: int) -> bool:
            source = int(g.source[j])
            ends = not g.live_out[i] and not g.live_in[j]
            return ends and not any(u == source or reach.is_before(source, u) for u in users[i])

        return [
            (i, j, ever(i, j), ever(j, i))
            for i, j in itertools.combinations(range(g.m), 2)
            if g.buffer[i] != g.buffer[j] and g.bytes[i] and g.bytes[j]
            if not (always(i, j) or always(j, i))
        ]

    def _add_pairs(self, pairs: Sequence[tuple[int, int, bool, bool]], fixed: set[int]) -> None:
        """(6) and (7), of buffers that are not all the time live."""
        meeting: dict[tuple[int, int], list[tuple[int, int, bool, bool]]] = {}
        for i, j, before, after in pairs:
            k, m = int(self._number[i]), int(self._number[j])
            if k in fixed or m in fixed:
                continue
            pair = (i, j, before, after) if k < m else (j, i, after, before)
            meeting.setdefault((min(k, m), max(k, m)), []).append(pair)
        for (k, m), found in meeting.items():
            certain = any(not before and not after for _, _, before, after in found)
            a = self.model.add_variable(name=f"a[{k},{m}]")
            b = None if certain else self.model.add_variable(name=f"b[{k},{m}]")
            self._chosen[k, m] = a, b
            self._add_below(k, m, a, 1, "(7a)")
            self._add_below(m, k, a if b is None else b, int(b is not None), "(7b)")
            if b is not None:
                for i, j, before, after in found:
                    terms = LinearTerms().plus(a).plus(b)
                    for apart in [(i, j)] * before + [(j, i)] * after:
                        terms.plus(self._add_apart(*apart))
                    terms.into(self.model, lower=1, tag="(6)")

    def _add_apart(self, i: int, j: int) -> int:
        """A binary that may be 1 if all that touches i runs before j is made."""
        g, n = self._g, self._g.n
        source, users = int(g.source[j]), tuple(self._reach.latest(_users(g, i)))
        if (users, source) in self._apart:
            return self._apart[users, source]
        column = self.model.add_variable(name=f"apart[{i},{j}]")
        self._apart[users, source] = column
        for u in users:
            # p_u + 1 <= p_source + n (1 - column)
            late = self.ilp.position(LinearTerms(), u, 1)
            self.ilp.position(late, source, -1)
            late.plus(column, n).into(self.model, upper=n - 1, tag="apart")
        return column

    def _add_below(self, k: int, m: int, chosen: int, value: int, tag: str) -> None:
        """A_k + S_k <= A_m where `chosen` has that value."""
        size, most = int(self._sizes[k]), self._most
        columns = [self._address[k], self._address[m], chosen]
        if value:
            self.model.add_row(columns, [1, -1, most], upper=most - size, tag=tag)
        else:
            self.model.add_row(columns, [1, -1, -most], upper=-size, tag=tag)

    def start(self, order: np.ndarray, packing: Packing) -> np.ndarray:
        """The point of an order and of a packing for it."""
        assert packing.offsets is not None
        g = self._g
        x = self.ilp.start(order)
        at = np.zeros(len(self._buffers), np.int64)
        at[self._number] = packing.offsets // self.ilp.scale.unit
        x[self._address] = at
        x[self.ilp.peak] = packing.height // self.ilp.scale.unit
        position = g.positions(order)
        for (users, source), column in self._apart.items():
            x[column] = max(position[u] for u in users) < position[source]
        for (k, m), (a, b) in self._chosen.items():
            x[a] = at[k] + self._sizes[k] <= at[m]
            if b is not None:
                x[b] = not x[a] and at[m] + self._sizes[m] <= at[k]
        return x

    def offsets(self, x: np.ndarray) -> np.ndarray:
        """Bytes above what is live all the time, by tensor, of a checked point."""
        units = np.rint(x[self._address]).astype(np.int64)
        return units[self._number] * self.ilp.scale.unit
