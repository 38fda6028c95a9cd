"""Depth-first search for a packing within a capacity, over canonical packings only.
A packing of least weighted sum of offsets is canonical: every block rests on another or on the
floor, and could not lie lower. Taken by increasing offset (ties by a preorder), each block of a
canonical packing is placed exactly at its rest: the highest end of the blocks below it. So a node
of the search takes the lowest candidate (rest, rank) and branches: it is placed there, or it must
rest on a block that is placed later. What prunes (the first three in part from Moffitt, MiniMalloc,
ASPLOS 2023):

- Order: candidates come in non-decreasing (rest, rank); a block that was passed over waits until a
  later block is placed under it, so it lies at least as high as the lowest of their ends.
- Dominance: nothing is placed at or above the end of an unplaced block at its rest, which could
  then fall into the hole below.
- Section inference: `earliest` bounds every block's offset from below. In a section with unplaced
  bytes `total`, only blocks with earliest + total <= capacity can come first; if there is none, the
  node fails; all others lie above the least end of those that can. Repeated to a fixpoint.
- Symmetry: of twins the first is placed first; where one of two blocks with equal lifetimes would
  rest on the other, the one with the lower rank lies below.
- Decomposition: once a placement leaves no unplaced block across some border of sections, the two
  sides are packed one after the other. A side that cannot be packed refutes the decisions made
  before the split; no other packing of the other side is tried.

Pinned blocks are candidates at their own offset only.

Numbers given to compiled functions are NumPy's: numba compiles anew for each literal.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.jit import inner, loop
from olla_xla.place.exact.inference import infer, lift, lift_all, lift_passed, pass_over
from olla_xla.place.exact.model import Model
from olla_xla.place.exact.state import (
    ABOVE,
    ACTIVE,
    BOUNDS,
    DEPTH,
    FAR,
    FIRST,
    FRAME,
    FRAMES,
    HI,
    ITEM,
    LAST,
    LEVEL,
    LO,
    LOWEST,
    NEXT,
    OLD_BOUNDS,
    OLD_FRAMES,
    OLD_RESTS,
    PARENT,
    RANK,
    RESTS,
    SECOND,
    SPLIT,
    START,
    WORK,
    PlacementState,
    Trails,
    start,
)

FOUND, EXHAUSTED, LIMIT = 1, 0, -1
"""Outcomes: a packing was found, there is none, the node limit was reached."""

_WORK = 300_000
"""Array entries that may be read for each node of the limit, so that a descent ends in time."""


def descend(
    model: Model,
    rank: NDArray[np.int64],
    capacity: int,
    node_limit: int,
    weight: NDArray[np.float64],
    trails: Trails,
) -> tuple[int, int, NDArray[np.int64]]:
    """Depth-first search for offsets of all items within `capacity` bytes.
    Each decision places an item at its rest, on the highest placed item below it, or higher.

    Args:
      model: the items. rank: [items] a permutation; the least is tried first at one offset.
      capacity: bytes. node_limit: placements tried; it also limits the work for all of them.
      weight: [sections] float64; how often each section's items could not fit is added to it.
      trails: memory for undo trails; the search stops (LIMIT) before they overflow.

    Returns:
      (FOUND, EXHAUSTED or LIMIT; placements tried; offsets in bytes, valid where FOUND).
    """
    state = start(model, capacity, weight, trails)
    outcome, nodes = _descend(model, state, rank, capacity, node_limit)
    return outcome, nodes, state.offset


@functools.partial(loop, long=True)
def _descend(
    model: Model, state: PlacementState, rank: NDArray[np.int64], capacity: int, node_limit: int
) -> tuple[int, int]:
    """Searches depth first for offsets of all items, which go to `state.offset`; of items that may
    lie at one offset, that of least `rank` comes first. Returns (FOUND, EXHAUSTED or LIMIT;
    placements tried).
    """
    nodes = 0
    n = len(rank)
    good = lift_all(model, state) and infer(model, state, capacity)
    while True:
        if state.count[WORK] // _WORK >= node_limit:
            return LIMIT, nodes
        chosen = _candidate(model, state, rank) if good else -1
        if chosen < 0:
            chosen = _backtrack(model, state)
            if chosen < 0:
                return EXHAUSTED, nodes
            state.count[LEVEL], state.count[RANK] = state.rest[chosen], rank[chosen]
            good = pass_over(model, state, chosen) and infer(model, state, capacity)
            continue
        nodes += 1
        free = min(len(state.rests) - state.count[RESTS], len(state.bounds) - state.count[BOUNDS])
        if nodes > node_limit or free < 64 * n or state.count[DEPTH] == len(state.stack):
            return LIMIT, nodes
        good, separable = _place(model, state, rank, chosen)
        frame = state.frames[state.count[ACTIVE]]
        if frame[LO] == frame[HI]:
            if frame[NEXT] < 0:
                return FOUND, nodes
            activate(state, frame[NEXT])
            continue
        good = good and lift_passed(model, state, rank) and infer(model, state, capacity)
        if good and separable:
            split(model, state)


@inner
def _candidate(model: Model, state: PlacementState, rank: NDArray[np.int64]) -> int:
    """Chooses the next item to place at its rest (the top of the placed items below it), or -1.
    Of the items that may lie at their rests it is that of least (rest, rank) after the last
    candidate's. There is none, too, if an unplaced item fits entirely below all of these.
    """
    level, last = state.count[LEVEL], state.count[RANK]
    best, best_rest, best_rank = -1, FAR, np.int64(0)
    hole = FAR
    frame = state.frames[state.count[ACTIVE]]
    state.count[WORK] += frame[HI] - frame[LO]
    for k in range(frame[LO], frame[HI]):
        i = state.waiting[k]
        rest = state.rest[i]
        hole = min(hole, rest + model.size[i])
        if state.earliest[i] > rest or rest > best_rest or rest < level:
            continue
        if rest == level and rank[i] <= last or rest == best_rest and rank[i] > best_rank:
            continue
        if _misplaced(model, state, rank, i):
            continue
        best, best_rest, best_rank = i, rest, rank[i]
    if best_rest >= hole:
        return -1
    return best


@inner
def _misplaced(model: Model, state: PlacementState, rank: NDArray[np.int64], i: int) -> bool:
    """Whether item i may not lie at its rest (the top of the placed items below it) now: of
    packings that differ only in which of two like items lies where, one is searched.
    """
    if model.twin[i] >= 0 and state.offset[model.twin[i]] < 0:
        return True
    state.count[WORK] += model.kin_ptr[i + 1] - model.kin_ptr[i]
    for e in range(model.kin_ptr[i], model.kin_ptr[i + 1]):
        j = model.kin_idx[e]
        if (
            rank[j] > rank[i]
            and state.offset[j] >= 0
            and state.offset[j] + model.size[j] == state.rest[i]
        ):
            return True
    return False


@inner
def _place(
    model: Model, state: PlacementState, rank: NDArray[np.int64], i: int
) -> tuple[bool, bool]:
    """Places item i at its rest (the top of placed items below it) as a new decision, and raises
    the rests of unplaced items that overlap it in time.
    Returns (False if one of these then ends above the capacity, whether unplaced items may now fall
    into parts that share no time).
    """
    depth, active = state.count[DEPTH], state.count[ACTIVE]
    state.stack[depth, ITEM], state.stack[depth, SECOND] = i, 0
    state.stack[depth, OLD_RESTS] = state.count[RESTS]
    state.stack[depth, OLD_BOUNDS] = state.count[BOUNDS]
    state.stack[depth, FRAME], state.stack[depth, OLD_FRAMES] = active, state.count[FRAMES]
    state.count[DEPTH] = depth + 1
    offset = state.rest[i]
    state.count[LEVEL], state.count[RANK] = offset, rank[i]
    state.offset[i] = offset
    state.frames[active, HI] -= 1
    swap(state, state.slot[i], state.frames[active, HI])
    state.dirty[:] = False
    separable = _account(model, state, i, np.int64(-1))
    state.count[WORK] += model.nb_ptr[i + 1] - model.nb_ptr[i]
    for e in range(model.nb_ptr[i], model.nb_ptr[i + 1]):
        j = model.nb_idx[e]
        if state.offset[j] >= 0:
            continue
        top = offset + model.nb_below[e]
        if model.align[j] > 1:
            top = (top + model.align[j] - 1) // model.align[j] * model.align[j]
        if top <= state.rest[j]:
            continue
        if not lift(model, state, j, top):
            return False, separable
        k = state.count[RESTS]
        state.rests[k, 0], state.rests[k, 1] = j, state.rest[j]
        state.count[RESTS] = k + 1
        state.rest[j] = top
    return True, separable


@inner
def _account(model: Model, state: PlacementState, i: int, sign: int) -> bool:
    """Takes item i's bytes off the unplaced bytes of the sections in which it is live (sign -1), or
    adds them again (sign 1), and marks these for inference. Returns whether no unplaced item is
    live on both sides of some border between them.
    """
    state.count[WORK] += len(state.dirty) + model.last[i] - model.first[i]
    for e in range(model.sec_ptr[i], model.sec_ptr[i + 1]):
        t = model.sec_idx[e]
        state.total[t] += sign * model.sec_height[e]
        state.dirty[t] = True
        if sign > 0:
            state.highest[t] = max(state.highest[t], state.earliest[i])
    separable = False
    for t in range(model.first[i], model.last[i]):
        state.crossing[t] += sign
        separable = separable or state.crossing[t] == 0
    return separable


@inner
def _backtrack(model: Model, state: PlacementState) -> int:
    """Undoes decisions up to one whose item may also lie above its rest (the top of the placed
    items below it), and decides that it does. Returns that item, or -1: the search is exhausted.
    """
    while True:
        active = state.count[ACTIVE]
        while state.count[DEPTH] > state.frames[active, START]:
            i = _undo(model, state, np.bool_(True))
            if i >= 0:
                return i
        if state.frames[active, PARENT] < 0:
            return -1
        while state.count[DEPTH] > state.frames[active, SPLIT]:
            _undo(model, state, np.bool_(False))
        state.count[ACTIVE] = state.frames[active, PARENT]


@inner
def _undo(model: Model, state: PlacementState, alternative: bool) -> int:
    """Undoes the last decision, which placed an item at its rest, the top of the items placed below
    it; with `alternative`, decides that it lies above its rest instead.
    Returns that item; -1 without `alternative`, or if that was decided before.
    """
    depth = state.count[DEPTH] - 1
    decision = state.stack[depth]
    while state.count[BOUNDS] > decision[OLD_BOUNDS]:
        state.count[BOUNDS] -= 1
        k = state.count[BOUNDS]
        state.earliest[state.bounds[k, 0]] = state.bounds[k, 1]
    state.count[FRAMES] = decision[OLD_FRAMES]
    state.count[DEPTH] = depth
    if decision[SECOND]:
        return -1
    i = decision[ITEM]
    while state.count[RESTS] > decision[OLD_RESTS]:
        state.count[RESTS] -= 1
        k = state.count[RESTS]
        state.rest[state.rests[k, 0]] = state.rests[k, 1]
    state.dirty[:] = False
    _account(model, state, i, np.int64(1))
    state.offset[i] = -1
    state.frames[decision[FRAME], HI] += 1
    if not alternative:
        return -1
    state.dirty[:] = False
    decision[SECOND] = 1
    state.count[DEPTH] = depth + 1
    return i


@inner
def swap(state: PlacementState, a: int, b: int) -> None:
    """Exchanges entries a and b of `state.waiting`, the list of items; `state.slot` follows."""
    i, j = state.waiting[a], state.waiting[b]
    state.waiting[a], state.waiting[b] = j, i
    state.slot[j], state.slot[i] = a, b


@inner
def activate(state: PlacementState, frame: int) -> None:
    """Makes the search go on with `frame`, the number of an independent part of unplaced items."""
    state.count[ACTIVE] = frame
    state.frames[frame, START] = state.count[DEPTH]
    state.count[LEVEL] = state.frames[frame, LOWEST]
    state.count[RANK] = state.frames[frame, ABOVE]


@inner
def split(model: Model, state: PlacementState) -> None:
    """Divides the active part's unplaced items into parts that share no time, if there are several,
    and activates that of fewest items; the search then packs one part after the other.
    A part that cannot be packed refutes the decisions before the split, whatever the others do.
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
