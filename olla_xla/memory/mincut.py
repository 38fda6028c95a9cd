"""A lower bound on the live bytes at one operator, by a minimum cut, and the set that attains it.

Whatever the order, the operators that have run when `v` starts are closed under predecessors, hold
all ancestors of `v` and none of its descendants. Over all such sets `D` the bytes live at `v` are
least for a minimum closure: a tensor whose source is in `D` is live unless all its sinks are. That
is a minimum cut, with `D` on its source side: one arc of the tensor's bytes from its source to a
node from which arcs without limit lead to its sinks, and such arcs from each operator to its
predecessors.

In-place reuse at `v`: an input that may die at `v` and whose memory an output takes over is not
counted twice. Same-buffer inputs always pass theirs on. Of the others, as many of one size as there
are outputs for them may; every choice of which is tried where these are few, and else their bytes
are taken off. So the bound holds for every order, in-place reuse counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import jit
from olla_xla.solvers.max_flow import min_cut

__all__ = ["Closure", "closure", "least_live"]

_CHOICES = 12  # most choices of in-place inputs that are tried
_SOURCE, _SINK, _FIRST = 0, 1, 2  # node numbers: operator v is node _FIRST + v


@dataclasses.dataclass(frozen=True, eq=False)
class Closure:
    """The least live bytes at an operator.

    Attributes:
      operator: the operator. bytes: no order has fewer live bytes while it runs.
      before: bool [n], operators that have run before it where this is attained.
    """

    operator: int
    bytes: int
    before: np.ndarray


def least_live(
    graph: GraphArrays,
    v: int,
    early: np.ndarray | None = None,
    late: np.ndarray | None = None,
) -> Closure:
    """The least live bytes at operator `v` over all orders; see the module's docstring.

    Args:
      graph: the graph. v: the operator.
      early, late: bool [n], operators that must run before it and after it: with their ancestors,
        with their descendants. The bytes are then the least over such orders only.
    """
    g = graph
    alone = np.zeros(g.n, np.bool_)
    alone[v] = True
    before, after = closure(alone, g, forward=False), closure(alone, g, forward=True)
    if early is not None:
        before |= early
    if late is not None:
        after |= late
    side = np.full(g.n, -1, np.int64)
    side[before] = _SOURCE
    side[after] = _SINK  # v itself too: it has not finished
    choices, constant = _reuse(g, v, before, after)
    best: Closure | None = None
    for dropped in choices:
        tails, heads, capacities, base = _arcs(
            v,
            side,
            _mask(g.m, dropped),
            g.bytes,
            g.source,
            g.live_in,
            g.live_out,
            g.sink_ptr,
            g.sink_idx,
            g.pred_ptr,
            g.pred_idx,
        )
        value, nodes = min_cut(tails, heads, capacities, _SOURCE, _SINK)
        total = value + base + int(g.transient[v]) - constant
        if best is None or total < best.bytes:
            chosen = side == _SOURCE
            operators = nodes[(nodes >= _FIRST) & (nodes < _FIRST + g.n)] - _FIRST
            chosen[operators] = True
            best = Closure(v, total, chosen)
    assert best is not None
    return best


def _mask(m: int, tensors: tuple[int, ...]) -> np.ndarray:
    mask = np.zeros(m, np.bool_)
    mask[list(tensors)] = True
    return mask


def _reuse(
    g: GraphArrays, v: int, before: np.ndarray, after: np.ndarray
) -> tuple[list[tuple[int, ...]], int]:
    """The choices of inputs whose memory passes on at `v`, and bytes to take off in any case."""
    fixed: set[int] = set()
    certain: set[int] = set()
    givers: dict[int, set[int]] = {}
    takers: dict[int, set[int]] = {}
    pairs = range(int(g.pair_ptr[v]), int(g.pair_ptr[v + 1]))
    for k in sorted(pairs, key=lambda k: not g.pair_must[k]):
        a, b = int(g.pair_a[k]), int(g.pair_b[k])
        others = [int(s) for s in g.sink_idx[g.sink_ptr[a] : g.sink_ptr[a + 1]] if s != v]
        if any(after[s] for s in others):
            continue
        if g.pair_must[k]:
            fixed.add(a)
            if all(before[s] for s in others):
                certain.add(b)
        elif a not in fixed and b not in certain:
            givers.setdefault(int(g.bytes[a]), set()).add(a)
            takers.setdefault(int(g.bytes[a]), set()).add(b)
    options: list[list[tuple[int, ...]]] = []
    constant, count = 0, 1
    for size, group in givers.items():
        room = len(takers[size])
        ways = math.comb(len(group), min(room, len(group)))
        if count * ways > _CHOICES:
            constant += size * room
            continue
        count *= ways
        options.append(list(itertools.combinations(sorted(group), min(room, len(group)))))
    choices = [(*fixed, *itertools.chain(*parts)) for parts in itertools.product(*options)]
    return choices, constant


def closure(operators: np.ndarray, g: GraphArrays, *, forward: bool) -> np.ndarray:
    """Bool [n]: the given operators (bool [n]) and all their descendants, or their ancestors."""
    if forward:
        return _closure(operators, g.succ_ptr, g.succ_idx)
    return _closure(operators, g.pred_ptr, g.pred_idx)


@jit
def _closure(operators: np.ndarray, ptr: np.ndarray, idx: np.ndarray) -> np.ndarray:
    n = len(operators)
    reached = operators.copy()
    stack = np.empty(n, np.int64)
    count = 0
    for v in range(n):
        if reached[v]:
            stack[count] = v
            count += 1
    while count:
        count -= 1
        u = stack[count]
        for k in range(ptr[u], ptr[u + 1]):
            w = idx[k]
            if not reached[w]:
                reached[w] = True
                stack[count] = w
                count += 1
    return reached


@jit
def _arcs(
    v: int,
    side: np.ndarray,
    dropped: np.ndarray,
    size: np.ndarray,
    source: np.ndarray,
    live_in: np.ndarray,
    live_out: np.ndarray,
    sink_ptr: np.ndarray,
    sink_idx: np.ndarray,
    pred_ptr: np.ndarray,
    pred_idx: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The arcs of the cut problem at `v`, and the bytes that are live at `v` in any case."""
    n, m = len(side), len(size)
    most = 2 * m + len(sink_idx) + len(pred_idx)
    tails = np.empty(most, np.int64)
    heads = np.empty(most, np.int64)
    capacities = np.empty(most, np.int64)
    count, base, infinite = 0, 0, np.int64(1)
    for i in range(m):
        infinite += size[i]
    spare = 2 + n
    for i in range(m):
        if size[i] == 0:
            continue
        made = source[i]
        if made == v and not live_in[i]:
            base += size[i]
            continue
        tail = np.int64(0) if live_in[i] or side[made] == 0 else 2 + made
        if not live_in[i] and side[made] == 1:
            continue
        forced, open_sinks, some = live_out[i], 0, np.int64(-1)
        if live_in[i]:  # it stays until its source has run
            if side[made] == 1:
                forced = True
            elif side[made] != 0:
                open_sinks, some = 1, 2 + made
        for k in range(sink_ptr[i], sink_ptr[i + 1]):
            s = sink_idx[k]
            if s == v and dropped[i]:
                continue
            if side[s] == 1:
                forced = True
            elif side[s] != 0:
                open_sinks += 1
                some = 2 + s
        if forced:
            if tail == 0:
                base += size[i]
            else:
                tails[count], heads[count], capacities[count] = tail, 1, size[i]
                count += 1
        elif open_sinks == 1:
            if some != tail:
                tails[count], heads[count], capacities[count] = tail, some, size[i]
                count += 1
        elif open_sinks > 1:
            tails[count], heads[count], capacities[count] = tail, spare, size[i]
            count += 1
            if live_in[i] and side[made] == -1:
                tails[count], heads[count], capacities[count] = spare, 2 + made, infinite
                count += 1
            for k in range(sink_ptr[i], sink_ptr[i + 1]):
                s = sink_idx[k]
                if side[s] == -1:
                    tails[count], heads[count], capacities[count] = spare, 2 + s, infinite
                    count += 1
            spare += 1
    for u in range(n):
        if side[u] != -1:
            continue
        for k in range(pred_ptr[u], pred_ptr[u + 1]):
            w = pred_idx[k]
            if side[w] == -1:
                tails[count], heads[count], capacities[count] = 2 + u, 2 + w, infinite
                count += 1
    return tails[:count], heads[:count], capacities[:count], base
