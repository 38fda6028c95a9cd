"""The state of the exact search: what is undone is as it was, and parts are packed apart."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from olla_xla.place.exact.descend import _candidate, _place, _undo
from olla_xla.place.exact.frames import split
from olla_xla.place.exact.inference import infer, lift_all, lift_passed
from olla_xla.place.exact.model import model_of
from olla_xla.place.exact.state import (
    ACTIVE,
    BOUNDS,
    DEPTH,
    FRAMES,
    HI,
    LO,
    NEXT,
    RESTS,
    start,
)
from olla_xla.place.items import independent, items_of
from olla_xla.place.problem import PlacementProblem

BLOCKS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(1, 4), st.integers(1, 4)), min_size=2, max_size=10
)


def begun(blocks, capacity):
    """The first independent part of blocks; the search's state at its beginning."""
    lower, length, size = (np.array(column) for column in zip(*blocks, strict=True))
    items, _ = items_of(PlacementProblem.of(lower, lower + length, size), 0)
    part = max(independent(items), key=len)
    model = model_of(part)
    state = start(model, capacity, np.zeros(len(model.mem_ptr) - 1), 100_000)
    good = lift_all(model, state) and infer(model, state, capacity)
    return model, state, np.arange(len(part)), good


def waiting(state, frame):
    return set(state.waiting[state.frames[frame, LO] : state.frames[frame, HI]].tolist())


def told(state):
    """All that a decision changes."""
    arrays = (state.rest, state.earliest, state.offset, state.total, state.crossing)
    counts = state.count[[ACTIVE, FRAMES, RESTS, BOUNDS, DEPTH]].tolist()
    return [array.tolist() for array in arrays], counts, waiting(state, 0)


@given(BLOCKS, st.integers(4, 14))
def test_what_is_undone_is_as_it_was(blocks, capacity):
    model, state, rank, good = begun(blocks, capacity)
    seen = [told(state)]
    while good and (i := _candidate(model, state, rank)) >= 0:
        good, _ = _place(model, state, rank, i)
        good = good and lift_passed(model, state, rank) and infer(model, state, capacity)
        seen.append(told(state))
    while len(seen) > 1:
        assert told(state) == seen.pop()
        _undo(model, state, False)
    assert told(state) == seen[0]


def groups(model, items):
    """Items that are tied to each other by sections in which both live; by first section."""
    found = []
    for i in sorted(items, key=lambda i: model.first[i]):
        if found and model.first[i] <= max(model.last[j] for j in found[-1]):
            found[-1].add(i)
        else:
            found.append({i})
    return found


@given(BLOCKS)
def test_what_no_item_ties_is_packed_apart(blocks):
    blocks = [*blocks, (0, 13, 1)]  # all in one part, until this is placed
    model, state, _, good = begun(blocks, 100)
    longest = int(np.argmax(model.last - model.first))
    rank = np.argsort(np.argsort(np.arange(len(model.first)) != longest, kind="stable"))
    i = _candidate(model, state, rank)
    assert good and i == longest
    _, separable = _place(model, state, rank, i)
    expected = groups(model, set(range(len(model.first))) - {i})
    assume(len(expected) > 1)
    assert separable
    split(model, state)
    frames, chain = range(1, int(state.count[FRAMES])), []
    frame = int(state.count[ACTIVE])
    while frame >= 0:
        chain.append(frame)
        frame = int(state.frames[frame, NEXT])
    assert sorted(chain) == list(frames)
    parts = [waiting(state, frame) for frame in chain]
    assert sorted(map(sorted, parts)) == sorted(map(sorted, expected))
    assert [len(part) for part in parts] == sorted(map(len, parts))  # small ones first
