"""Orders by simple rules, from which the search starts and against which it competes.

List scheduling runs one operator after another, the best of those that are ready.

Three rules, each with ties broken by index:
- `list_order`: the operator that frees the most bytes, net of those it makes, as XLA's list
  scheduler.
- `least_peak_order`: the operator that keeps the peak so far lowest, then frees the most, net
  (the least-peak-memory-first rule of PyTorch Inductor).
- `backward_order`: the list rule on the reversed graph, from the last operator to the first: the
  operator that needs the fewest bytes of inputs not yet needed, net of the outputs it makes.
"""

import heapq
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlo.walk import after_needs
from olla_xla.memory.arrays import GraphArrays, rows, sum_by, topological_order
from olla_xla.memory.jit import loop
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.condense import reduce_graph


def by_priority(g: GraphArrays, priority: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order, int64 [n], that always takes the ready operator of least priority, then index."""
    waiting = np.diff(g.pred_ptr)
    heap = [(int(priority[v]), int(v)) for v in np.flatnonzero(waiting == 0)]
    heapq.heapify(heap)
    order = np.empty(g.n, np.int64)
    for t in range(g.n):
        _, v = heapq.heappop(heap)
        order[t] = v
        for u in g.succ_idx[g.succ_ptr[v] : g.succ_ptr[v + 1]]:
            waiting[u] -= 1
            if waiting[u] == 0:
                heapq.heappush(heap, (int(priority[u]), int(u)))
    return order


def list_order(g: GraphArrays) -> NDArray[np.int64]:
    """Order, int64 [n]: always the ready operator that frees most bytes, less those it makes."""
    state = _state(g)
    uses = state.uses.tolist()

    def touched(tensor: int) -> bool:
        uses[tensor] -= 1
        return uses[tensor] == 1  # the one sink left will free it

    net, after = g.made - state.freed, rows(g.succ_ptr, g.succ_idx)
    return np.array(_listed(g, net, state.waiting, after, touched, 1), np.int64)


def least_peak_order(g: GraphArrays) -> NDArray[np.int64]:
    """Order, int64 [n]: always the ready operator that raises the peak so far least."""
    order, ready = np.empty((2, g.n), np.int64)
    _least_peak(g, _state(g), int(g.bytes[g.live_in].sum()), order, ready)
    return order


def backward_order(g: GraphArrays) -> NDArray[np.int64]:
    """Builds an order, int64 [n], from its end: always the operator with the fewest bytes of inputs
    that nothing later reads, less those of the outputs it makes.
    """
    taken = g.live_out.tolist()

    def touched(tensor: int) -> bool:
        before, taken[tensor] = taken[tensor], True
        return not before  # it is live now, so other readers do not add its bytes

    readers = np.repeat(np.arange(g.n), np.diff(g.in_ptr))
    needs = ~g.live_out[g.in_idx]
    new = sum_by(readers[needs], g.bytes[g.in_idx[needs]], g.n)
    before = rows(g.pred_ptr, g.pred_idx)
    order = _listed(g, new - g.made, np.diff(g.succ_ptr), before, touched, -1)
    return np.array(order[::-1], np.int64)


def _listed(
    g: GraphArrays,
    net: NDArray[np.int64],
    waiting: NDArray[np.int64],
    follow: list[list[int]],
    touched: Callable[[int], bool],
    sign: int,
) -> list[int]:
    """A list of operators, always taking the ready one of least net bytes next.

    Args:
      g: the graph. net: int64 [n], bytes that taking each operator adds, on balance.
      waiting: int64 [n], operators that must be taken before each. follow: those that wait for it.
      touched: called with each tensor that a taken operator reads: whether from now on its bytes
        count less at other operators that read it.
      sign: 1, or -1 to break ties by the highest index instead of the lowest.
    """
    reads, sinks = rows(g.in_ptr, g.in_idx), rows(g.sink_ptr, g.sink_idx)
    sizes, left, key_of = g.bytes.tolist(), waiting.tolist(), net.tolist()
    done = [False] * g.n
    heap = [(key_of[v], sign * v) for v in range(g.n) if left[v] == 0]
    heapq.heapify(heap)
    order = []
    while heap:
        key, signed = heapq.heappop(heap)
        v = sign * signed
        if done[v] or key != key_of[v]:  # its key has fallen since
            continue
        done[v] = True
        order.append(v)
        for a in reads[v]:
            for u in sinks[a] if touched(a) else ():
                if not done[u]:
                    key_of[u] -= sizes[a]
                    if left[u] == 0:
                        heapq.heappush(heap, (key_of[u], sign * u))
        for u in follow[v]:
            left[u] -= 1
            if left[u] == 0:
                heapq.heappush(heap, (key_of[u], sign * u))
    return order


class _Progress(NamedTuple):
    """How far a schedule from the first operator on has come; loops change it in place.

    Attributes:
      waiting: int64 [n], predecessors that have not run. done: bool [n].
      uses: int64 [m], readers that have not run, one more if it is live to the end.
      freed: int64 [n], bytes that an operator would free if it ran next.
    """

    waiting: NDArray[np.int64]
    done: NDArray[np.bool_]
    uses: NDArray[np.int64]
    freed: NDArray[np.int64]


def _state(g: GraphArrays) -> _Progress:
    """The `_Progress` of a schedule before its first operator."""
    uses = np.diff(g.sink_ptr) + g.live_out
    unused = uses == 0
    freed = sum_by(g.source[unused], g.bytes[unused], g.n)
    single = (uses == 1) & ~g.live_out
    np.add.at(freed, g.sink_idx[g.sink_ptr[:-1][single]], g.bytes[single])
    return _Progress(
        waiting=np.diff(g.pred_ptr), done=np.zeros(g.n, np.bool_), uses=uses, freed=freed
    )


@loop
def _least_peak(
    g: GraphArrays, s: _Progress, live: Any, order: NDArray[np.int64], ready: NDArray[np.int64]
) -> None:
    """Writes to `order` the one in which always the ready operator runs that raises the peak so far
    least. `live`: bytes before the first. `s`, `ready`: overwritten.
    """
    count = 0
    for v in range(g.n):
        if s.waiting[v] == 0:
            ready[count] = v
            count += 1
    peak = live
    for t in range(g.n):
        best = 0
        best_peak, best_net = np.int64(0), np.int64(0)
        for j in range(count):
            v = ready[j]
            high = max(peak, live + g.made[v] + g.transient[v])
            net = g.made[v] - s.freed[v]
            if j == 0 or (high, net, v) < (best_peak, best_net, ready[best]):
                best, best_peak, best_net = j, high, net
        v = ready[best]
        ready[best] = ready[count - 1]
        count -= 1
        order[t] = v
        s.done[v] = True
        peak = best_peak
        live += best_net
        for k in range(g.in_ptr[v], g.in_ptr[v + 1]):
            a = g.in_idx[k]
            s.uses[a] -= 1
            if s.uses[a] == 1:
                for e in range(g.sink_ptr[a], g.sink_ptr[a + 1]):
                    if not s.done[g.sink_idx[e]]:
                        s.freed[g.sink_idx[e]] += g.bytes[a]
        for k in range(g.succ_ptr[v], g.succ_ptr[v + 1]):
            u = g.succ_idx[k]
            s.waiting[u] -= 1
            if s.waiting[u] == 0:
                ready[count] = u
                count += 1


# Depth-first orders: an operator runs right after what it needs.
#
# - `post_order`: predecessors in index order.
# - `dfs_order`: as XLA's DFS memory scheduler: first the predecessor whose inputs have the most
# extra users, then the one that needs the most bytes.


def post_order(g: GraphArrays) -> NDArray[np.int64]:
    """The depth-first order, int64 [n], that visits predecessors, and roots, by index."""
    return _visit(g.pred_ptr, g.pred_idx, _sinks_first(g))


def dfs_order(g: GraphArrays) -> NDArray[np.int64]:
    """Depth-first order, int64 [n], of the predecessors of each operator. First come those below
    which most results have further users, then most bytes, then by index.
    """
    made = sum_by(g.source, g.bytes, g.n)
    extra, total = _needs(topological_order(g), g.pred_ptr, g.pred_idx, g.succ_ptr, made)
    rows = np.repeat(np.arange(g.n), np.diff(g.pred_ptr))
    rank = np.lexsort((g.pred_idx, -total[g.pred_idx], -extra[g.pred_idx], rows))
    by_need = g.pred_idx[rank]
    return _visit(g.pred_ptr, by_need, _sinks_first(g))


def _sinks_first(g: GraphArrays) -> NDArray[np.int64]:
    """Operators without successors, int64, by index: from them depth-first visits start."""
    return np.flatnonzero(np.diff(g.succ_ptr) == 0)


def _needs(
    order: NDArray[np.int64],
    pred_ptr: NDArray[np.int64],
    pred_idx: NDArray[np.int64],
    succ_ptr: NDArray[np.int64],
    made: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(users beyond one, bytes made) of each operator and all that it needs, each int64 [n]. Shared
    needs count each time. Both are capped, as in XLA, for they would grow exponentially.
    """
    limit = 1 << 40
    before = rows(pred_ptr, pred_idx)
    extra = np.maximum(np.diff(succ_ptr) - 1, 0).tolist()
    total = made.tolist()
    for v in order.tolist():
        for u in before[v]:
            extra[v] = min(limit, extra[v] + extra[u])
            total[v] = min(limit, total[v] + total[u])
    return np.array(extra, np.int64), np.array(total, np.int64)


def _visit(
    pred_ptr: NDArray[np.int64], pred_idx: NDArray[np.int64], roots: NDArray[np.int64]
) -> NDArray[np.int64]:
    before = rows(pred_ptr, pred_idx)
    return np.array(after_needs(roots.tolist(), before.__getitem__), np.int64)


HEURISTICS = {
    "list": list_order,
    "least_peak": least_peak_order,
    "backward_list": backward_order,
    "dfs": dfs_order,
    "post_order": post_order,
}
"""Name -> rule, from the arrays of a condensed graph to an order of its groups."""


def candidates(graph: TensorGraph | GraphArrays) -> dict[str, NDArray[np.int64]]:
    """Name -> legal order of all operators, int64 [n], one for each rule of `HEURISTICS`."""
    reduced = reduce_graph(GraphArrays.of(graph))
    return {name: reduced.expand(rule(reduced.arrays)) for name, rule in HEURISTICS.items()}
