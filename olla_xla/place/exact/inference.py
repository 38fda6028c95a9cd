"""Lower bounds on offsets in the exact search (descend.py), raised to a fixpoint."""

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.jit import inner
from olla_xla.place.exact.model import Model
from olla_xla.place.exact.state import (
    ACTIVE,
    BOUNDS,
    FAR,
    FIRST,
    HI,
    LAST,
    LEVEL,
    LO,
    RANK,
    WORK,
    PlacementState,
)


@inner
def lift_all(model: Model, state: PlacementState) -> bool:
    """Raises the lower bound of each item's offset past pinned items below which it does not fit.
    Returns False if one item then ends above the capacity.
    """
    for i in range(len(model.size)):
        if state.earliest[i] > state.latest[i]:
            return False
        if model.fixed[i] < 0 and not lift(model, state, i, np.int64(0)):
            return False
    return True


@inner
def lift(model: Model, state: PlacementState, i: int, least: int) -> bool:
    """Raises the lower bound of item `i`'s offset to `least` bytes or more: past pinned items below
    which it does not fit, and aligned. If it rises, marks the item's sections for inference.
    Returns False, and changes nothing, if the item then ends above the capacity.
    """
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
        k = state.count[BOUNDS]
        state.bounds[k, 0], state.bounds[k, 1] = i, state.earliest[i]
        state.count[BOUNDS] = k + 1
        state.earliest[i] = value
        for p in range(model.part_ptr[i], model.part_ptr[i + 1]):
            start, stop = model.part_first[p], model.part_last[p] + 1
            state.dirty[start:stop] = True
            state.count[WORK] += stop - start
            for t in range(start, stop):
                state.highest[t] = max(state.highest[t], value)
    return True


@inner
def pass_over(model: Model, state: PlacementState, i: int) -> bool:
    """Raises the lower bound of the offset of item `i`, which lies above its rest (the top of the
    items placed below it), onto the lowest end of an unplaced item that overlaps it in time.
    False if there is no such item, or item `i` then ends above the capacity.
    """
    bound = state.earliest[i]
    hint = state.support[i]
    if hint >= 0 and bound > state.rest[i] and _end(model, state, hint) <= bound:
        return True
    least = np.int64(FAR)
    state.count[WORK] += model.nb_ptr[i + 1] - model.nb_ptr[i]
    # As `_end` has it; a call for each neighbour would take a hundred times longer.
    level = state.count[LEVEL]
    for e in range(model.nb_ptr[i], model.nb_ptr[i + 1]):
        j = model.nb_idx[e]
        if state.offset[j] >= 0:
            continue
        end = max(state.earliest[j], level) + model.nb_above[e]
        if end < least:
            least = end
            state.support[i] = e
            if least <= bound and bound > state.rest[i]:
                return True
    if least == FAR:
        return False
    return lift(model, state, i, least)


@inner
def _end(model: Model, state: PlacementState, e: int) -> int:
    """Computes the least offset of an item that lies on its neighbour in time `nb_idx[e]`; FAR if
    the neighbour is placed already.
    """
    j = model.nb_idx[e]
    if state.offset[j] >= 0:
        return FAR
    return int(max(state.earliest[j], state.count[LEVEL]) + model.nb_above[e])


@inner
def lift_passed(model: Model, state: PlacementState, rank: NDArray[np.int64]) -> bool:
    """Raises the lower bounds of offsets of unplaced items that came before the last candidate by
    (rest, rank) and so lie above their rests; False if one cannot fit. `rank`: int64 [items], the
    order in which items are tried.
    """
    level, last = state.count[LEVEL], state.count[RANK]
    frame = state.frames[state.count[ACTIVE]]
    for k in range(frame[LO], frame[HI]):
        i = state.waiting[k]
        rest = state.rest[i]
        if rest < level or rest == level and rank[i] < last:
            if not pass_over(model, state, i):
                return False
    return True


@inner
def infer(model: Model, state: PlacementState, capacity: int) -> bool:
    """Raises the lower bounds of unplaced items' offsets by the bytes that must lie below them, in
    marked sections (`state.dirty`) until none is marked. Returns False if the items live in some
    section cannot lie within `capacity` bytes; that section's `state.weight` grows by one.
    """
    frame = state.frames[state.count[ACTIVE]]
    again = True
    while again:
        again = False
        state.count[WORK] += frame[LAST] + 1 - frame[FIRST]
        for t in range(frame[FIRST], frame[LAST] + 1):
            if not state.dirty[t]:
                continue
            state.dirty[t] = False
            # The topmost item needs no padding.
            slack = capacity + model.grain - 1 - state.total[t]
            if state.total[t] == 0 or state.highest[t] <= slack:
                continue
            before = state.count[BOUNDS]
            if not _infer_section(model, state, t, slack):
                state.weight[t] += 1
                return False
            again = again or state.count[BOUNDS] > before
    return True


@inner
def _infer_section(model: Model, state: PlacementState, t: int, slack: int) -> bool:
    """Raises the lower bounds of the offsets of items that cannot be the lowest unplaced one of
    those live in section t. The lowest lies at `slack` bytes or below, others on top of it. False
    if none can be the lowest, or an item cannot fit.
    """
    lo, hi = model.mem_ptr[t], model.mem_ptr[t + 1]
    state.count[WORK] += hi - lo
    least = np.int64(FAR)
    first, several = -1, False
    highest = 0
    for e in range(lo, hi):
        i = model.mem_idx[e]
        if state.offset[i] >= 0:
            continue
        highest = max(highest, state.earliest[i])
        if state.earliest[i] <= slack:
            several = first >= 0
            first = i
            least = min(least, state.earliest[i] + model.mem_height[e])
    state.highest[t] = highest
    if first < 0:
        return False
    for e in range(lo, hi):
        i = model.mem_idx[e]
        if state.offset[i] >= 0 or state.earliest[i] >= least:
            continue
        if state.earliest[i] > slack or (not several and i != first):
            if not lift(model, state, i, least):
                return False
    return True
