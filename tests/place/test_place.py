"""Placing blocks: the search against brute force, heuristics, the referee, real instances."""

import csv
import itertools
import re
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from olla_xla.check.blocks import check_blocks
from olla_xla.errors import CheckError, InputError, LimitError
from olla_xla.place import METHODS, PlacementProblem, place
from olla_xla.place.items import items_of
from olla_xla.place.placed_parts import shapes_of
from olla_xla.place.rules import _first_fit
from olla_xla.problem.plan_parts import StopReason
from olla_xla.solvers.linear import Status

DATA = Path(__file__).parents[2] / "benchmarks" / "minimalloc"

slow = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
some = settings(slow, max_examples=100)


@numba.njit(cache=True)
def least_height(distance, size, align, fixed):
    """Least height over all orders of placing units each above all placed ones that it meets.

    distance[i, j]: bytes that j must lie above i, or 0 where they never meet. Exact: take an
    optimal packing's units by increasing offset.
    """
    n = len(size)
    best = np.int64(2**62)
    offset = np.zeros(n, np.int64)
    placed = np.zeros(n, np.bool_)
    tops = np.zeros(n + 1, np.int64)
    chosen = np.full(n + 1, -1)
    depth = 0
    while depth >= 0:
        if chosen[depth] >= 0:
            placed[chosen[depth]] = False
        i = chosen[depth] + 1
        while i < n and placed[i]:
            i += 1
        if depth == n:
            best = min(best, tops[depth])
            depth -= 1
            continue
        if i == n:
            chosen[depth] = -1
            depth -= 1
            continue
        chosen[depth] = i
        x = np.int64(0)
        for j in range(n):
            if placed[j] and distance[j, i] > 0:
                x = max(x, offset[j] + distance[j, i])
        x = (x + align[i] - 1) // align[i] * align[i]
        if fixed[i] >= 0:
            if x > fixed[i]:
                continue
            x = fixed[i]
        top = max(tops[depth], x + size[i])
        if top >= best:
            continue
        offset[i] = x
        placed[i] = True
        tops[depth + 1] = top
        depth += 1
        if depth < n:
            chosen[depth] = -1
    return best


def brute_force(problem):
    """The least height of a problem with one memory space."""
    units = np.unique(problem.group)
    n = len(units)
    members = [np.flatnonzero(problem.group == g) for g in units]
    distance = np.zeros((n, n), np.int64)
    for a, b in itertools.permutations(range(n), 2):
        for i, j in itertools.product(members[a], members[b]):
            if problem.lower[i] < problem.upper[j] and problem.lower[j] < problem.upper[i]:
                if min(problem.size[i], problem.size[j]) > 0:
                    distance[a, b] = max(distance[a, b], problem.size[i])
    return int(
        least_height(
            distance,
            np.array([problem.size[m].max() for m in members]),
            np.array([np.lcm.reduce(problem.alignment[m]) for m in members]),
            np.array([problem.fixed[m[0]] for m in members]),
        )
    )


@st.composite
def plain(draw, most=8):
    n = draw(st.integers(1, most))
    values = draw(st.lists(st.integers(0, 9 * 8 * 12 - 1), min_size=n, max_size=n))
    lower = [v % 9 for v in values]
    upper = [v % 9 + v // 9 % 8 + 1 for v in values]
    return PlacementProblem.of(lower, upper, [v // 72 for v in values])


@st.composite
def constrained(draw):
    """Alignments, groups and pinned blocks as well."""
    base = draw(plain(most=6))
    n = len(base)
    group = np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    alignment = draw(st.lists(st.sampled_from([1, 2, 4, 6]), min_size=n, max_size=n))
    pins = np.array(draw(st.lists(st.sampled_from([-1, -1, -1, 0, 12, 24]), min_size=6)))
    return PlacementProblem.of(
        base.lower, base.upper, base.size,
        group=group, alignment=alignment, fixed=pins[group],
    )  # fmt: skip


@slow
@given(plain())
def test_agrees_with_brute_force(problem):
    packing = place(problem, method="search")
    assert packing.status is Status.OPTIMAL
    assert packing.height == brute_force(problem) == packing.bound


@some
@given(constrained())
def test_constraints_agree_with_brute_force(problem):
    packing = place(problem)
    least = brute_force(problem)
    if least == 2**62:
        assert packing.status is Status.INFEASIBLE
    else:
        assert packing.status is Status.OPTIMAL
        assert packing.height == least


@some
@given(plain(), st.integers(0, 60))
def test_capacity_decides(problem, capacity):
    least = brute_force(problem)
    limited = PlacementProblem.of(problem.lower, problem.upper, problem.size, capacity=capacity)
    packing = place(limited, method="search")
    assert (packing.status is Status.INFEASIBLE) == (packing.offsets is None) == (least > capacity)
    proven = packing.status in (Status.INFEASIBLE, Status.OPTIMAL)
    assert packing.stopped_by is (StopReason.PROOF if proven else StopReason.CAPACITY)
    assert packing.height <= capacity


def height(problem, offsets):
    """The height of offsets, straight from the definition; no two blocks may overlap."""
    for i, j in itertools.combinations(range(len(problem)), 2):
        together = problem.lower[i] < problem.upper[j] and problem.lower[j] < problem.upper[i]
        below = offsets[i] + problem.size[i] <= offsets[j]
        assert not together or below or offsets[j] + problem.size[j] <= offsets[i], (i, j)
    return max(int(x + size) for x, size in zip(offsets, problem.size, strict=True))


def load(problem):
    """The most bytes that are live at a time."""
    return max(
        int(problem.size[(problem.lower <= t) & (t < problem.upper)].sum()) for t in problem.lower
    )


@some
@given(plain(most=30), st.sampled_from(METHODS))
def test_every_method_is_valid_and_above_the_bound(problem, method):
    packing = place(problem, method=method, node_limit=2000)
    assert packing.heights == {0: height(problem, packing.offsets)}
    assert load(problem) <= packing.bound <= packing.height


@some
@given(constrained(), st.randoms(use_true_random=False))
def test_python_and_the_compiled_loop_place_alike(problem, random):
    items, _ = items_of(problem, 0)
    order = list(range(len(items)))
    random.shuffle(order)
    given = np.array(order, np.int64), shapes_of(items), items.align
    made = np.zeros((2, len(order)), np.int64)
    for fit, offset in zip((_first_fit.interpreted, _first_fit), made, strict=True):
        fit(offset, np.empty((5, len(items.part_first)), np.int64), *given)
    assert (made[0] == made[1]).all()


@some
@given(plain(most=20), st.data())
def test_damage_is_found(problem, data):
    """A block moved by one unit into a neighbour is named, with that neighbour."""
    packing = place(problem, node_limit=2000)
    offsets = packing.offsets
    touching = [
        (i, j)
        for i, j in itertools.permutations(range(len(problem)), 2)
        if min(problem.size[i], problem.size[j]) > 0
        and problem.lower[i] < problem.upper[j]
        and problem.lower[j] < problem.upper[i]
        and offsets[i] + problem.size[i] == offsets[j]
    ]
    assume(touching)
    i, j = data.draw(st.sampled_from(touching))
    damaged = offsets.copy()
    damaged[j] -= 1
    with pytest.raises(CheckError, match="overlap") as error:
        problem.check(damaged)
    # Another block may meet the moved one as well: the two that are named must really clash.
    a, b = map(int, re.match(r"blocks (\d+) at .* and (\d+) at", str(error.value)).groups())
    assert j in (a, b)
    assert damaged[a] < damaged[b] + problem.size[b]
    assert damaged[b] < damaged[a] + problem.size[a]
    assert problem.lower[a] < problem.upper[b] and problem.lower[b] < problem.upper[a]


def test_damage_names_both_tensors():
    names = ("fusion.1", "dot.2")
    with pytest.raises(CheckError, match=r"fusion\.1 at \[0, 8\) and dot\.2 at \[7, 15\)"):
        check_blocks([0, 1], [3, 4], [8, 8], [0, 7], names=names)
    check_blocks([0, 3], [3, 4], [8, 8], [0, 7], names=names)


@pytest.mark.parametrize("letter", "ABCDEFGHIJK")
def test_minimalloc(letter):
    with open(DATA / f"{letter}.1048576.csv", newline="") as file:
        rows = [[int(r[k]) for k in ("lower", "upper", "size")] for r in csv.DictReader(file)]
    lower, upper, size = np.array(rows).T
    packing = place(PlacementProblem.of(lower, upper, size, capacity=1_048_576), time_limit=60)
    assert packing.offsets is not None
    assert packing.height <= 1_048_576


@pytest.mark.parametrize("seconds", [60, 1e300, np.inf])
def test_equal_limits_give_equal_packings(seconds):
    rng = np.random.default_rng(0)
    lower = rng.integers(0, 100, 200)
    problem = PlacementProblem.of(lower, lower + rng.integers(1, 40, 200), rng.integers(1, 99, 200))
    one, two = (place(problem, node_limit=300, time_limit=seconds) for _ in range(2))
    assert np.array_equal(one.offsets, two.offsets)
    assert one.nodes == two.nodes
    assert one.stopped_by is two.stopped_by is StopReason.NODE_LIMIT


def test_spaces_are_arenas_of_their_own():
    problem = PlacementProblem.of([0, 0, 0], [1, 1, 1], [4, 4, 6], space=[0, 1, 1])
    packing = place(problem)
    assert packing.heights == {0: 4, 1: 10}
    assert packing.status is Status.OPTIMAL
    one_full = PlacementProblem.of(
        [0, 0, 0], [1, 1, 1], [4, 4, 6], space=[0, 1, 1], capacity={1: 9}
    )
    assert place(one_full).status is Status.INFEASIBLE


def test_nothing_to_place():
    packing = place(PlacementProblem.of([], [], []))
    assert packing.height == 0
    packing = place(PlacementProblem.of([0], [1], [0], fixed=[8]))
    assert packing.offsets.tolist() == [8]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lower": [2]}, "lower 2 must be below upper 2"),
        ({"size": [-1]}, "size -1"),
        ({"size": [0.5]}, "whole numbers"),
        ({"alignment": 0}, "alignment 0"),
        ({"alignment": 4, "fixed": [6]}, "multiple"),
        ({"names": []}, "names"),
        ({"capacity": -1}, "capacity"),
    ],
)
def test_bad_problems(fields, message):
    with pytest.raises(InputError, match=message):
        PlacementProblem.of(**{"lower": [0], "upper": [2], "size": [1], **fields})


def test_bad_limits():
    problem = PlacementProblem.of([0], [1], [1])
    with pytest.raises(LimitError):
        place(problem, time_limit=0)
    with pytest.raises(LimitError):
        place(problem, node_limit=0)
    with pytest.raises(InputError, match="method"):
        place(problem, method="best")
    with pytest.raises(InputError, match="fixed blocks"):
        place(PlacementProblem.of([0], [1], [1], fixed=[0]), method="best_fit")


def test_peak_first_proves_what_greedy_misses():
    # By size 5 comes to lie on 8, which is gone when 6 and 4 are there: a hole of 2 under it.
    problem = PlacementProblem.of([0, 0, 2, 2], [1, 3, 3, 3], [8, 5, 6, 4])
    assert place(problem, method="greedy_size").height == 17
    packing = place(problem, method="peak_first")
    assert packing.status is Status.OPTIMAL and packing.height == packing.bound == 15


def test_possible_heights_are_halved_where_a_pinned_block_is_in_the_way():
    """The least packing is far above the bound; one byte more at a time would never end."""
    size = np.array([1, 7, 7, 3, 6, 7, 7, 7]) * 2**14 + 1
    lower, upper = [0, 1, 1, 5, 4, 3, 0, 2], [12, 3, 4, 9, 6, 7, 3, 3]
    fixed = [13 * 2**14, *[-1] * 7]
    problem = PlacementProblem.of(lower, upper, size, fixed=fixed, alignment=64)
    assert place(problem, node_limit=400).bound == 573_633, "and it is proven"
