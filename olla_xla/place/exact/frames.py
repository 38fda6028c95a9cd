"""Frames of the exact search (descend.py): parts of the unplaced items, packed independently."""

from __future__ import annotations

from olla_xla.memory.jit import inner
from olla_xla.place.exact.model import Model
from olla_xla.place.exact.state import (
    ABOVE,
    ACTIVE,
    DEPTH,
    FIRST,
    FRAMES,
    HI,
    LAST,
    LEVEL,
    LO,
    LOWEST,
    NEXT,
    PARENT,
    RANK,
    SPLIT,
    START,
    WORK,
    PlacementState,
)


@inner
def swap(state: PlacementState, a: int, b: int) -> None:
    """Exchanges entries a and b of `state.waiting`, in place."""
    i, j = state.waiting[a], state.waiting[b]
    state.waiting[a], state.waiting[b] = j, i
    state.slot[j], state.slot[i] = a, b


@inner
def activate(state: PlacementState, frame: int) -> None:
    """Makes `frame`, a part of the packing problem, the one that the search goes on with."""
    state.count[ACTIVE] = frame
    state.frames[frame, START] = state.count[DEPTH]
    state.count[LEVEL] = state.frames[frame, LOWEST]
    state.count[RANK] = state.frames[frame, ABOVE]


@inner
def split(model: Model, state: PlacementState) -> None:
    """Divides the items that are still unplaced into independent parts, to be packed one by one.

    One that cannot be packed then refutes the decisions before the split, however the other parts
    were packed.
    """
    active = state.count[ACTIVE]
    lo, hi = state.frames[active, LO], state.frames[active, HI]
    old, last = state.count[FRAMES], state.frames[active, LAST]
    count = old
    first, start = state.frames[active, FIRST], lo
    for s in range(state.frames[active, FIRST], last + 1):
        if state.total[s] == 0:  # what lies before was split off at the last border
            first = s + 1
            continue
        if s < last and state.crossing[s] > 0:
            continue
        state.count[WORK] += hi - start
        end = start
        for k in range(start, hi):
            if model.first[state.waiting[k]] <= s:
                swap(state, k, end)
                end += 1
        if end > start:
            frame = state.frames[count]
            frame[LO], frame[HI], frame[FIRST], frame[LAST] = start, end, first, s
            count += 1
        first, start = s + 1, end
    if count < old + 2:
        return
    state.count[FRAMES] = count
    least = following = state.frames[active, NEXT]
    for k in range(old, count):  # the fewest items first
        frame = state.frames[k]
        frame[LOWEST], frame[ABOVE] = state.count[LEVEL], state.count[RANK]
        frame[PARENT], frame[SPLIT] = active, state.count[DEPTH]
        before, after = -1, least
        while after != following and _items(state, after) <= _items(state, k):
            before, after = after, state.frames[after, NEXT]
        frame[NEXT] = after
        if before < 0:
            least = k
        else:
            state.frames[before, NEXT] = k
    activate(state, least)


@inner
def _items(state: PlacementState, frame: int) -> int:
    return state.frames[frame, HI] - state.frames[frame, LO]
