"""Where an item fits among those that are placed, against a look at every offset."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from olla_xla.place.items import items_of
from olla_xla.place.placed_parts import (
    HIGHEST,
    LOWEST,
    TIGHTEST,
    Shapes,
    excess,
    fit,
    overlapping,
    put,
    sticking_out,
)
from olla_xla.place.problem import PlacementProblem
from olla_xla.place.relocate import ANYWHERE, relocate, repack, scratch

BLOCKS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 5)), min_size=2, max_size=7
)


def shapes_of(blocks):
    lower, length, size = (np.array(column) for column in zip(*blocks, strict=True))
    problem = PlacementProblem.of(lower, lower + length, size)
    items, _ = items_of(problem, 0)
    return problem, Shapes(
        items.part_ptr, items.part_first, items.part_last, items.part_height, items.size
    )


def meets(blocks, i, j):
    return blocks[i][0] < blocks[j][0] + blocks[j][1] and blocks[j][0] < blocks[i][0] + blocks[i][1]


@settings(deadline=None)
@given(BLOCKS, st.integers(5, 12))
def test_items_fit_into_the_gap_that_is_asked_for(blocks, target_height):
    _, shapes = shapes_of(blocks)
    placed, count = np.empty((5, len(blocks)), np.int64), 0
    offsets = []
    for i in range(len(blocks) - 1):  # each on its own level
        offsets.append(sum(size + 1 for _, _, size in blocks[:i]))
        count = put(i, offsets[i], shapes, placed, count)
    assert count == len(blocks) - 1 and (np.diff(placed[2, :count]) >= 0).all()
    last = len(blocks) - 1
    taken = [(offsets[j], offsets[j] + blocks[j][2]) for j in range(last) if meets(blocks, last, j)]
    size = blocks[last][2]
    free = [x for x in range(60) if all(x + size <= low or high <= x for low, high in taken)]
    assert fit(last, shapes, target_height, LOWEST, placed, count) == free[0]
    for gap in (TIGHTEST, HIGHEST):
        assert fit(last, shapes, target_height, gap, placed, count) in free
    below = [x for x in free if x + size <= target_height]
    # A gap that ends above the target height is not taken for one below it.
    if below and all(high <= target_height for _, high in taken):
        assert fit(last, shapes, target_height, HIGHEST, placed, count) == below[-1]
    found = np.empty(len(blocks), np.int64)
    near = found[: overlapping(last, shapes, found)].tolist()
    assert near == [j for j in range(last) if meets(blocks, last, j)]


def test_bytes_above_the_target_height():
    assert [excess(x, 4, 10) for x in (0, 6, 8, 10, 20)] == [0, 0, 2, 4, 4]
    found = np.empty(3, np.int64)
    offset, size = np.array([0, 8, 20]), np.array([4, 4, 4])
    assert found[: sticking_out(offset, size, 10, found)].tolist() == [1, 2]


@settings(deadline=None)
@given(BLOCKS, st.integers(0, 2))
def test_relocation_is_sound_and_exceeds_the_target_height_no_more(blocks, seed):
    problem, shapes = shapes_of(blocks)
    tall = np.cumsum(problem.size) - problem.size
    target_height = int(problem.size.max()) + 2

    def over(offsets):
        return sum(
            excess(int(x), int(s), target_height)
            for x, s in zip(offsets, problem.size, strict=True)
        )

    found, placed = relocate(tall.copy(), shapes, target_height, 40, seed)
    problem.check(found)  # no overlap
    assert over(found) <= over(tall) and placed >= 0


def test_repacking_counts_what_it_places():
    blocks = [(0, 3, 2), (1, 3, 4), (2, 2, 1), (6, 1, 3)]
    _, shapes = shapes_of(blocks)
    n, weight = len(blocks), np.ones(len(blocks))
    trial = scratch(n)
    trial.taken[:], trial.key[:] = np.arange(n), np.arange(n)
    placed = np.empty((5, len(shapes.first)), np.int64)
    after, cost, count, spent = repack(
        n, ANYWHERE, np.inf, weight, shapes, 100, placed, 0, trial
    )  # fmt: skip
    assert (after, cost, count, spent) == (0, 0.0, len(shapes.first), n)
    # One byte above is too much: the first that does not fit ends it.
    *_, spent = repack(n, ANYWHERE, 0.5, weight, shapes, 1, placed, 0, trial)
    assert spent == 1
