"""Limits between rules, search and repair, which real problems seldom reach.

What each way finds is made up.
"""

import contextlib

import numpy as np

from olla_xla.place import PlacementProblem, place, placer
from olla_xla.place.exact import restarts
from olla_xla.place.items import items_of
from olla_xla.problem.plan_parts import StopReason
from olla_xla.solvers.linear import Status

PROBLEM = PlacementProblem.of([0, 0, 1], [2, 1, 3], [4, 2, 3])
PART, _ = items_of(PROBLEM, 0)


def high(height):
    """A packing of the part that is so high, but for the largest item's place."""
    return np.array([height - 4, 0, 0])


class Spent:
    """A budget that is used up after so many looks."""

    def __init__(self, looks, seconds=1e9):
        self.looks, self.limit, self.spent = looks, seconds, 0
        self.stopped_by = StopReason.NODE_LIMIT
        self.portions = []

    def seconds(self):
        return self.looks

    def left(self):
        self.looks -= 1
        return max(self.looks, 0)

    @contextlib.contextmanager
    def portion(self, part):
        self.portions.append(part)
        yield


def test_the_lowest_of_rules():
    """Up to the first that is low enough; none with the fullest section first once it is late."""
    for looks, names, heights, target, expected in (
        (1e9, "abc", (9, 8, 7), 0, (7, "c", 3)),
        (1e9, "abc", (9, 8, 7), 8, (8, "b", 2)),
        (1e9, "abc", (9, 9, 9), 0, (9, "a", 3)),
        (1e9, "apc", (9, 8, 7), 0, (7, "c", 3)),
        (8e8, "apc", (9, 8, 7), 0, (7, "c", 3)),  # exactly a fifth is used
        (7.9e8, "apc", (9, 8, 7), 0, (9, "a", 1)),
        (7.9e8, "pbc", (9, 8, 7), 0, (7, "c", 3)),
        (7.9e8, "abc", (9, 8, 7), 0, (7, "c", 3)),
    ):
        called = []

        def rule(height, called=called):
            called.append(height)
            return high(height)

        rules = [
            ("peak_first" if n == "p" else n, lambda h=h: rule(h))
            for n, h in zip(names, heights, strict=True)
        ]
        best, source = placer.by_rules(PART, target, rules, Spent(looks))
        assert best is not None
        found = placer.height_of(PART, best), source, len(called)
        assert found == expected
    assert placer.by_rules(PART, 0, [], Spent(1)) == (None, "")


def test_a_repair_counts_where_it_is_lower(monkeypatch):
    for height, expected in ((8, (8, "repair")), (9, (9, "rule")), (10, (9, "rule"))):
        monkeypatch.setattr(placer, "repaired", lambda *given, h=height: high(h))
        best, source = placer.repair(PART, 7, high(9), "rule", Spent(1), 0.25, 3)
        assert (placer.height_of(PART, best), source) == expected


def test_what_is_too_large_is_not_searched(monkeypatch):
    monkeypatch.setattr(restarts, "MAX_PAIRS", 0)
    packing = place(PROBLEM, method="search")
    assert (packing.status, packing.stopped_by) == (Status.UNKNOWN, StopReason.SIZE_LIMIT)
