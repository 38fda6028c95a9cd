"""What the placers find, to the last byte and the last unit of effort.

Brute force tells whether a packing is right, and bounds whether it is good; a random choice, a
count of nodes or a tie that is broken otherwise shows in neither. Equal problems, limits and seeds
are promised equal packings: these are the packings, as they were looked at. A change of the search,
of its order or of its counts changes them; whoever means one writes the new outcome here.
"""

import numpy as np
import pytest

from olla_xla.errors import InputError
from olla_xla.place import PlacementProblem, place
from olla_xla.place.dead_space import least_height
from olla_xla.place.exact.restarts import Budget
from olla_xla.place.items import independent, items_of
from olla_xla.place.placed_parts import Shapes
from olla_xla.place.relocate import relocate
from olla_xla.place.repair import repaired
from olla_xla.place.rules import best_fit, first_fit
from tests.support.outcomes import outcome

LONG = 1e9  # seconds; nodes are what ends a search here


def made(seed, n, *, groups=False, align=(1,), pins=False, span=40, most=64, **more):
    """A random problem."""
    random = np.random.default_rng(seed)
    lower = random.integers(0, span, n)
    upper = lower + random.integers(1, span // 3, n)
    size = random.integers(1, most, n)
    group = np.arange(n)
    if groups:
        group = np.where(random.random(n) < 0.4, random.integers(0, n, n), group)
    alignment = random.choice(align, n)
    fixed = np.full(n, -1)
    if pins:  # one above the other
        for k in range(2):
            fixed[group == group[k]] = 5040 * k
    return PlacementProblem.of(
        lower, upper, size, group=group, alignment=alignment, fixed=fixed, **more
    )


PROBLEMS = {
    "plain": made(1, 40),
    "tight": made(2, 60, most=6, span=20),
    "groups": made(3, 40, groups=True),
    "aligned": made(4, 40, align=(1, 2, 4, 6)),
    "pinned": made(5, 30, groups=True, align=(1, 4), pins=True),
    "spaces": made(6, 50, groups=False, space=np.arange(50) % 3),
    "limited": made(7, 40, capacity=424),
    "large": made(8, 600, span=300),
    "large, aligned": made(9, 520, span=200, align=(8,)),
}


def found(problem, method, nodes=6000):
    packing = place(problem, method=method, time_limit=LONG, node_limit=nodes)
    return outcome(
        packing.offsets, packing.heights, packing.bounds, str(packing.status),
        str(packing.stopped_by), packing.source, packing.nodes, packing.height, packing.bound,
    )  # fmt: skip


METHODS = ("auto", "search", "best_fit", "greedy_size", "greedy_span", "greedy_area", "peak_first")


@pytest.mark.parametrize("method", METHODS)
def test_packings(method):
    names = [n for n in PROBLEMS if not (method == "best_fit" and n == "pinned")]
    assert outcome([found(PROBLEMS[name], method) for name in names]) == TOLD[method]


def part_of(name):
    return max(independent(items_of(PROBLEMS[name], 0)[0]), key=len)


def mended(name):
    """Repairs of a part from a poor start, for some seeds."""
    part = part_of(name)
    shapes = Shapes(
        part.part_ptr, part.part_first, part.part_last, part.part_height, part.size, part.fixed
    )
    begin = first_fit(part, np.arange(len(part)))
    target = least_height(part)
    told = [begin]
    for seed in range(6):
        told.append(relocate(begin.copy(), shapes, target, 900, seed))
        budget = Budget(LONG, 20 * len(part))
        told += [repaired(part, target, begin, budget, seed), budget.spent]
    return outcome(told)


def test_repairs():
    names = ("plain", "tight", "groups", "large")
    assert outcome([mended(name) for name in names]) == TOLD["repairs"]


def test_best_fit_has_no_rule_for_pins():
    pinned = items_of(PlacementProblem.of([0, 0], [1, 1], [4, 4], fixed=[0, -1]), 0)[0]
    with pytest.raises(InputError, match="fixed blocks"):
        best_fit(pinned)
    assert not len(best_fit(items_of(PlacementProblem.of([], [], []), 0)[0]))


TOLD = {
    "auto": "d354c4f98411",
    "search": "7041f95fce63",
    "best_fit": "f9b2900a85b2",
    "greedy_size": "c24e720eaddc",
    "greedy_span": "651b13f1ab6e",
    "greedy_area": "2b5dbadf42ff",
    "peak_first": "f6da34bec6d9",
    "repairs": "a0ae463c3c71",
}
"""Of each searcher, over all problems."""
