"""The simulated heap and the index of gaps, against the rules they speed up, read literally."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.memory.assignment import heap
from olla_xla.memory.assignment.allocation_reuse import new_gaps, previous, put

_ALIGNMENT = 4


def _best_fit(order, members, start, end, size):
    """XLA's rule: the smallest gap between the chunks that live at the same time, else on top."""
    chunks, offsets, height = [], {}, 0
    for r in order:
        need = max(size[m] for m in members[r])
        live = sorted(
            (lo, hi)
            for lo, hi, v in chunks
            if any(start[v] <= end[m] and end[v] >= start[m] for m in members[r])
        )
        free, best = 0, None
        for lo, hi in live:
            if lo - free >= need and (best is None or lo - free < best[0]):
                best = (lo - free, free)
            if hi > free:
                free = -(-hi // _ALIGNMENT) * _ALIGNMENT
        at = free if best is None else best[1]
        for m in members[r]:
            offsets[m] = at
            chunks.append((at, at + need, m))
        height = max(height, at + need)
    return height, offsets


@st.composite
def _groups(draw, most: int = 25):
    """Live ranges with distinct ticks, some joined into groups, their sizes and group roots."""
    n = draw(st.integers(1, most))
    ticks = np.array(draw(st.permutations(range(2 * n)))).reshape(n, 2)
    ticks.sort(axis=1)
    start, end = ticks[:, 0], ticks[:, 1]
    root = np.arange(n)
    for v in range(1, n):
        u = draw(st.integers(0, v))
        same = np.flatnonzero(root == root[u])
        if draw(st.booleans()) and all(start[v] > end[m] or end[v] < start[m] for m in same):
            root[v] = root[u]
    classes = np.array(draw(st.lists(st.sampled_from([4, 8, 12, 30]), min_size=n, max_size=n)))
    return start.astype(np.int64), end.astype(np.int64), root.astype(np.int64), classes[root]


def _pack(start, end, root, size, most=None):
    ids = np.arange(len(start), dtype=np.int64)
    return heap.pack(ids, start, end, root, size.astype(np.int64), _ALIGNMENT, most)


@given(_groups(), st.integers(0, 9))
def test_heap_is_the_better_of_two_best_fits(groups, spread):
    start, end, root, size = groups
    stretch = 4**spread  # over one block of ticks or many
    start, end = start * stretch, end * stretch
    members = {r: np.flatnonzero(root == r) for r in np.unique(root)}
    lengths = {r: end[r] - start[r] for r in members}
    spans = {r: end[members[r]].max() - start[members[r]].min() for r in members}
    roots = sorted(members)
    spatial = sorted(roots, key=lambda r: (-size[r], -lengths[r], r))
    temporal = sorted(roots, key=lambda r: (-spans[r], -size[r], r))
    plain = [_best_fit(order, members, start, end, size) for order in (spatial, temporal)]
    height, offsets = min(plain, key=lambda p: p[0])
    found, placed = _pack(start, end, root, size)
    assert found == height
    assert {m: int(placed[m]) for m in range(len(start))} == offsets


@given(_groups(), st.integers(0, 300), st.booleans())
def test_a_heap_that_is_too_large_is_not_packed(groups, most, touching):
    start, end, root, size = groups
    start, end = 2 * start, 2 * end
    for r in np.unique(root) if touching else ():  # a set's next value begins, then one is freed
        members = sorted(np.flatnonzero(root == r), key=lambda m: start[m])
        for a, b in itertools.pairwise(members):
            end[a] = start[b] + 1
    height, placed = _pack(start, end, root, size)
    found, where = _pack(start, end, root, size, most)
    if height <= most:
        assert found == height
        assert (where == placed).all()
    else:
        assert most < found <= height


def test_values_that_hand_their_memory_on_are_looked_at_as_one():
    """Of 100,000 operators 74,521 values make 34,020 runs; each was in every list before."""
    start, end, root = np.array([0, 3, 9, 1]), np.array([2, 5, 11, 8]), np.array([0, 0, 0, 3])
    runs, _, _, latest = heap._grouped(np.arange(4), start, end, root, np.full(4, 8))
    assert runs.begin.tolist() == [0, 1, 9] and runs.end.tolist() == [5, 8, 11]
    assert runs.first.tolist() == [0, -1, -1, 1] and runs.following.tolist() == [2, -1, -1]
    assert heap._blocks(runs, latest).ptr.tolist() == [0, 3]


def _shares_time(s, e, a, b):
    """Whether two live ranges of more than an instant have more than their ends in common."""
    return max(s, a) < min(e, b) or (a == b and s < a < e)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4)),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_no_allocation_with_room_is_passed_over(allocations, wanted):
    s, e = sorted(wanted)
    gaps = new_gaps(max(len(allocations), 1))
    with_room = []
    for k, ranges in enumerate(allocations):
        start = np.array([min(r) for r in ranges])
        end = np.array([max(r) for r in ranges])
        put(gaps, k, np.argsort(start), start, end, 12)
        if s == e or not any(_shares_time(s, e, *sorted(r)) for r in ranges):
            with_room.append(k)
    met, k = [], len(allocations)
    while (k := previous(gaps, k, s, e)) >= 0:
        met.append(k)
    assert met == sorted(met, reverse=True)
    assert set(with_room) <= set(met)
