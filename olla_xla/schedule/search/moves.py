"""Compiled local search over the orders of one graph, with incremental evaluation.

A move rearranges the operators of one window of steps (proposals.py); only that window is evaluated
again (state.py).

The cost of an order is the sum over its steps of the squared excess of live bytes over a target;
an order without cost meets the target. A move is accepted if the cost does not exceed the cost of
some moves ago (late acceptance), which needs no temperature.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import inner, loop
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.schedule.search.proposals import below, propose
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
    """Lists in `hot` the steps with more than `level` live bytes; not `above`: equal ones too."""
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

    `s` is changed in place; steps below `first` stay. `best` receives the order with the least peak
    met; if `cap` is not 0, no step rises above it, and `best` is the order with the least cost. The
    length of `history`, scratch, is how many moves back costs are compared.

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
        delta = _excess(s.trial_live, lo, hi, target, scale) - _excess(
            s.live, lo, hi, target, scale
        )
        slot = step % len(history)
        if delta <= 0 or cost + delta <= history[slot]:
            commit_window(g, s, lo, hi)
            cost += delta
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
    """Makes a few random moves of the order, in place, near steps with many live bytes.

    A move is left out if it raises a step above `cap` bytes.
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
