"""An order with its live bytes for each step, and trials of other orders of one window of steps.

Only the steps of the window are evaluated again, by compiled loops.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import inner, loop


def with_arguments_pinned(g: GraphArrays, *, replaced: bool = False) -> GraphArrays:
    """A copy of the graph in which buffers that hold arguments count as occupied in every step. XLA
    keeps such a buffer allocated, and seldom places a temporary in it while its argument is dead.
    So an order with a low peak here mostly gets a low total from XLA's buffer assignment. With
    `replaced`, only the buffers of arguments that another tensor replaces are pinned.
    """
    stands = np.isin(g.buffer, g.buffer[g.live_in])
    if replaced:
        stands &= np.bincount(g.buffer)[g.buffer] > 1
    first = np.unique(g.buffer[stands], return_index=True)[1]
    keep = ~stands[g.pair_a] & ~stands[g.pair_b]
    counts = np.add.reduceat(np.append(keep, False), g.pair_ptr[:-1]) * (np.diff(g.pair_ptr) > 0)
    return g.resized(np.where(stands, 0, g.bytes))._replace(
        transient=g.transient + g.bytes[stands][first].sum(),
        pair_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        pair_b=g.pair_b[keep],
        pair_a=g.pair_a[keep],
        pair_must=g.pair_must[keep],
    )


class State(NamedTuple):
    """The state of local search: an order of n operators, its live bytes, and a trial move. Arrays
    are [n], except last, trial_last and those marked [m]. A stamp is a value of a counter.
    """

    order: NDArray[np.int64]
    place: NDArray[np.int64]
    live: NDArray[np.int64]  # live bytes at each step, transient bytes included
    after: NDArray[np.int64]  # live bytes after each step
    last: NDArray[np.int64]  # step at which each tensor dies, n if never
    # scratch
    trial: NDArray[np.int64]
    trial_live: NDArray[np.int64]
    trial_after: NDArray[np.int64]
    trial_last: NDArray[np.int64]
    seen: NDArray[np.int64]  # [m] stamp of the trial in which a tensor's death was met
    touched: NDArray[np.int64]  # [m] tensors met
    given: NDArray[np.int64]  # [m] stamp
    taken: NDArray[np.int64]  # [m] stamp
    marked: NDArray[np.int64]  # [n] stamp
    hot: NDArray[np.int64]  # [n] steps above the target
    counters: NDArray[np.int64]  # trial stamp, tensors touched, hot steps, sharing stamp
    random: NDArray[np.uint64]  # [1]


def new_state(g: GraphArrays, order: NDArray[np.int64], seed: int) -> State:
    """Makes the state of local search at `order`, int64 [n], with live bytes computed and scratch
    arrays. `seed`: of its random numbers.
    """
    by_step = ("place", "live", "after", "trial", "trial_live", "trial_after", "marked", "hot")
    by_tensor = ("last", "trial_last", "seen", "touched", "given", "taken")
    state = State(
        order=order.astype(np.int64),
        counters=np.zeros(4, np.int64),
        random=np.array([seed], np.uint64),
        **{name: np.zeros(g.n, np.int64) for name in by_step},
        **{name: np.zeros(g.m, np.int64) for name in by_tensor},
    )
    evaluate(g, state)
    return state


@loop
def evaluate(g: GraphArrays, s: State) -> int:
    """Writes live bytes and lifetimes under `s.order` into `s`; returns the peak in bytes."""
    n, m = len(s.order), len(g.bytes)
    for t in range(n):
        s.place[s.order[t]] = t
        s.trial[t] = s.order[t]
    for i in range(m):
        last = s.place[g.source[i]]
        for k in range(g.sink_ptr[i], g.sink_ptr[i + 1]):
            last = max(last, s.place[g.sink_idx[k]])
        s.last[i] = n if g.live_out[i] else last
    end = 0
    for i in range(m):
        if g.live_out[i]:
            end += g.bytes[i]
    if n:
        s.after[n - 1] = end
        begin = n - n  # not 0: numba compiles the functions again for a literal
        try_window(g, s, begin, n - 1)
        commit_window(g, s, begin, n - 1)
    peak = 0
    for t in range(n):
        peak = max(peak, s.live[t])
    return peak


@inner
def try_window(g: GraphArrays, s: State, lo: int, hi: int) -> None:
    """Writes to `s` live bytes and ends of tensors under its `s.trial` from step `lo` to `hi`."""
    s.counters[0] += 1
    stamp = s.counters[0]
    touched = 0
    after = s.after[hi]
    for t in range(hi, lo - 1, -1):
        v = s.trial[t]
        dying = 0
        for k in range(g.in_ptr[v], g.in_ptr[v + 1]):
            a = g.in_idx[k]
            if s.last[a] <= hi and s.seen[a] != stamp:
                s.seen[a] = stamp
                s.trial_last[a] = t
                s.touched[touched] = a
                touched += 1
                dying += g.bytes[a]
        for k in range(g.out_ptr[v], g.out_ptr[v + 1]):
            b = g.out_idx[k]
            if s.last[b] <= hi and s.seen[b] != stamp:
                s.seen[b] = stamp
                s.trial_last[b] = t
                s.touched[touched] = b
                touched += 1
                dying += g.bytes[b]
        shared = 0
        if dying and g.pair_ptr[v] != g.pair_ptr[v + 1]:
            s.counters[3] += 1
            match = s.counters[3]
            for k in range(g.pair_ptr[v], g.pair_ptr[v + 1]):
                a, b = g.pair_a[k], g.pair_b[k]
                if s.seen[a] != stamp or s.trial_last[a] != t or s.given[a] == match:
                    continue
                if s.taken[b] != match or g.pair_must[k]:
                    s.given[a] = match
                    s.taken[b] = match
                    shared += g.bytes[a]
        s.trial_after[t] = after
        s.trial_live[t] = after + dying - shared + g.transient[v]
        after += dying - g.made[v]
    s.counters[1] = touched


@inner
def commit_window(g: GraphArrays, s: State, lo: int, hi: int) -> None:
    """Accepts the trial order of steps `lo` to `hi` (inclusive) as the current order, in place."""
    for t in range(lo, hi + 1):
        v = s.trial[t]
        s.order[t] = v
        s.place[v] = t
        s.live[t] = s.trial_live[t]
        s.after[t] = s.trial_after[t]
    for k in range(s.counters[1]):
        a = s.touched[k]
        s.last[a] = s.trial_last[a]
