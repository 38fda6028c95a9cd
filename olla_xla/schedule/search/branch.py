"""Branch and bound on which of two operators runs first, where minimum cuts leave a gap.

A minimum cut gives the least bytes at one operator, with a set of operators that has then run
(`memory.mincut`). The sets of two operators u and v can contradict each other: by one of them u
runs before v, by the other v before u. Then the case is split in two, each with one order of u and
v as a precedence for all cuts; the lower of their bounds holds for the graph. If no sets of a case
contradict each other, they give an order. If its peak exceeds the case's bound, operators that
cause this are added to those whose cuts are made (`matter`).

Cases with the least bound come first (Land and Doig 1960), so the bound proven so far holds
whenever the search ends.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import timeline
from olla_xla.memory.mincut import Closure, closure, least_live
from olla_xla.schedule.rules import by_priority
from olla_xla.schedule.search.cuts import Cuts, needs

_FIRST = 24  # operators whose cuts are made, at first
_MOST = 96  # and at most
_PAIRS = 6  # pairs tried for a split; the one that raises the bound most is taken
_JOIN = 4  # operators added at a time, at most
_WORK = 3_000_000  # cuts times the graph's size, at most


@dataclasses.dataclass(eq=False)
class _Case:
    """A subproblem: `graph` with precedences added, a lower `bound` of its orders' peaks in bytes,
    and the minimum `cuts` made so far, by operator.
    """

    graph: GraphArrays
    bound: int
    cuts: dict[int, Closure]


def branch(
    cuts: Cuts,
    order: NDArray[np.int64],
    offer: Callable[[NDArray[np.int64], int], None],
    spend: Callable[[int], None],
) -> None:
    """Raises `cuts.bound`, the peak's lower bound, by branch and bound; may find lower peaks.

    Args:
      cuts: of the graph. order: int64 [n], the best known.
      offer: called with every new order and its peak in bytes.
      spend: called with the number of cuts that are made next; may raise to end the search.
    """
    search = _Branching(cuts, order, offer, spend)
    try:
        search.run()
    finally:
        cuts.bound = max(cuts.bound, min(search.proven, search.peak))


class _Branching:
    """One branch and bound search: subproblems (cases) yet to be split, and the best order so far.
    `peak`: of that order, in bytes. `proven`: bytes; no order has a lower peak.
    """

    def __init__(
        self,
        cuts: Cuts,
        order: NDArray[np.int64],
        offer: Callable[[NDArray[np.int64], int], None],
        spend: Callable[[int], None],
    ) -> None:
        self.graph = cuts.graph
        self.order = order
        self.peak = int(timeline(self.graph, order).max())
        self.proven = cuts.bound
        self.offer = offer
        self._spend = spend
        self.made = 0
        g = self.graph
        self.need = needs(g)
        many = np.argsort(-self.need, kind="stable")[: 3 * _FIRST].tolist()
        self.spend(len(many))
        known = {v: cuts[v] for v in many}
        self.matter = sorted(many, key=lambda v: (-known[v].bytes, v))[:_FIRST]
        self.heap: list[tuple[int, int, _Case]] = []
        self.count = itertools.count()
        self.push(_Case(g, cuts.bound, known))

    def spend(self, cuts: int) -> None:
        """Counts minimum cuts that are made next, and passes their number to the given `spend`."""
        self.made += cuts
        self._spend(cuts)

    def push(self, case: _Case) -> None:
        """Adds a subproblem (case) to the heap, which is ordered by their bounds."""
        heapq.heappush(self.heap, (case.bound, next(self.count), case))

    def run(self) -> None:
        """Splits subproblems until the least of their bounds meets the peak of the best order, or
        `_WORK` is spent; sets `proven`.
        """
        closed = self.peak  # the least bound of cases that could not be split
        while self.heap and self.made * self.graph.n < _WORK:
            bound, _, case = heapq.heappop(self.heap)
            self.proven = max(self.proven, min(bound, closed))
            if self.proven >= min(self.peak, closed):
                return
            self.complete(case)
            if case.bound > bound:
                self.push(case)
                continue
            pair = self.conflict(case)
            if pair is not None:
                for part in pair:
                    if part.bound < self.peak:
                        self.push(part)
            elif self.joined(case):
                self.push(case)
            else:
                closed = min(closed, case.bound)
        if not self.heap:
            self.proven = max(self.proven, min(closed, self.peak))

    def complete(self, case: _Case) -> None:
        """Makes the minimum cuts that a subproblem lacks, and raises its bound to the largest."""
        missing = [v for v in self.matter if v not in case.cuts]
        self.spend(len(missing))
        for v in missing:
            case.cuts[v] = least_live(case.graph, v)
        case.bound = max(case.bound, *(case.cuts[v].bytes for v in self.matter))

    def conflict(self, case: _Case) -> list[_Case] | None:
        """Splits a subproblem at two operators whose minimum cuts contradict each other. Each
        operator's cut says which others run before it. The cuts of u and v contradict each other if
        both say that the other operator runs first, or neither does.

        Returns:
          The case with u before v and the case with v before u, less infeasible ones; None if no
            two cuts contradict each other.
        """
        before = np.array([case.cuts[v].before[self.matter] for v in self.matter])
        first, second = np.nonzero(np.triu(before == before.T, 1))
        if not len(first):
            return None
        size = np.array([case.cuts[v].bytes for v in self.matter])
        weight = np.minimum(size[first], size[second])
        best: tuple[tuple[int, int], list[_Case]] | None = None
        for k in np.argsort(-weight, kind="stable")[:_PAIRS]:
            u, v = self.matter[first[k]], self.matter[second[k]]
            parts = [p for p in (self.case(case, u, v), self.case(case, v, u)) if p is not None]
            bounds = sorted(min(p.bound, self.peak) for p in parts)
            rank = (bounds[0] if bounds else self.peak, sum(bounds) if len(bounds) > 1 else 0)
            if len(parts) < 2:  # precedence already fixes the order of the two
                return parts
            if best is None or rank > best[0]:
                best = rank, parts
        assert best is not None
        return best[1]

    def case(self, case: _Case, u: int, v: int) -> _Case | None:
        """Makes a subproblem: `case` with u before v, and the minimum cuts of both; None if u needs
        v.
        """
        alone = np.zeros(self.graph.n, np.bool_)
        alone[v] = True
        if closure(alone, case.graph, forward=True)[u]:
            return None
        graph = _with_precedence(case.graph, u, v)
        self.spend(2)
        cuts = {w: least_live(graph, w) for w in (u, v)}
        return _Case(graph, max(case.bound, *(c.bytes for c in cuts.values())), cuts)

    def joined(self, case: _Case) -> bool:
        """Offers the order that a subproblem's minimum cuts give. True if its peak meets the
        subproblem's bound, or if operators were added to those with cuts; False if nothing is left
        to do for it.
        """
        rank = np.full(self.graph.n, len(self.matter), np.int64)
        by_size = sorted(self.matter, key=lambda v: (int(case.cuts[v].before.sum()), v))
        for k, v in reversed(list(enumerate(by_size))):
            rank[case.cuts[v].before] = k
        position = np.empty(self.graph.n, np.int64)
        position[self.order] = np.arange(self.graph.n)
        order = by_priority(case.graph, rank * self.graph.n + position)
        live = timeline(self.graph, order)
        self.offer(order, int(live.max()))
        if live.max() < self.peak:
            self.peak, self.order = int(live.max()), order
        if self.peak <= case.bound:
            return True  # the search ends when the case is taken next
        at = int(live.argmax())
        v = int(order[at])
        if v not in self.matter:
            return self.join([v])
        ran = np.zeros(self.graph.n, np.bool_)
        ran[order[:at]] = True
        other = np.flatnonzero(ran != case.cuts[v].before)
        return self.join(other[np.argsort(-self.need[other], kind="stable")].tolist())

    def join(self, operators: list[int]) -> bool:
        """Adds up to `_JOIN` operators to those at which cuts are made; whether any was added."""
        new = [v for v in operators if v not in self.matter][:_JOIN]
        new = new[: _MOST - len(self.matter)]
        self.matter += new
        return bool(new)


def _with_precedence(graph: GraphArrays, u: int, v: int) -> GraphArrays:
    """A copy of the graph in which operator u must run before v."""
    after = np.arange(graph.n + 1)
    return graph._replace(
        pred_ptr=graph.pred_ptr + (after > v),
        pred_idx=np.insert(graph.pred_idx, graph.pred_ptr[v + 1], u),
        succ_ptr=graph.succ_ptr + (after > u),
        succ_idx=np.insert(graph.succ_idx, graph.succ_ptr[u + 1], v),
    )
