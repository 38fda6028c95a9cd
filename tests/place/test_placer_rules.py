"""How the placer chooses among its ways: every turn that it can take, with parts made up.

Real problems seldom reach the limits between rules, search and repair. Here what each way finds is
made up, and all that the placer asks for and answers is held against what was looked at.
"""

import contextlib
import itertools
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olla_xla.place import PlacementProblem, placer
from olla_xla.place.items import items_of
from olla_xla.place.placer import PartPacking, Status
from olla_xla.problem.stop_reason import StopReason

PART, _ = items_of(PlacementProblem.of([0, 0, 1], [2, 1, 3], [4, 2, 3]), 0)


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


@pytest.mark.parametrize(("count", "first"), [(499, "search"), (500, "repair")])
def test_many_items_are_repaired_first(monkeypatch, count, first):
    class Many(types.SimpleNamespace):
        def __len__(self):
            return count

    asked = []

    def search(way, bound, *rest):
        asked.append("search")
        return PartPacking(bound, Status.FEASIBLE, StopReason.PROOF, "search", high(8))

    monkeypatch.setattr(placer, "by_rules", lambda *given: (high(12), "rule"))
    monkeypatch.setattr(placer, "heuristics", lambda part, method: method)
    monkeypatch.setattr(placer, "searchable", lambda part: True)
    monkeypatch.setattr(placer, "repairable", lambda part: True)
    monkeypatch.setattr(placer, "Search", lambda part: "search")
    monkeypatch.setattr(placer, "_searched", search)
    monkeypatch.setattr(placer, "repaired", lambda *given: asked.append("repair") or high(11))
    placer._place_part(Many(need=PART.need), 8, 9, None, "auto", Spent(3))
    assert asked[0] == first and "search" in asked


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


@settings(deadline=None, max_examples=80)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(1, 3), st.integers(-1, 6)),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_pins_that_clash_by_a_look_at_every_pair(blocks):
    lower, life, size, fixed = (np.array(column) for column in zip(*blocks, strict=True))
    items, _ = items_of(PlacementProblem.of(lower, lower + life, size, fixed=fixed), 0)
    pinned = [b for b in blocks if b[3] >= 0]
    clash = any(
        a[0] < b[0] + b[1] and b[0] < a[0] + a[1] and a[3] < b[3] + b[2] and b[3] < a[3] + a[2]
        for a, b in itertools.combinations(pinned, 2)
    )
    assert placer._pins_clash(items) == clash
