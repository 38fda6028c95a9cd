"""Compiled local search over the orders of one graph, with incremental evaluation.

The state is an order with its live bytes per step. A move rearranges the operators of one window
of steps; only that window is evaluated again. Every move keeps the order legal by construction:
- pull: an operator, with those of its ancestors that stand in the window, runs at its beginning;
- push: an operator, with those of its descendants that stand in the window, runs at its end.

The cost of an order is the sum over its steps of the squared excess of live bytes over a target;
an order without cost meets the target. A move is accepted if the cost does not exceed the cost of
some moves ago (late acceptance), which needs no temperature.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import inner, loop
from olla_xla.problem.graph import Operator, Tensor, TensorGraph

__all__ = ["Problem", "State", "anneal", "evaluate", "load", "new_state", "perturb", "standing"]


_FARTHER, _LATER, _ANY, _PULL_FREELY, _PUSH_FREELY = 0, 3, 5, 5, 6
"""Of eight kinds of moves, numbered from 0. Those below _ANY are for a tensor that is live at a hot
step: below _LATER they let it die sooner, if it may, else appear later, _FARTHER than at that step.
The others are for any operator; odd ones pull it, even ones push it."""


class Problem(NamedTuple):
    """The graph, as `GraphArrays` has it; `made`: bytes that appear at an operator."""

    size: np.ndarray
    source: np.ndarray
    live_in: np.ndarray
    live_out: np.ndarray
    transient: np.ndarray
    made: np.ndarray
    sink_ptr: np.ndarray
    sink_idx: np.ndarray
    in_ptr: np.ndarray
    in_idx: np.ndarray
    out_ptr: np.ndarray
    out_idx: np.ndarray
    pred_ptr: np.ndarray
    pred_idx: np.ndarray
    succ_ptr: np.ndarray
    succ_idx: np.ndarray
    pair_ptr: np.ndarray
    pair_b: np.ndarray
    pair_a: np.ndarray
    pair_must: np.ndarray
    pick: np.ndarray
    """Running sum of tensor bytes, to draw a tensor by its size."""

    @classmethod
    def of(cls, g: GraphArrays) -> Problem:
        """The arrays of a graph."""
        made = np.zeros(g.n, np.int64)
        np.add.at(made, g.source[~g.live_in], g.bytes[~g.live_in])
        fields = {f: getattr(g, f) for f in cls._fields if f not in ("size", "made", "pick")}
        return cls(size=g.bytes, made=made, pick=np.cumsum(g.bytes), **fields)


def standing(g: GraphArrays, *, replaced: bool = False) -> Problem:
    """The problem if every buffer that holds an argument were occupied for the whole run.

    XLA keeps such a buffer, and only now and then finds a temporary to put in while it is dead; so
    orders that do well here do well under its assignment.

    Args:
      replaced: only buffers of arguments that another tensor replaces.
    """
    stands = np.isin(g.buffer, g.buffer[g.live_in])
    if replaced:
        stands &= np.bincount(g.buffer)[g.buffer] > 1
    first = np.unique(g.buffer[stands], return_index=True)[1]
    problem = Problem.of(g)
    size = np.where(stands, 0, g.bytes)
    made = np.zeros(g.n, np.int64)
    np.add.at(made, g.source[~g.live_in], size[~g.live_in])
    keep = ~stands[g.pair_a] & ~stands[g.pair_b]
    counts = np.add.reduceat(np.append(keep, False), g.pair_ptr[:-1]) * (np.diff(g.pair_ptr) > 0)
    return problem._replace(
        size=size,
        made=made,
        pick=np.cumsum(size),
        transient=g.transient + g.bytes[stands][first].sum(),
        pair_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        pair_b=g.pair_b[keep],
        pair_a=g.pair_a[keep],
        pair_must=g.pair_must[keep],
    )


class State(NamedTuple):
    """An order and what is known of it, with scratch space for trying moves."""

    order: np.ndarray
    place: np.ndarray
    live: np.ndarray  # live bytes at each step, transient bytes included
    after: np.ndarray  # live bytes after each step
    last: np.ndarray  # step at which each tensor dies, n if never
    # scratch
    trial: np.ndarray
    trial_live: np.ndarray
    trial_after: np.ndarray
    trial_last: np.ndarray
    seen: np.ndarray  # [m] stamp of the trial in which a tensor's death was met
    touched: np.ndarray  # [m] tensors met
    given: np.ndarray  # [m] stamp
    taken: np.ndarray  # [m] stamp
    marked: np.ndarray  # [n] stamp
    hot: np.ndarray  # [n] steps above the target
    counters: np.ndarray  # [0] trial stamp, [1] tensors touched, [2] hot steps, [3] sharing stamp
    random: np.ndarray  # uint64 [1]


def new_state(problem: Problem, order: np.ndarray, seed: int) -> State:
    """The state of an order."""
    n, m = len(problem.transient), len(problem.size)
    by_step = ("place", "live", "after", "trial", "trial_live", "trial_after", "marked", "hot")
    by_tensor = ("last", "trial_last", "seen", "touched", "given", "taken")
    state = State(
        order=order.astype(np.int64),
        counters=np.zeros(4, np.int64),
        random=np.array([seed], np.uint64),
        **{name: np.zeros(n, np.int64) for name in by_step},
        **{name: np.zeros(m, np.int64) for name in by_tensor},
    )
    evaluate(problem, state)
    return state


@functools.cache
def load() -> None:
    """Loads the machine code of this file's loops, or compiles it where it is new: for seconds."""
    operators = (Operator("a", "add"), Operator("b", "add"))
    tensors = (Tensor("a", 1, source=0, sinks=(1,), buffer=0),)
    problem = Problem.of(GraphArrays.of(TensorGraph("", operators, tensors)))
    state = new_state(problem, np.arange(2), seed=0)
    anneal(problem, state, 0, 0, 1, np.zeros(1), state.order.copy(), 0)
    perturb(problem, state, 0, 1)


@inner
def _next(random: np.ndarray) -> np.uint64:
    """splitmix64."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inner
def _below(random: np.ndarray, limit: int) -> Any:
    """A number in [0, limit)."""
    return np.int64((_next(random) >> np.uint64(33)) % np.uint64(limit))


@loop
def evaluate(p: Problem, s: State) -> int:
    """Fills the state from its order; returns the peak."""
    n, m = len(s.order), len(p.size)
    for t in range(n):
        s.place[s.order[t]] = t
        s.trial[t] = s.order[t]
    for i in range(m):
        last = s.place[p.source[i]]
        for k in range(p.sink_ptr[i], p.sink_ptr[i + 1]):
            last = max(last, s.place[p.sink_idx[k]])
        s.last[i] = n if p.live_out[i] else last
    end = 0
    for i in range(m):
        if p.live_out[i]:
            end += p.size[i]
    if n:
        s.after[n - 1] = end
        begin = n - n  # numba compiles functions anew for a literal
        _try(p, s, begin, n - 1)
        _commit(p, s, begin, n - 1)
    peak = 0
    for t in range(n):
        peak = max(peak, s.live[t])
    return peak


@inner
def _try(p: Problem, s: State, lo: int, hi: int) -> None:
    """Live bytes of the window [lo, hi] if the operators ran as `trial` has them."""
    s.counters[0] += 1
    stamp = s.counters[0]
    touched = 0
    after = s.after[hi]
    for t in range(hi, lo - 1, -1):
        v = s.trial[t]
        dying = 0
        for k in range(p.in_ptr[v], p.in_ptr[v + 1]):
            a = p.in_idx[k]
            if s.last[a] <= hi and s.seen[a] != stamp:
                s.seen[a] = stamp
                s.trial_last[a] = t
                s.touched[touched] = a
                touched += 1
                dying += p.size[a]
        for k in range(p.out_ptr[v], p.out_ptr[v + 1]):
            b = p.out_idx[k]
            if s.last[b] <= hi and s.seen[b] != stamp:
                s.seen[b] = stamp
                s.trial_last[b] = t
                s.touched[touched] = b
                touched += 1
                dying += p.size[b]
        shared = 0
        if dying and p.pair_ptr[v] != p.pair_ptr[v + 1]:
            s.counters[3] += 1
            match = s.counters[3]
            for k in range(p.pair_ptr[v], p.pair_ptr[v + 1]):
                a, b = p.pair_a[k], p.pair_b[k]
                if s.seen[a] != stamp or s.trial_last[a] != t or s.given[a] == match:
                    continue
                if s.taken[b] != match or p.pair_must[k]:
                    s.given[a] = match
                    s.taken[b] = match
                    shared += p.size[a]
        s.trial_after[t] = after
        s.trial_live[t] = after + dying - shared + p.transient[v]
        after += dying - p.made[v]
    s.counters[1] = touched


@inner
def _commit(p: Problem, s: State, lo: int, hi: int) -> None:
    """Makes the trial of [lo, hi] the state."""
    for t in range(lo, hi + 1):
        v = s.trial[t]
        s.order[t] = v
        s.place[v] = t
        s.live[t] = s.trial_live[t]
        s.after[t] = s.trial_after[t]
    for k in range(s.counters[1]):
        a = s.touched[k]
        s.last[a] = s.trial_last[a]


@inner
def _pull(p: Problem, s: State, lo: int, hi: int) -> None:
    """Sets the trial of [lo, hi]: the marked operators and their ancestors, then the others.

    Operators are marked with the current counters[0].
    """
    stamp = s.counters[0]
    back = hi
    for t in range(hi, lo - 1, -1):
        v = s.order[t]
        if s.marked[v] == stamp:
            for k in range(p.pred_ptr[v], p.pred_ptr[v + 1]):
                s.marked[p.pred_idx[k]] = stamp
        else:
            s.trial[back] = v
            back -= 1
    for t in range(hi, lo - 1, -1):
        v = s.order[t]
        if s.marked[v] == stamp:
            s.trial[back] = v
            back -= 1


@inner
def _push(p: Problem, s: State, lo: int, hi: int) -> None:
    """Sets the trial of [lo, hi]: the others, then the marked operators and their descendants."""
    stamp = s.counters[0]
    front = lo
    for t in range(lo, hi + 1):
        v = s.order[t]
        if s.marked[v] == stamp:
            for k in range(p.succ_ptr[v], p.succ_ptr[v + 1]):
                s.marked[p.succ_idx[k]] = stamp
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
    """A length in [1, longest], short ones more often."""
    bits = 1
    while (1 << bits) < longest:
        bits += 1
    span = 1 << (1 + _below(s.random, bits))
    return min(1 + _below(s.random, span), longest)


@inner
def _drawn(pick: np.ndarray, ball: int) -> int:
    """The first tensor whose running sum is above `ball`."""
    lo, hi = 0, len(pick)
    while lo < hi:
        middle = (lo + hi) // 2
        if pick[middle] <= ball:
            lo = middle + 1
        else:
            hi = middle
    return lo


@inner
def _live_tensor(p: Problem, s: State, step: int) -> Any:
    """A tensor that is live at `step` and read or made elsewhere, drawn by size; -1 if unlucky."""
    total = p.pick[-1] if len(p.pick) else 0
    if total == 0:
        return -1
    for _ in range(24):
        ball = np.int64(_next(s.random) >> np.uint64(2)) % total
        a = _drawn(p.pick, ball)
        start = 0 if p.live_in[a] else s.place[p.source[a]]
        if start <= step <= s.last[a]:
            return a
    return -1


@inner
def _propose(p: Problem, s: State, first: int) -> tuple[Any, Any]:
    """Draws a move into `trial`; the window, or (0, -1) for none."""
    kind = _below(s.random, 8)
    s.counters[0] += 1
    if kind < _ANY and s.counters[2]:
        step = s.hot[_below(s.random, s.counters[2])]
        a = _live_tensor(p, s, step)
        if a < 0:
            return 0, -1
        if kind < _LATER and not p.live_out[a] and s.last[a] > step:
            return _die_sooner(p, s, first, kind, a, step)
        return _appear_later(p, s, first, kind, a, step)
    here = first + _below(s.random, len(s.order) - first)
    if kind & 1:
        return _pull_one(p, s, first, kind, here)
    return _push_one(p, s, kind, here)


@inner
def _die_sooner(p: Problem, s: State, first: int, kind: int, a: int, step: int) -> tuple[Any, Any]:
    """Pulls the readers of tensor a, so that it dies at a hot step or, with _FARTHER, before."""
    lo, hi = step, s.last[a]
    if kind == _FARTHER:
        lo = max(first, lo - _distance(s, len(s.order)))
    lo = max(lo, first)
    for k in range(p.sink_ptr[a], p.sink_ptr[a + 1]):
        v = p.sink_idx[k]
        if s.place[v] >= step:
            s.marked[v] = s.counters[0]
    _pull(p, s, lo, hi)
    return lo, hi


@inner
def _appear_later(
    p: Problem, s: State, first: int, kind: int, a: int, step: int
) -> tuple[Any, Any]:
    """Pushes the operator that makes tensor a to a hot step or, with _FARTHER, behind."""
    n = len(s.order)
    v = p.source[a]
    lo, hi = s.place[v], step
    if p.live_in[a] or lo < first:
        return 0, -1
    if kind == _FARTHER or hi == lo:
        hi = min(n - 1, hi + _distance(s, n))
    s.marked[v] = s.counters[0]
    _push(p, s, lo, hi)
    return lo, hi


@inner
def _pull_one(p: Problem, s: State, first: int, kind: int, here: int) -> tuple[Any, Any]:
    """Pulls the operator of a step, with _PULL_FREELY to right behind its last predecessor."""
    v = s.order[here]
    s.marked[v] = s.counters[0]
    lo = here
    if kind == _PULL_FREELY:
        lo = first
        for k in range(p.pred_ptr[v], p.pred_ptr[v + 1]):
            lo = max(lo, s.place[p.pred_idx[k]] + 1)
    if lo == here:
        lo = max(first, here - _distance(s, len(s.order)))
    if lo == here:
        return 0, -1
    _pull(p, s, lo, here)
    return lo, here


@inner
def _push_one(p: Problem, s: State, kind: int, here: int) -> tuple[Any, Any]:
    """Pushes the operator of a step, with _PUSH_FREELY to right before its first successor."""
    n = len(s.order)
    v = s.order[here]
    s.marked[v] = s.counters[0]
    hi = here
    if kind == _PUSH_FREELY:
        hi = n - 1
        for k in range(p.succ_ptr[v], p.succ_ptr[v + 1]):
            hi = min(hi, s.place[p.succ_idx[k]] - 1)
    if hi == here:
        hi = min(n - 1, here + _distance(s, n))
    if hi == here:
        return 0, -1
    _push(p, s, here, hi)
    return here, hi


@inner
def _excess(live: np.ndarray, lo: int, hi: int, target: int, scale: float) -> float:
    cost = 0.0
    for t in range(lo, hi + 1):
        if live[t] > target:
            over = (live[t] - target) * scale
            cost += over * over
    return cost


@inner
def _largest(live: np.ndarray, lo: int, hi: int) -> int:
    largest = live[lo]
    for t in range(lo + 1, hi + 1):
        largest = max(largest, live[t])
    return largest


@inner
def _keep(order: np.ndarray, best: np.ndarray) -> None:
    for t in range(len(order)):
        best[t] = order[t]


@inner
def _find_hot(s: State, level: int, above: bool) -> None:
    """Lists the steps above a level, or those at it too."""
    hot = 0
    for t in range(len(s.order)):
        if s.live[t] > level or (s.live[t] == level and not above):
            s.hot[hot] = t
            hot += 1
    s.counters[2] = hot


@loop
def anneal(
    p: Problem,
    s: State,
    first: int,
    target: int,
    steps: int,
    history: np.ndarray,
    best: np.ndarray,
    cap: int,
) -> tuple[int, int]:
    """Runs `steps` moves, or fewer if the target is met; returns (peak of best, moves done).

    Steps below `first` are never touched. `best` receives the order with the least peak met; if
    `cap` is not 0, no step rises above it, and `best` is the order with the least cost.
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
            if s.counters[2] == 0:  # without cost, moves go on lowering the peak unseen
                now = _largest(s.live, 0, n - 1)
                if now < peak:
                    peak = now
                    _keep(s.order, best)
                return peak, step
        lo, hi = _propose(p, s, first)
        if hi < lo:
            continue
        _try(p, s, lo, hi)
        if cap and _largest(s.trial_live, lo, hi) > cap:
            continue
        delta = _excess(s.trial_live, lo, hi, target, scale) - _excess(
            s.live, lo, hi, target, scale
        )
        slot = step % len(history)
        if delta <= 0 or cost + delta <= history[slot]:
            _commit(p, s, lo, hi)
            cost += delta
            if cost < least_cost:
                least_cost = cost
                now = _largest(s.live, 0, n - 1)
                if now < peak or cap:
                    peak = now
                    _keep(s.order, best)
        history[slot] = cost
    return peak, steps


@loop
def perturb(p: Problem, s: State, first: int, cap: int) -> int:
    """Makes a few random moves around the steps with much live memory; returns their number.

    A move is left out if it raises a step above `cap` bytes.
    """
    n = len(s.order)
    top, bottom = s.live[0], s.live[0]
    for t in range(n):
        top, bottom = max(top, s.live[t]), min(bottom, s.live[t])
    part = _below(s.random, 1024) / 1024.0
    level = top - np.int64((top - bottom) * part * part)
    _find_hot(s, level, False)
    wanted = 1 + _below(s.random, 1 << _below(s.random, 5))
    done = 0
    for _ in range(8 * wanted):
        lo, hi = _propose(p, s, first)
        if hi < lo:
            continue
        _try(p, s, lo, hi)
        allowed = True
        for t in range(lo, hi + 1):
            if s.trial_live[t] > cap and s.trial_live[t] > s.live[t]:
                allowed = False
                break
        if allowed:
            _commit(p, s, lo, hi)
            done += 1
            if done == wanted:
                break
    return done
