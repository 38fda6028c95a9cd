"""Orders improved at their peak by minimum cuts, which prove how far they can be improved.

At the operator `v` where an order peaks, a minimum cut gives the least bytes that can be live there
and a set of operators that, run before `v`, attains it (`memory.mincut`). If those bytes are the
peak, no order has a lower one. Else that set moves before `v` and all other operators after it,
both in the order they had. The peak is then elsewhere, mostly lower, and the same is done there.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays, sum_by
from olla_xla.memory.lifetimes import timeline
from olla_xla.memory.mincut import Closure, closure, least_live

_MOVES = 64  # most moves from one start
_PROOF = 4_000_000  # most operators, times the graph's size, at which a bound is sought
_TOGETHER = 16  # most operators of which one must come first
_PATIENCE = 12  # moves without a lower peak before a start is given up


class Cuts:
    """The minimum cuts of one graph, by operator: the least bytes that are live at it in any order,
    which bound the peak of all orders from below.

    Attributes:
      graph: the graph. bound: the largest so far (bytes), by one cut or by several together.
      at: the operator with the largest cut of its own; -1 if none is above the first bound.
    """

    def __init__(self, graph: GraphArrays, bound: int = 0) -> None:
        self.graph = graph
        self.bound = bound
        self.at = -1
        self._largest = bound
        self._known: dict[int, Closure] = {}

    def __getitem__(self, v: int) -> Closure:
        if v not in self._known:
            closure = self._known[v] = least_live(self.graph, v)
            self.bound = max(self.bound, closure.bytes)
            if closure.bytes > self._largest:
                self._largest, self.at = closure.bytes, v
        return self._known[v]

    def __len__(self) -> int:
        return len(self._known)


def improve(
    cuts: Cuts, order: NDArray[np.int64], offer: Callable[[NDArray[np.int64], int], None]
) -> tuple[NDArray[np.int64], int]:
    """Lowers an order's peak by minimum cuts, until it meets the bound or no cut lowers it.

    Args:
      cuts: of the graph. order: int64 [n], legal.
      offer: called with every new order and its peak in bytes.

    Returns:
      The best order met and its peak in bytes.
    """
    g = cuts.graph
    best, least, idle = order, -1, 0
    live = timeline(g, order)
    for _ in range(_MOVES):
        step = int(np.argmax(live))
        peak = int(live[step])
        if least < 0 or peak < least:
            best, least, idle = order, peak, 0
        else:
            idle += 1
        v = int(order[step])
        closure = cuts[v]
        if least <= cuts.bound or idle > _PATIENCE:
            break
        first = closure.before[order]
        later = ~first & (order != v)
        moved = np.concatenate([order[first], [v], order[later]])
        if np.array_equal(moved, order):
            break
        order = moved
        live = timeline(g, order)
        offer(order, int(live.max()))
    return best, least


def prove(cuts: Cuts, order: NDArray[np.int64], spend: Callable[[], None]) -> None:
    """Raises `cuts.bound`, the peak's lower bound, as far as cuts of single operators can. A cut
    gives no more than the bytes live at its operator in any order. So cuts are made only at
    operators with more bytes live in `order`, a legal one, than the bound, the largest first.
    `spend` is called before each.
    """
    live = timeline(cuts.graph, order)
    steps = np.argsort(-live, kind="stable")[: max(_PROOF // max(len(order), 1), 1)]
    for step in steps:
        if live[step] <= cuts.bound:
            break
        spend()
        cuts[int(order[step])]


def needs(g: GraphArrays) -> NDArray[np.int64]:
    """int64 [n]: bytes of tensors that each operator reads and makes, and its transient bytes."""
    readers = np.repeat(np.arange(g.n), np.diff(g.in_ptr))
    return g.transient + g.made + sum_by(readers, g.bytes[g.in_idx], g.n)


def prove_together(cuts: Cuts, spend: Callable[[], None]) -> None:
    """Raises `cuts.bound` by sets of operators of which one must run first, and one last.

    In any order one operator of a set runs before all the others. So the peak is at least the
    minimum, over v in the set, of the least bytes at v with the others after v; likewise for the
    last one. The operator with the minimum is removed from the set, and so on. `spend` is called
    before every new cut.
    """
    g = cuts.graph
    need = needs(g)
    most = min(_TOGETHER, math.isqrt(_PROOF // max(g.n, 1)))
    chosen = np.argsort(-need, kind="stable")[:most].tolist()
    for which in ("late", "early"):
        group = list(chosen)
        while len(group) > 1:
            least, weakest = -1, -1
            for v in group:
                others = np.zeros(g.n, np.bool_)
                others[[u for u in group if u != v]] = True
                bytes = _live_beside(g, v, others, which, spend)
                if least < 0 or bytes < least:
                    least, weakest = bytes, v
                if bytes <= cuts.bound:
                    break
            cuts.bound = max(cuts.bound, least)
            group.remove(weakest)


def _live_beside(
    g: GraphArrays, v: int, others: NDArray[np.bool_], which: str, spend: Callable[[], None]
) -> int:
    """Least bytes at operator `v` if `others` run after it (`which` is "late") or before ("early");
    int64's largest if that is impossible.
    """
    reached = closure(others, g, forward=which == "late")
    if reached[v]:
        return np.iinfo(np.int64).max
    spend()
    return least_live(g, v, **{which: reached}).bytes
