"""Compiled local search over the orders of one graph, with incremental evaluation.

A move rearranges the operators of one window of steps (`propose`); only that window is evaluated
again (state.py).

The cost of an order is the sum over its steps of the squared excess of live bytes over a target;
an order without cost meets the target. A move is accepted if the cost does not exceed the cost of
some moves ago (late acceptance), which needs no temperature.
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import inner, loop
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.schedule.search.state import State, commit_window, new_state, try_window


@functools.cache
def load() -> None:
    """Loads the machine code of the local search, or compiles it, which takes seconds."""
    operators = (Operator("a", "add"), Operator("b", "add"))
    tensors = (Tensor("a", 1, source=0, sinks=(1,), buffer=0),)
    graph = GraphArrays.of(TensorGraph("", operators, tensors))
    state = new_state(graph, np.arange(2), seed=0)
    late_acceptance_search(graph, state, 0, 0, 1, np.zeros(1), state.order.copy(), 0)
    perturb(graph, state, 0, 1)


@inner
def _excess(live: NDArray[np.int64], lo: int, hi: int, target: int, scale: float) -> float:
    cost = 0.0
    for t in range(lo, hi + 1):
        if live[t] > target:
            over = (live[t] - target) * scale
            cost += over * over
    return cost


@inner
def _largest(live: NDArray[np.int64], lo: int, hi: int) -> int:
    largest = live[lo]
    for t in range(lo + 1, hi + 1):
        largest = max(largest, live[t])
    return largest


@inner
def _keep(order: NDArray[np.int64], best: NDArray[np.int64]) -> None:
    for t in range(len(order)):
        best[t] = order[t]


@inner
def _find_hot(s: State, level: int, above: bool) -> None:
    """Lists in `s.hot`, and counts in `s.counters`, the steps with more live bytes than `level`;
    with as many, too, if not `above`.
    """
    hot = 0
    for t in range(len(s.order)):
        if s.live[t] > level or (s.live[t] == level and not above):
            s.hot[hot] = t
            hot += 1
    s.counters[2] = hot


@functools.partial(loop, long=True)
def late_acceptance_search(
    g: GraphArrays,
    s: State,
    first: int,
    target: int,
    steps: int,
    history: NDArray[np.float64],
    best: NDArray[np.int64],
    cap: int,
) -> tuple[int, int]:
    """Local search by late acceptance: makes random moves of an order, keeps those not much worse.

    An order's cost is the sum over its steps of the squared excess of live bytes over `target`. `s`
    is changed in place; steps below `first` stay. `best` receives the order of least peak among
    those of least cost so far; if `cap` is not 0, no step rises above it, and `best` is the order
    with the least cost. The length of `history`, scratch, is how many moves back costs are
    compared. It ends after `steps` moves, or where no step is above the target.

    Returns:
      (peak of `best` in bytes, moves done).
    """
    n = len(s.order)
    scale = 100.0 / max(target, 1)
    cost = _excess(s.live, 0, n - 1, target, scale)
    for k in range(len(history)):
        history[k] = cost
    peak = _largest(s.live, 0, n - 1)
    _keep(s.order, best)
    least_cost = cost
    for step in range(steps):
        if step % 64 == 0:
            _find_hot(s, target, True)
            cost = _excess(s.live, 0, n - 1, target, scale)
            if s.counters[2] == 0:  # at zero cost, moves may have lowered the peak unrecorded
                now = _largest(s.live, 0, n - 1)
                if now < peak:
                    peak = now
                    _keep(s.order, best)
                return peak, step
        lo, hi = propose(g, s, first)
        if hi < lo:
            continue
        try_window(g, s, lo, hi)
        if cap and _largest(s.trial_live, lo, hi) > cap:
            continue
        diff = _excess(s.trial_live, lo, hi, target, scale) - _excess(s.live, lo, hi, target, scale)
        slot = step % len(history)
        if diff <= 0 or cost + diff <= history[slot]:
            commit_window(g, s, lo, hi)
            cost += diff
            if cost < least_cost:
                least_cost = cost
                now = _largest(s.live, 0, n - 1)
                if now < peak or cap:
                    peak = now
                    _keep(s.order, best)
        history[slot] = cost
    return peak, steps


@functools.partial(loop, long=True)
def perturb(g: GraphArrays, s: State, first: int, cap: int) -> int:
    """Makes a few random moves of the order, in place, mostly near steps of many live bytes. One is
    left out if it raises a step above `cap` bytes; steps below `first` stay. Returns how many were
    made.
    """
    n = len(s.order)
    top, bottom = s.live[0], s.live[0]
    for t in range(n):
        top, bottom = max(top, s.live[t]), min(bottom, s.live[t])
    part = below(s.random, 1024) / 1024.0
    level = top - np.int64((top - bottom) * part * part)
    _find_hot(s, level, False)
    wanted = 1 + below(s.random, 1 << below(s.random, 5))
    done = 0
    for _ in range(8 * wanted):
        lo, hi = propose(g, s, first)
        if hi < lo:
            continue
        try_window(g, s, lo, hi)
        allowed = True
        for t in range(lo, hi + 1):
            if s.trial_live[t] > cap and s.trial_live[t] > s.live[t]:
                allowed = False
                break
        if allowed:
            commit_window(g, s, lo, hi)
            done += 1
            if done == wanted:
                break
    return done


# Moves of local search, drawn at random: each keeps the order legal by construction.
#
# - pull: an operator, with those of its ancestors that stand in the window, runs at its beginning;
# - push: an operator, with those of its descendants that stand in the window, runs at its end.


_FARTHER, _LATER, _ANY, _PULL_FREELY, _PUSH_FREELY = 0, 3, 5, 5, 6
"""Moves are of kinds 0 to 7. Kinds below _ANY choose a tensor that is live at a hot step: below
_LATER they make it die sooner, if it can, else appear later; _FARTHER moves beyond that step.
The others choose any operator: odd kinds pull it, even kinds push it."""


@inner
def _next(random: NDArray[np.uint64]) -> np.uint64:
    """The next random number by splitmix64; advances the generator's state, `random`."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inner
def below(random: NDArray[np.uint64], limit: int) -> Any:
    """A random integer in [0, limit), from the generator state `random`, which is advanced."""
    return np.int64((_next(random) >> np.uint64(33)) % np.uint64(limit))


@inner
def _pull(g: GraphArrays, s: State, lo: int, hi: int) -> None:
    """Writes to `s.trial` an order of steps lo to hi: operators marked with the current
    `s.counters[0]`, with their ancestors there, then the others.
    """
    stamp = s.counters[0]
    back = hi
    for t in range(hi, lo - 1, -1):
        v = s.order[t]
        if s.marked[v] == stamp:
            for k in range(g.pred_ptr[v], g.pred_ptr[v + 1]):
                s.marked[g.pred_idx[k]] = stamp
        else:
            s.trial[back] = v
            back -= 1
    for t in range(hi, lo - 1, -1):
        v = s.order[t]
        if s.marked[v] == stamp:
            s.trial[back] = v
            back -= 1


@inner
def _push(g: GraphArrays, s: State, lo: int, hi: int) -> None:
    """Writes to `s.trial` an order of steps lo to hi: first those operators that are neither marked
    with the current `s.counters[0]` nor descendants of such, then these.
    """
    stamp = s.counters[0]
    front = lo
    for t in range(lo, hi + 1):
        v = s.order[t]
        if s.marked[v] == stamp:
            for k in range(g.succ_ptr[v], g.succ_ptr[v + 1]):
                s.marked[g.succ_idx[k]] = stamp
        else:
            s.trial[front] = v
            front += 1
    for t in range(lo, hi + 1):
        v = s.order[t]
        if s.marked[v] == stamp:
            s.trial[front] = v
            front += 1


@inner
def _distance(s: State, longest: int) -> int:
    """A random length in [1, longest], short ones more often."""
    bits = 1
    while (1 << bits) < longest:
        bits += 1
    span = 1 << (1 + below(s.random, bits))
    return min(1 + below(s.random, span), longest)


@inner
def _drawn(pick: NDArray[np.int64], ball: int) -> int:
    """Index of the first of the ascending sums `pick` that is above `ball`, by binary search."""
    lo, hi = 0, len(pick)
    while lo < hi:
        middle = (lo + hi) // 2
        if pick[middle] <= ball:
            lo = middle + 1
        else:
            hi = middle
    return lo


@inner
def _live_tensor(g: GraphArrays, s: State, step: int) -> Any:
    """A tensor that is live at `step`, drawn by size; -1 if 24 draws find none."""
    total = g.running[-1] if len(g.running) else 0
    if total == 0:
        return -1
    for _ in range(24):
        ball = np.int64(_next(s.random) >> np.uint64(2)) % total
        a = _drawn(g.running, ball)
        start = 0 if g.live_in[a] else s.place[g.source[a]]
        if start <= step <= s.last[a]:
            return a
    return -1


@inner
def propose(g: GraphArrays, s: State, first: int) -> tuple[Any, Any]:
    """Writes a random change of the order to `s.trial`; returns (first, last step changed), or (0,
    -1) if there is none. Steps below `first` stay.
    """
    kind = below(s.random, 8)
    s.counters[0] += 1
    if kind < _ANY and s.counters[2]:
        step = s.hot[below(s.random, s.counters[2])]
        a = _live_tensor(g, s, step)
        if a < 0:
            return 0, -1
        if kind < _LATER and not g.live_out[a] and s.last[a] > step:
            return _die_sooner(g, s, first, kind, a, step)
        return _appear_later(g, s, first, kind, a, step)
    here = first + below(s.random, len(s.order) - first)
    if kind & 1:
        return _pull_one(g, s, first, kind, here)
    return _push_one(g, s, kind, here)


@inner
def _die_sooner(
    g: GraphArrays, s: State, first: int, kind: int, a: int, step: int
) -> tuple[Any, Any]:
    """Writes to `s.trial` an order in which readers of tensor `a` that run after `step`, one with
    many live bytes, run from it on, or, with _FARTHER, before; returns (first, last step changed).
    """
    lo, hi = step, s.last[a]
    if kind == _FARTHER:
        lo = max(first, lo - _distance(s, len(s.order)))
    lo = max(lo, first)
    for k in range(g.sink_ptr[a], g.sink_ptr[a + 1]):
        v = g.sink_idx[k]
        if s.place[v] >= step:
            s.marked[v] = s.counters[0]
    _pull(g, s, lo, hi)
    return lo, hi


@inner
def _appear_later(
    g: GraphArrays, s: State, first: int, kind: int, a: int, step: int
) -> tuple[Any, Any]:
    """Writes to `s.trial` an order in which the operator that makes tensor `a` moves back to
    `step`, one with many live bytes, or beyond with _FARTHER or if it runs there; returns (first,
    last step changed), or (0, -1) if it cannot move.
    """
    n = len(s.order)
    v = g.source[a]
    lo, hi = s.place[v], step
    if g.live_in[a] or lo < first:
        return 0, -1
    if kind == _FARTHER or hi == lo:
        hi = min(n - 1, hi + _distance(s, n))
    s.marked[v] = s.counters[0]
    _push(g, s, lo, hi)
    return lo, hi


@inner
def _pull_one(g: GraphArrays, s: State, first: int, kind: int, here: int) -> tuple[Any, Any]:
    """Writes to `s.trial` an order in which the operator of step `here` runs earlier, with
    _PULL_FREELY as early as is legal alone, else with what it needs; returns (first, last step
    changed) or (0, -1).
    """
    v = s.order[here]
    s.marked[v] = s.counters[0]
    lo = here
    if kind == _PULL_FREELY:
        lo = first
        for k in range(g.pred_ptr[v], g.pred_ptr[v + 1]):
            lo = max(lo, s.place[g.pred_idx[k]] + 1)
    if lo == here:
        lo = max(first, here - _distance(s, len(s.order)))
    if lo == here:
        return 0, -1
    _pull(g, s, lo, here)
    return lo, here


@inner
def _push_one(g: GraphArrays, s: State, kind: int, here: int) -> tuple[Any, Any]:
    """Writes to `s.trial` an order in which the operator of step `here` runs later, with
    _PUSH_FREELY as late as is legal alone, else with what needs it; returns (first, last step
    changed) or (0, -1).
    """
    n = len(s.order)
    v = s.order[here]
    s.marked[v] = s.counters[0]
    hi = here
    if kind == _PUSH_FREELY:
        hi = n - 1
        for k in range(g.succ_ptr[v], g.succ_ptr[v + 1]):
            hi = min(hi, s.place[g.succ_idx[k]] - 1)
    if hi == here:
        hi = min(n - 1, here + _distance(s, n))
    if hi == here:
        return 0, -1
    _push(g, s, here, hi)
    return here, hi
