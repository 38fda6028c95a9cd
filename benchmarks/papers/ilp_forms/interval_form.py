"""Orders as intervals: the problem of the serial ILPs, for a solver that supports intervals.

A tensor is a half-open interval of steps, from its source's step to one past its last user's; if a
user takes over its memory, it ends at that user's step. Memory is shared by the same rules as in
the ILPs (`sharing`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.papers.ilp_forms.intervals import Interval, IntervalModel, Option
from olla_xla.errors import SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.solvers.programs.prepared import Scale
from olla_xla.solvers.programs.sharing import InPlacePair, Sharing
from olla_xla.solvers.programs.spans import Reach, spans, users_of


def interval_model(
    g: GraphArrays, *, bound_bytes: int = 0, start: Sequence[int] | np.ndarray | None = None
) -> IntervalModel:
    """The model of a graph, in the units of `Scale.of(g)`; its optimum is the least peak.

    Args:
      g: to be ordered. bound_bytes: a known lower bound on the peak. start: a legal order.
    """
    scale, reach = Scale.of(g), Reach.of(g)
    sharing = Sharing.of(g, reach)
    span = spans(g, reach)
    number: dict[int, int] = {}
    options = []
    for pairs in sharing.pairs.values():
        for p in pairs:
            options.append(_option(p, pairs, sharing, number))
            number[p.number] = len(number)
    sized = np.flatnonzero(scale.sizes).tolist()
    return IntervalModel(
        first=tuple(span.first.tolist()),
        last=tuple(span.last.tolist()),
        precedence=tuple(reach.direct(g)),
        intervals=tuple(
            _interval(g, e, int(scale.sizes[e]), reach, sharing, number) for e in sized
        ),
        options=tuple(options),
        extra=tuple(scale.transient.tolist()),
        bound=scale.to_units(bound_bytes),
        most=scale.most,
        start=None if start is None else tuple(g.positions(start).tolist()),
    )


def _option(
    p: InPlacePair, pairs: Sequence[InPlacePair], sharing: Sharing, number: dict[int, int]
) -> Option:
    """Pair p, with `number` of the pairs before it."""
    before = [q for q in pairs if q.number in number]
    forced = sharing.forced.get((p.output, p.operator), ())
    return Option(
        job=p.operator,
        after=tuple(sharing.others[p.input, p.operator]),
        excludes=tuple(
            number[q.number] for q in before if q.output == p.output or q.input == p.input
        ),
        forced=p.operator in sharing.strict,
        blockers=tuple(tuple(sharing.others[a, p.operator]) for a in forced),
    )


def _interval(
    g: GraphArrays, e: int, load: int, reach: Reach, sharing: Sharing, number: dict[int, int]
) -> Interval:
    start = None if g.live_in[e] else int(g.source[e])
    if g.live_out[e]:
        return Interval(load, start, to_end=True)
    users = reach.latest(users_of(g, e)) or [int(g.source[e])]
    until = [u for u in users if (e, u) not in sharing.must]
    options = [
        (u, tuple(number[p.number] for p in sharing.of_input[e, u]))
        for u in until
        if (e, u) in sharing.of_input
    ]
    up_to = tuple(u for u in users if (e, u) in sharing.must)
    return Interval(load, start, tuple(until), up_to, options=tuple(options))


def order_of_steps(steps: np.ndarray) -> np.ndarray:
    """The order in which jobs run, from the step of each. Raises SolverError if two share one."""
    order = np.argsort(steps, kind="stable")
    if not np.array_equal(steps[order], np.arange(len(steps))):
        raise SolverError("the steps of the jobs are not a permutation")
    return order
