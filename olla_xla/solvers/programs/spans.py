"""When operators can run and tensors can be of use: the spans of section 4.1 of the paper.

Steps are numbered from 0 to n - 1, n being the number of operators.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays, topological_order


@dataclasses.dataclass(frozen=True, eq=False)
class Reach:
    """Which operators must run before which others, as bit sets (bit u of an int: operator u).

    Attributes:
      before: by operator, its ancestors. after: its descendants.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, g: GraphArrays) -> Reach:
        """Computes the Reach of a graph: the transitive closure of its edges of all kinds."""
        order = topological_order(g).tolist()
        before, after = [0] * g.n, [0] * g.n
        for v in order:
            for u in g.pred_idx[g.pred_ptr[v] : g.pred_ptr[v + 1]].tolist():
                before[v] |= before[u] | 1 << u
        for u in reversed(order):
            for v in g.succ_idx[g.succ_ptr[u] : g.succ_ptr[u + 1]].tolist():
                after[u] |= after[v] | 1 << v
        return cls(tuple(before), tuple(after))

    def is_before(self, u: int, v: int) -> bool:
        """Whether u runs before v in every order."""
        return bool(self.before[v] >> u & 1)

    def latest(self, users: list[int]) -> list[int]:
        """Those of `users` (operators) that no other of them must follow: one of these is last."""
        return [u for u in users if not any(self.before[w] >> u & 1 for w in users)]

    def direct(self, g: GraphArrays) -> list[tuple[int, int]]:
        """The edges (u, v), u before v, that the others do not imply (the transitive reduction)."""
        pairs = []
        for v in range(g.n):
            near = g.pred_idx[g.pred_ptr[v] : g.pred_ptr[v + 1]].tolist()
            pairs += [(u, v) for u in self.latest(near)]
        return pairs


@dataclasses.dataclass(frozen=True, eq=False)
class StepSpans:
    """The first and last step at which each operator can run and each tensor can be in memory.
    Numbers such as (10) are equations of the OLLA paper.

    Attributes:
      first, last: [n] the earliest and the latest step of each operator, (10).
      useful_first, useful_last: [m] the maximum useful lifetime of each tensor, (11): it can be
        preserved (in memory after it was made) at these steps only. Empty (first > last) if it is
        never preserved.
      held_first, held_last: [m] the steps at which it is preserved whatever the order, (12).
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    useful_first: NDArray[np.int64]
    useful_last: NDArray[np.int64]
    held_first: NDArray[np.int64]
    held_last: NDArray[np.int64]


def spans(g: GraphArrays, reach: Reach) -> StepSpans:
    """Computes the StepSpans of a graph, each operator of which has a step of its own."""
    first = np.array([s.bit_count() for s in reach.before], np.int64)
    last = g.n - 1 - np.array([s.bit_count() for s in reach.after], np.int64)
    useful_first, useful_last = np.zeros(g.m, np.int64), np.zeros(g.m, np.int64)
    held_first, held_last = np.zeros(g.m, np.int64), np.zeros(g.m, np.int64)
    for e in range(g.m):
        users = users_of(g, e)
        born = -1 if g.live_in[e] else int(first[g.source[e]])
        certain = -1 if g.live_in[e] else int(last[g.source[e]])
        useful_first[e], held_first[e] = born + 1, certain + 1
        useful_last[e] = (
            g.n - 1 if g.live_out[e] else max((int(last[u]) for u in users), default=-1)
        )
        held_last[e] = g.n - 1 if g.live_out[e] else _soonest_last_use(users, first, reach)
    held_last[np.unique(g.pair_a)] -= 1  # at its last step its memory may have passed on
    return StepSpans(first, last, useful_first, useful_last, held_first, held_last)


def coefficients(g: GraphArrays) -> int:
    """An estimate of the number of coefficients in the rows of RunningIlp: up to twice too many. An
    operator has one for each step of its span in the row of that step, and two for each pair with a
    direct predecessor; a tensor one in each row of (14) and three for each user.
    """
    span = spans(g, Reach.of(g))
    wide = np.maximum(span.last - span.first, 0)
    useful = np.maximum(span.useful_last - span.useful_first + 1, 0)
    users = np.diff(g.sink_ptr)
    return int((wide * (1 + 2 * np.diff(g.pred_ptr))).sum() + (useful * (1 + 3 * users)).sum())


def users_of(g: GraphArrays, e: int) -> list[int]:
    """The operators that need tensor `e` in memory after its source has run; of an argument, which
    is live from the start, the source too.
    """
    users = set(g.sink_idx[g.sink_ptr[e] : g.sink_ptr[e + 1]].tolist()) - {int(g.source[e])}
    if g.live_in[e]:
        users.add(int(g.source[e]))
    return sorted(users)


def _soonest_last_use(users: list[int], first: NDArray[np.int64], reach: Reach) -> int:
    """The earliest step at which the last of the operators `users` can run; -1 without any.
    `first`: the earliest step of each operator.
    """
    if not users:
        return -1
    needed = 0
    for u in users:
        needed |= reach.before[u] | 1 << u
    return max(needed.bit_count() - 1, *(int(first[u]) for u in users))
