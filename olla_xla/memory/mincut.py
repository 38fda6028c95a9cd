"""A lower bound on the live bytes at one operator, by a minimum cut, and the set that attains it.

In every order, the set `D` of operators that have run when `v` starts is closed under predecessors,
contains all ancestors of `v` and none of its descendants. A tensor whose source is in `D` is live
unless all its sinks are in `D`. The least bytes over all such sets are a minimum cut with `D` on
its source side. Each tensor has an arc of its bytes from its source to a node of its own, and arcs
of infinite capacity from that node to its sinks. Each operator has arcs of infinite capacity to its
predecessors.

In-place reuse at `v`: an input that may die at `v` and whose memory an output takes over is not
counted twice. Same-buffer inputs always pass their memory on. Of the others of one size, as many
may as there are outputs for them: if there are few choices, each is tried, else their bytes are
subtracted. So the bound holds for every order, with in-place reuse.
"""

import dataclasses
import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import inner, loop
from olla_xla.memory.max_flow import min_cut

_CHOICES = 12  # most choices of in-place inputs that are tried

_SOURCE, _SINK, _FIRST = 0, 1, 2
"""Node numbers; operator v is node _FIRST + v, nodes for tensors come after all operators."""

_OPEN = -1
"""Side of an operator that may run before or after `v`; that of others is _SOURCE or _SINK."""

_FORCED = -1  # returned instead of a number of readers: the tensor is live whatever the cut


@dataclasses.dataclass(frozen=True, eq=False)
class Closure:
    """A lower bound on the bytes live while one operator runs, in the orders asked for (all, unless
    `least_live` was given operators that must run before or after it).

    Attributes:
      operator: the operator. bytes: none of these orders has fewer live bytes while it runs.
      before: bool [n], operators that have run before it in the cut that gives the bound.
    """

    operator: int
    bytes: int
    before: NDArray[np.bool_]


def least_live(
    graph: GraphArrays,
    v: int,
    early: NDArray[np.bool_] | None = None,
    late: NDArray[np.bool_] | None = None,
) -> Closure:
    """Bounds from below the bytes live while operator `v` runs, over all orders, by a minimum cut.
    They are the least possible unless too many choices of in-place inputs were left untried.

    Args:
      graph: the graph. v: the operator.
      early, late: bool [n], operators that must run before `v` (and their ancestors) and after it
        (and their descendants). The bound then holds for such orders only.
    """
    g = graph
    alone = np.zeros(g.n, np.bool_)
    alone[v] = True
    before, after = closure(alone, g, forward=False), closure(alone, g, forward=True)
    if early is not None:
        before |= early
    if late is not None:
        after |= late
    side = np.full(g.n, _OPEN, np.int64)
    side[before] = _SOURCE
    side[after] = _SINK  # v itself too: it has not finished
    choices, constant = _reuse(g, v, before, after)
    best: Closure | None = None
    for dropped in choices:
        tails, heads, capacities, base = _problem(g, v, side, _mask(g.m, dropped))
        value, nodes = min_cut(tails, heads, capacities, _SOURCE, _SINK)
        total = value + base + int(g.transient[v]) - constant
        if best is None or total < best.bytes:
            chosen = side == _SOURCE
            operators = nodes[(nodes >= _FIRST) & (nodes < _FIRST + g.n)] - _FIRST
            chosen[operators] = True
            best = Closure(v, total, chosen)
    assert best is not None
    return best


def _mask(m: int, tensors: tuple[int, ...]) -> NDArray[np.bool_]:
    mask = np.zeros(m, np.bool_)
    mask[list(tensors)] = True
    return mask


def _reuse(
    g: GraphArrays, v: int, before: NDArray[np.bool_], after: NDArray[np.bool_]
) -> tuple[list[tuple[int, ...]], int]:
    """Which inputs of operator `v` pass their memory on to its outputs: (choices to try, each a
    tuple of tensors; bytes to subtract in any case, for sizes of which there are too many choices).
    `before`, `after`: bool [n], operators that run before and after `v`.
    """
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
        most = len(takers[size])
        ways = math.comb(len(group), min(most, len(group)))
        if count * ways > _CHOICES:
            constant += size * most
            continue
        count *= ways
        options.append(list(itertools.combinations(sorted(group), min(most, len(group)))))
    choices = [(*fixed, *itertools.chain(*parts)) for parts in itertools.product(*options)]
    return choices, constant


def closure(operators: NDArray[np.bool_], g: GraphArrays, *, forward: bool) -> NDArray[np.bool_]:
    """Bool [n]: these operators and all that depend on them (`forward`), or that they depend on."""
    if forward:
        return _closure(operators, g.succ_ptr, g.succ_idx)
    return _closure(operators, g.pred_ptr, g.pred_idx)


def _closure(
    operators: NDArray[np.bool_], ptr: NDArray[np.int64], idx: NDArray[np.int64]
) -> NDArray[np.bool_]:
    reached = operators.copy()
    stack = np.empty(len(operators), np.int64)
    first = np.flatnonzero(operators)
    stack[: len(first)] = first
    _spread(reached, stack, len(first), ptr, idx)
    return reached


@loop
def _spread(
    reached: NDArray[np.bool_],
    stack: NDArray[np.int64],
    count: int,
    ptr: NDArray[np.int64],
    idx: NDArray[np.int64],
) -> None:
    """Marks in `reached` all that paths lead to from the first `count` operators on `stack`. `ptr`,
    `idx`: CSR, operator -> the next ones on paths.
    """
    while count:
        count -= 1
        u = stack[count]
        for k in range(ptr[u], ptr[u + 1]):
            w = idx[k]
            if not reached[w]:
                reached[w] = True
                stack[count] = w
                count += 1


class _Network(NamedTuple):
    """Arcs of a minimum cut problem, to which more are added.

    Attributes:
      tails, heads: int64 [most] nodes. capacities: int64 [most] bytes.
      count: int64 [1], arcs so far.
    """

    tails: NDArray[np.int64]
    heads: NDArray[np.int64]
    capacities: NDArray[np.int64]
    count: NDArray[np.int64]


@inner
def _add(network: _Network, tail: int, head: int, capacity: int) -> None:
    """Appends an arc to `network`, in place."""
    k = network.count[0]
    network.tails[k], network.heads[k], network.capacities[k] = tail, head, capacity
    network.count[0] = k + 1


def _problem(
    g: GraphArrays, v: int, side: NDArray[np.int64], dropped: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    """The minimum cut problem that tells the least bytes live while operator `v` runs.

    Args:
      g: the graph. v: the operator.
      side: int64 [n], _SOURCE for operators that run before v, _SINK for v and those after it, else
        _OPEN. dropped: bool [m], inputs whose memory passes on to an output at v.

    Returns:
      (tails, heads, capacities in bytes of the arcs; bytes that are live at `v` in any case).
    """
    most = 2 * g.m + len(g.sink_idx) + len(g.pred_idx)
    network = _Network(
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.zeros(1, np.int64),
    )
    readers = np.empty(g.n + 1, np.int64)
    base = _arcs(g, v, side, dropped, 1 + int(g.bytes.sum()), readers, network)
    count = network.count[0]
    return network.tails[:count], network.heads[:count], network.capacities[:count], base


@loop
def _arcs(
    g: GraphArrays,
    v: int,
    side: NDArray[np.int64],
    dropped: NDArray[np.bool_],
    infinite: int,
    readers: NDArray[np.int64],
    network: _Network,
) -> int:
    """Adds to `network` the arcs of the minimum cut problem that tells the least bytes live while
    operator `v` runs; returns the bytes live then in any case.

    Args:
      g, v, side, dropped: as in `_problem`. infinite: bytes, more than all tensors have.
      readers: int64 [n + 1], overwritten. network: without arcs.
    """
    base, spare = 0, _FIRST + g.n
    for i in range(g.m):
        made = g.source[i]
        if g.bytes[i] == 0 or (side[made] == _SINK and made != v and not g.live_in[i]):
            continue
        if made == v and not g.live_in[i]:
            base += g.bytes[i]
            continue
        tail = _SOURCE if g.live_in[i] or side[made] == _SOURCE else _FIRST + made
        count = _readers(g, v, side, i, dropped[i], readers)
        if count == _FORCED and tail == _SOURCE:
            base += g.bytes[i]
        elif count == _FORCED:
            _add(network, tail, np.int64(_SINK), g.bytes[i])
        elif count == 1 and readers[0] != tail:
            _add(network, tail, readers[0], g.bytes[i])
        elif count > 1:
            _add(network, tail, spare, g.bytes[i])
            for k in range(count):
                _add(network, spare, readers[k], infinite)
            spare += 1
    _add_precedences(g, side, infinite, network)
    return base


@inner
def _readers(
    g: GraphArrays, v: int, side: NDArray[np.int64], i: int, dropped: bool, nodes: NDArray[np.int64]
) -> int:
    """Writes to `nodes` those of operators that must have run before tensor i dies and are open in
    `side` (may run before or after operator `v`). Returns how many, or _FORCED if i is live at v in
    any case. An argument lives until its source has run, too. `dropped`: `v` is no reader.
    """
    forced, count = g.live_out[i], 0
    if g.live_in[i]:
        made = g.source[i]
        forced = forced or side[made] == _SINK
        if side[made] == _OPEN:
            nodes[count] = _FIRST + made
            count += 1
    for k in range(g.sink_ptr[i], g.sink_ptr[i + 1]):
        s = g.sink_idx[k]
        if s == v and dropped:
            continue
        forced = forced or side[s] == _SINK
        if side[s] == _OPEN:
            nodes[count] = _FIRST + s
            count += 1
    return _FORCED if forced else count


@inner
def _add_precedences(
    g: GraphArrays, side: NDArray[np.int64], infinite: int, network: _Network
) -> None:
    """Adds arcs of infinite capacity from each operator that is _OPEN in `side` to its predecessors
    that are, too, so that no cut runs it before these.
    """
    for u in range(g.n):
        if side[u] != _OPEN:
            continue
        for k in range(g.pred_ptr[u], g.pred_ptr[u + 1]):
            w = g.pred_idx[k]
            if side[w] == _OPEN:
                _add(network, _FIRST + u, _FIRST + w, infinite)
