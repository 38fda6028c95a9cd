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
  rest on the other, the one with the lower number lies below.
- Decomposition: once a placement leaves no unplaced block across some border of sections, the two
  sides are packed one after the other. A side that cannot be packed refutes the decisions made
  before the split; how the other side was packed is not tried anew.

Pinned blocks are candidates at their own offset only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from olla_xla.lifetimes import jit
from olla_xla.place.model import Model

__all__ = ["EXHAUSTED", "FOUND", "LIMIT", "descend"]

FOUND, EXHAUSTED, LIMIT = 1, 0, -1
"""Outcomes: a packing was found, there is none, the node limit was reached."""

_FAR = np.int64(2**62)

# Entries of _State.count.
_ACTIVE, _FRAMES, _RESTS, _BOUNDS, _DEPTH, _LEVEL, _RANK = range(7)

# Columns of _State.frames: a set of unplaced items that no other unplaced item meets in time.
_LO, _HI, _FIRST, _LAST, _LOWEST, _ABOVE, _NEXT, _PARENT, _SPLIT, _START = range(10)

# Columns of _State.stack.
_ITEM, _SECOND, _OLD_RESTS, _OLD_BOUNDS, _FRAME, _OLD_FRAMES = range(6)


class _State(NamedTuple):
    """The current node; all arrays change in place and are undone from the trails.

    Attributes:
      rest: [items] highest end of placed blocks below. earliest: [items] bound of the offset.
      latest: [items] the highest offset within the capacity.
      offset: [items] of placed items, else -1.
      waiting, slot: the items, those of a frame together, and each item's place among them.
      total: [sections] unplaced bytes.
      crossing: [sections] unplaced items that live both there and in the next section or beyond.
      dirty: [sections] to be looked at again.
      rests, bounds: trails of (item, old value) of `rest` and `earliest`.
      frames: [frames] of `waiting`[_LO:_HI] in sections _FIRST.._LAST; candidates come after
        (_LOWEST, _ABOVE); _NEXT is searched after it; _PARENT fell apart at depth _SPLIT; its own
        decisions begin at depth _START.
      stack: [depth] item of a decision, 1 once its first branch is done, lengths of the trails
        before it, its frame, and the number of frames.
      count: the active frame, numbers of frames and of entries on the trails, the depth, and the
        offset and rank of the last candidate.
      weight: [sections] failures seen.
    """

    rest: np.ndarray
    earliest: np.ndarray
    latest: np.ndarray
    offset: np.ndarray
    waiting: np.ndarray
    slot: np.ndarray
    total: np.ndarray
    crossing: np.ndarray
    dirty: np.ndarray
    rests: np.ndarray
    bounds: np.ndarray
    frames: np.ndarray
    stack: np.ndarray
    count: np.ndarray
    weight: np.ndarray


@jit
def descend(
    model: Model,
    rank: np.ndarray,
    capacity: int,
    node_limit: int,
    weight: np.ndarray,
    trail: int,
) -> tuple[int, int, np.ndarray]:  # pragma: no cover
    """Searches for a packing within `capacity`.

    Args:
      model: the items. rank: [items] the preorder, a permutation: of candidates at one offset the
        lowest rank is tried first.
      capacity: bytes. node_limit: placements tried.
      weight: [sections] float64; failures in each section are added to it.
      trail: entries of the undo trails; the search stops (LIMIT) before they overflow.

    Returns:
      (outcome, nodes, offsets in bytes: those of the packing, or meaningless).
    """
    state = _start(model, capacity, weight, trail)
    nodes = 0
    n = len(rank)
    good = _root(model, state) and _infer(model, state, capacity)
    while True:
        chosen = _candidate(model, state, rank) if good else -1
        if chosen < 0:
            chosen = _backtrack(model, state)
            if chosen < 0:
                return EXHAUSTED, nodes, state.offset
            state.count[_LEVEL], state.count[_RANK] = state.rest[chosen], rank[chosen]
            good = _pass_over(model, state, chosen) and _infer(model, state, capacity)
            continue
        nodes += 1
        room = min(len(state.rests) - state.count[_RESTS], len(state.bounds) - state.count[_BOUNDS])
        if nodes > node_limit or room < 64 * n or state.count[_DEPTH] == len(state.stack):
            return LIMIT, nodes, state.offset
        good, apart = _place(model, state, rank, chosen)
        frame = state.frames[state.count[_ACTIVE]]
        if frame[_LO] == frame[_HI]:
            if frame[_NEXT] < 0:
                return FOUND, nodes, state.offset
            _activate(state, frame[_NEXT])
            continue
        good = good and _lift_passed(model, state, rank) and _infer(model, state, capacity)
        if good and apart:
            _split(model, state)


@jit
def _start(
    model: Model, capacity: int, weight: np.ndarray, trail: int
) -> _State:  # pragma: no cover
    n, sections = len(model.size), len(model.mem_ptr) - 1
    total = np.zeros(sections, np.int64)
    for t in range(sections):
        for e in range(model.mem_ptr[t], model.mem_ptr[t + 1]):
            total[t] += model.mem_height[e]
    latest = (capacity - model.need) // model.align * model.align
    rest = np.zeros(n, np.int64)
    earliest = np.zeros(n, np.int64)
    for i in range(n):
        if model.fixed[i] >= 0:
            rest[i] = model.fixed[i]
            earliest[i] = model.fixed[i]
            latest[i] = min(latest[i], model.fixed[i])
    crossing = np.zeros(sections, np.int64)
    for i in range(n):
        crossing[model.first[i] : model.last[i]] += 1
    frames = np.zeros((2 * n + 2, 10), np.int64)
    frames[0, _HI], frames[0, _LAST] = n, sections - 1
    frames[0, _ABOVE] = frames[0, _NEXT] = frames[0, _PARENT] = -1
    count = np.zeros(7, np.int64)
    count[_FRAMES] = 1
    count[_RANK] = -1
    return _State(
        rest,
        earliest,
        latest,
        np.full(n, np.int64(-1)),
        np.arange(n),
        np.arange(n),
        total,
        crossing,
        np.ones(sections, np.bool_),
        np.empty((trail, 2), np.int64),
        np.empty((trail, 2), np.int64),
        frames,
        np.empty((trail // 16, 6), np.int64),
        count,
        weight,
    )


@jit
def _root(model: Model, state: _State) -> bool:  # pragma: no cover
    """Lifts every item above the pinned ones that it cannot lie under; false if that fails."""
    for i in range(len(model.size)):
        if state.earliest[i] > state.latest[i]:
            return False
        if model.fixed[i] < 0 and not _lift(model, state, i, np.int64(0)):
            return False
    return True


@jit
def _lift(model: Model, state: _State, i: int, least: int) -> bool:  # pragma: no cover
    """Raises the bound of item i to `least`; false if it then leaves the capacity."""
    value = max(least, state.earliest[i])
    for p in range(model.pin_ptr[i], model.pin_ptr[i + 1]):
        e = model.pin_idx[p]
        pin = model.nb_idx[e]
        if state.offset[pin] < 0 and model.fixed[i] < 0:
            if value + model.nb_below[e] > model.fixed[pin]:
                value = max(value, model.fixed[pin] + model.nb_above[e])
    if model.align[i] > 1:
        value = (value + model.align[i] - 1) // model.align[i] * model.align[i]
    if value > state.latest[i]:
        return False
    if value > state.earliest[i]:
        k = state.count[_BOUNDS]
        state.bounds[k, 0], state.bounds[k, 1] = i, state.earliest[i]
        state.count[_BOUNDS] = k + 1
        state.earliest[i] = value
        for e in range(model.sec_ptr[i], model.sec_ptr[i + 1]):
            state.dirty[model.sec_idx[e]] = True
    return True


@jit
def _candidate(model: Model, state: _State, rank: np.ndarray) -> int:  # pragma: no cover
    """The item of lowest (rest, rank) above the last one; -1 if none is left or worthwhile."""
    level, last = state.count[_LEVEL], state.count[_RANK]
    best, best_rest, best_rank = -1, _FAR, np.int64(0)
    hole = _FAR
    frame = state.frames[state.count[_ACTIVE]]
    for k in range(frame[_LO], frame[_HI]):
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


@jit
def _misplaced(model: Model, state: _State, rank: np.ndarray, i: int) -> bool:  # pragma: no cover
    """Whether placing i at its rest is left to a symmetric branch."""
    if model.twin[i] >= 0 and state.offset[model.twin[i]] < 0:
        return True
    for e in range(model.kin_ptr[i], model.kin_ptr[i + 1]):
        j = model.kin_idx[e]
        if (
            rank[j] > rank[i]
            and state.offset[j] >= 0
            and state.offset[j] + model.size[j] == state.rest[i]
        ):
            return True
    return False


@jit
def _place(
    model: Model, state: _State, rank: np.ndarray, i: int
) -> tuple[bool, bool]:  # pragma: no cover
    """Places i at its rest.

    Returns:
      (False if a neighbour then leaves the capacity, whether the frame may fall apart).
    """
    depth, active = state.count[_DEPTH], state.count[_ACTIVE]
    state.stack[depth, _ITEM], state.stack[depth, _SECOND] = i, 0
    state.stack[depth, _OLD_RESTS] = state.count[_RESTS]
    state.stack[depth, _OLD_BOUNDS] = state.count[_BOUNDS]
    state.stack[depth, _FRAME], state.stack[depth, _OLD_FRAMES] = active, state.count[_FRAMES]
    state.count[_DEPTH] = depth + 1
    offset = state.rest[i]
    state.count[_LEVEL], state.count[_RANK] = offset, rank[i]
    state.offset[i] = offset
    state.frames[active, _HI] -= 1
    _swap(state, state.slot[i], state.frames[active, _HI])
    state.dirty[:] = False
    apart = _account(model, state, i, -1)
    for e in range(model.nb_ptr[i], model.nb_ptr[i + 1]):
        j = model.nb_idx[e]
        if state.offset[j] >= 0:
            continue
        top = offset + model.nb_below[e]
        if model.align[j] > 1:
            top = (top + model.align[j] - 1) // model.align[j] * model.align[j]
        if top <= state.rest[j]:
            continue
        if not _lift(model, state, j, top):
            return False, apart
        k = state.count[_RESTS]
        state.rests[k, 0], state.rests[k, 1] = j, state.rest[j]
        state.count[_RESTS] = k + 1
        state.rest[j] = top
    return True, apart


@jit
def _swap(state: _State, a: int, b: int) -> None:  # pragma: no cover
    """Exchanges two entries of `waiting`."""
    i, j = state.waiting[a], state.waiting[b]
    state.waiting[a], state.waiting[b] = j, i
    state.slot[j], state.slot[i] = a, b


@jit
def _activate(state: _State, frame: int) -> None:  # pragma: no cover
    """Turns to a frame whose items are still unplaced."""
    state.count[_ACTIVE] = frame
    state.frames[frame, _START] = state.count[_DEPTH]
    state.count[_LEVEL] = state.frames[frame, _LOWEST]
    state.count[_RANK] = state.frames[frame, _ABOVE]


@jit
def _split(model: Model, state: _State) -> None:  # pragma: no cover
    """Replaces the active frame by the parts into which its unplaced items fall, small ones first.

    One that cannot be packed then refutes the decisions before the split, with no regard to how the
    other parts were packed.
    """
    active = state.count[_ACTIVE]
    lo, hi = state.frames[active, _LO], state.frames[active, _HI]
    old, last = state.count[_FRAMES], state.frames[active, _LAST]
    count = old
    first, start = state.frames[active, _FIRST], lo
    for s in range(state.frames[active, _FIRST], last + 1):
        if s < last and state.crossing[s] > 0:
            continue
        end = start
        for k in range(start, hi):
            if model.first[state.waiting[k]] <= s:
                _swap(state, k, end)
                end += 1
        if end > start:
            frame = state.frames[count]
            frame[_LO], frame[_HI], frame[_FIRST], frame[_LAST] = start, end, first, s
            count += 1
        first, start = s + 1, end
    if count < old + 2:
        return
    state.count[_FRAMES] = count
    order = np.argsort(state.frames[old:count, _HI] - state.frames[old:count, _LO])
    following = state.frames[active, _NEXT]
    for k in range(count - old - 1, -1, -1):
        frame = state.frames[old + order[k]]
        frame[_LOWEST], frame[_ABOVE] = state.count[_LEVEL], state.count[_RANK]
        frame[_NEXT], frame[_PARENT], frame[_SPLIT] = following, active, state.count[_DEPTH]
        following = old + order[k]
    _activate(state, following)


@jit
def _account(model: Model, state: _State, i: int, sign: int) -> bool:  # pragma: no cover
    """Adds item i to its sections, or takes it away; True where it was the last across a border."""
    for e in range(model.sec_ptr[i], model.sec_ptr[i + 1]):
        t = model.sec_idx[e]
        state.total[t] += sign * model.sec_height[e]
        state.dirty[t] = True
    apart = False
    for t in range(model.first[i], model.last[i]):
        state.crossing[t] += sign
        apart = apart or state.crossing[t] == 0
    return apart


@jit
def _backtrack(model: Model, state: _State) -> int:  # pragma: no cover
    """Undoes decisions up to one whose second branch is open, and enters that; its item or -1."""
    while True:
        active = state.count[_ACTIVE]
        while state.count[_DEPTH] > state.frames[active, _START]:
            i = _undo(model, state, True)
            if i >= 0:
                return i
        if state.frames[active, _PARENT] < 0:
            return -1
        while state.count[_DEPTH] > state.frames[active, _SPLIT]:
            _undo(model, state, False)
        state.count[_ACTIVE] = state.frames[active, _PARENT]


@jit
def _undo(model: Model, state: _State, alternative: bool) -> int:  # pragma: no cover
    """Undoes the last decision; with `alternative`, enters its second branch if that is open.

    Returns:
      The item of a second branch, or -1.
    """
    depth = state.count[_DEPTH] - 1
    decision = state.stack[depth]
    while state.count[_BOUNDS] > decision[_OLD_BOUNDS]:
        state.count[_BOUNDS] -= 1
        k = state.count[_BOUNDS]
        state.earliest[state.bounds[k, 0]] = state.bounds[k, 1]
    state.count[_FRAMES] = decision[_OLD_FRAMES]
    state.count[_DEPTH] = depth
    if decision[_SECOND]:
        return -1
    i = decision[_ITEM]
    while state.count[_RESTS] > decision[_OLD_RESTS]:
        state.count[_RESTS] -= 1
        k = state.count[_RESTS]
        state.rest[state.rests[k, 0]] = state.rests[k, 1]
    state.dirty[:] = False
    _account(model, state, i, 1)
    state.offset[i] = -1
    state.frames[decision[_FRAME], _HI] += 1
    if not alternative:
        return -1
    state.dirty[:] = False
    decision[_SECOND] = 1
    state.count[_DEPTH] = depth + 1
    return i


@jit
def _pass_over(model: Model, state: _State, i: int) -> bool:  # pragma: no cover
    """Bounds an item passed over, which rests on a neighbour placed later; False on failure."""
    least = _FAR
    bound = state.earliest[i]
    for e in range(model.nb_ptr[i], model.nb_ptr[i + 1]):
        j = model.nb_idx[e]
        if state.offset[j] < 0:
            end = max(state.earliest[j], state.count[_LEVEL]) + model.nb_above[e]
            if end < least:
                least = end
                if least <= bound and bound > state.rest[i]:
                    return True
    if least == _FAR:
        return False
    return _lift(model, state, i, least)


@jit
def _lift_passed(model: Model, state: _State, rank: np.ndarray) -> bool:  # pragma: no cover
    """Bounds all items passed over so far; false if one cannot be placed any more."""
    level, last = state.count[_LEVEL], state.count[_RANK]
    frame = state.frames[state.count[_ACTIVE]]
    for k in range(frame[_LO], frame[_HI]):
        i = state.waiting[k]
        rest = state.rest[i]
        if rest < level or rest == level and rank[i] < last:
            if not _pass_over(model, state, i):
                return False
    return True


@jit
def _infer(model: Model, state: _State, capacity: int) -> bool:  # pragma: no cover
    """Section inference to a fixpoint; false if some section cannot be filled."""
    frame = state.frames[state.count[_ACTIVE]]
    again = True
    while again:
        again = False
        for t in range(frame[_FIRST], frame[_LAST] + 1):
            if not state.dirty[t]:
                continue
            state.dirty[t] = False
            if state.total[t] == 0:
                continue
            before = state.count[_BOUNDS]
            # The topmost item needs no padding.
            if not _infer_section(model, state, t, capacity + model.grain - 1 - state.total[t]):
                state.weight[t] += 1
                return False
            again = again or state.count[_BOUNDS] > before
    return True


@jit
def _infer_section(model: Model, state: _State, t: int, room: int) -> bool:  # pragma: no cover
    """Who can come first in section t, where at most `room` bytes may lie below the first."""
    lo, hi = model.mem_ptr[t], model.mem_ptr[t + 1]
    least = _FAR
    first, several = -1, False
    for e in range(lo, hi):
        i = model.mem_idx[e]
        if state.offset[i] < 0 and state.earliest[i] <= room:
            several = first >= 0
            first = i
            least = min(least, state.earliest[i] + model.mem_height[e])
    if first < 0:
        return False
    for e in range(lo, hi):
        i = model.mem_idx[e]
        if state.offset[i] >= 0 or state.earliest[i] >= least:
            continue
        if state.earliest[i] > room or (not several and i != first):
            if not _lift(model, state, i, least):
                return False
    return True
