"""An order with its live bytes for each step, and trials of other orders of one window of steps.

Only what a window holds is evaluated again; compiled loops do it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import inner, loop

__all__ = [
    "Problem",
    "State",
    "commit_window",
    "evaluate",
    "new_state",
    "with_arguments_pinned",
    "try_window",
]


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


def with_arguments_pinned(g: GraphArrays, *, replaced: bool = False) -> Problem:
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
    """The search's state at an order, with its live bytes computed and scratch arrays allocated.

    Args:
      problem: the graph. order: int64 [n], operators. seed: of the random numbers.
    """
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
        try_window(p, s, begin, n - 1)
        commit_window(p, s, begin, n - 1)
    peak = 0
    for t in range(n):
        peak = max(peak, s.live[t])
    return peak


@inner
def try_window(p: Problem, s: State, lo: int, hi: int) -> None:
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
def commit_window(p: Problem, s: State, lo: int, hi: int) -> None:
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
