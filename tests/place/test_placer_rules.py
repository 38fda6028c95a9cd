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
from olla_xla.place.exact.descend import EXHAUSTED, FOUND, LIMIT
from olla_xla.place.items import items_of
from olla_xla.place.placer import PartPacking, Status
from olla_xla.problem.stop_reason import StopReason
from tests.support.outcomes import outcome

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


def told(found):
    at = None if found.offsets is None else found.offsets.tolist()
    return found.bound, str(found.status), str(found.stopped_by), found.source, at


class Searched:
    """A search that knows the least height, and needs more nodes the nearer it is asked to come."""

    def __init__(self, least, nodes, grain=1):
        self.items = types.SimpleNamespace(grain=grain, need=PART.need)
        self.least, self.nodes, self.asked = least, nodes, []

    def within(self, capacity, budget, most=None):
        self.asked.append((capacity, most))
        if most is not None and most * (1 + abs(capacity - self.least)) < self.nodes:
            return LIMIT, np.empty(0)
        if capacity < self.least:
            return EXHAUSTED, np.empty(0)
        return FOUND, high(max(self.least, capacity - capacity % 3))


def test_searches(monkeypatch):
    """Target height first, then halving; nodes are doubled where the interval is narrow."""
    monkeypatch.setattr(placer, "greedy_orders", lambda part: {"greedy_size": "by size"})
    monkeypatch.setattr(placer, "first_fit", lambda part, order: high(5000))
    seen = []
    for least, target, start, nodes, looks, grain in itertools.product(
        (1000, 1700), (1000, 990), (None, 1001, 1024, 4000), (10_000, 300_000), (2, 40), (1, 8)
    ):
        search, budget = Searched(least, nodes, grain), Spent(looks)
        best = None if start is None else high(start)
        found = placer._searched(search, 900, target, None, best, "rule", budget)
        seen.append((told(found), search.asked))
        assert found.bound <= max(least, 900)
    for least, nodes in ((70, 0), (80, 0), (90, 0)):
        search = Searched(least, nodes)
        seen.append(told(placer._searched(search, 60, 80, 80, None, "rule", Spent(3))))
    stuck = types.SimpleNamespace(items=PART, within=lambda *given: (LIMIT, None))
    seen.append(told(placer._searched(stuck, 60, 80, 80, None, "rule", Spent(3))))
    assert outcome(seen) == "b296fa241e84"


def test_ways_of_a_part(monkeypatch):
    """Rules, search and repair, in turn, for what each may find."""
    seen = []
    for rule, searched, repaired, method, capacity, large, few, looks in itertools.product(
        (None, 10, 12), (9, 10, 11), (8, 9, 11), ("auto", "search", "greedy_size"),
        (None, 10, 11), (False, True), (False, True), (0, 3),
    ):  # fmt: skip
        asked = []
        best = None if rule is None else high(rule)
        monkeypatch.setattr(
            placer, "by_rules", lambda part, target, rules, budget, b=best: (b, "rule")
        )
        monkeypatch.setattr(placer, "heuristics", lambda part, method: method)
        monkeypatch.setattr(placer, "searchable", lambda part, large=large: not large)
        monkeypatch.setattr(placer, "repairable", lambda part: True)
        monkeypatch.setattr(placer, "_MANY", 4 if few else 3)
        monkeypatch.setattr(placer, "Search", lambda part: "search")

        def search(way, bound, target, capacity, best, source, budget, h=searched, a=asked):
            a.append((way, bound, target, capacity, source))
            if best is not None and placer.height_of(PART, best) <= h:
                return PartPacking(bound, Status.FEASIBLE, StopReason.PROOF, source, best)
            return PartPacking(bound + 1, Status.FEASIBLE, StopReason.PROOF, "search", high(h))

        def repair(part, target, best, budget, seed, h=repaired, a=asked):
            a.append((target, seed))
            return high(h + 1 - min(seed, 1))

        monkeypatch.setattr(placer, "_searched", search)
        monkeypatch.setattr(placer, "repaired", repair)
        budget = Spent(looks)
        found = placer._place_part(PART, 8, 9, capacity, method, budget)
        seen.append((told(found), asked, budget.portions))
    monkeypatch.setattr(placer, "repairable", lambda part: False)
    placer._place_part(PART, 8, 9, None, "auto", Spent(3))
    seen.append(asked)
    assert outcome(seen) == "ee696e3f4659"


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


def test_parts_of_a_space():
    """The highest bound first; one target height for all; what the worst of them came to."""
    problem = PlacementProblem.of([0, 0, 5, 5, 9], [3, 3, 8, 8, 10], [4, 2, 7, 1, 3])
    items, _ = items_of(problem, 0)

    def came(items, capacity=None, off=0, source="rule", reason=StopReason.PROOF, bound=0):
        asked = []

        def place_part(part, least, target, capacity):
            asked.append((len(part), least, target, capacity))
            if off < 0 and len(asked) == 2:
                return PartPacking(least, Status.UNKNOWN, reason, source, None)
            at = np.cumsum(part.size) - part.size + off * (len(asked) == 1)
            name = source if len(asked) == 2 else "greedy"
            stopped = reason if len(asked) == 2 else placer.enough(capacity)
            return PartPacking(least + bound, Status.FEASIBLE, stopped, name, at)

        return told(placer._place_space(items, capacity, place_part)), asked

    cases = itertools.product(
        (None, 7, 8, 9, 10), (-1, 0, 1, 4), ("search", "rule", "ilp, windows"),
        (StopReason.PROOF, StopReason.CAPACITY, StopReason.TIME_LIMIT), (0, 1),
    )  # fmt: skip
    seen = [came(items, *case) for case in cases]
    pinned = PlacementProblem.of([0, 0], [2, 2], [4, 4], fixed=[0, 3])
    none = PlacementProblem.of([0], [1], [0])
    seen += [came(items_of(problem, 0)[0]) for problem in (pinned, none)]
    assert outcome(seen) == "1f1b93d51928"


def test_spaces_together(monkeypatch):
    """Bounds and heights of each space; the status of the worst, of equals the first."""
    problem = PlacementProblem.of(
        [0, 0, 0, 0], [2, 2, 2, 2], [4, 2, 3, 1], space=[0, 0, 1, 2], fixed=[-1, 4, -1, -1],
        capacity={1: 8},
    )  # fmt: skip

    def came(*statuses):
        asked, given, clock = [], iter(statuses), iter([2.0, 5.5])

        def place_space(items, capacity, place_part):
            asked.append((len(items), capacity))
            status = next(given)
            done = status in (Status.OPTIMAL, Status.FEASIBLE)
            at = np.where(items.fixed >= 0, items.fixed, 0) if done else None
            return PartPacking(len(asked), status, StopReason.PROOF, f"way {len(asked)}", at)

        monkeypatch.setattr(placer, "_place_space", place_space)
        monkeypatch.setattr(placer.time, "monotonic", lambda: next(clock))
        found = placer.place_by(problem, lambda *given: 1 / 0, types.SimpleNamespace(spent=17))
        assert (found.nodes, found.seconds) == (17, 3.5)
        at = None if found.offsets is None else found.offsets.tolist()
        return (
            asked, at, found.heights, found.bounds, str(found.status), str(found.stopped_by),
            found.source,
        )  # fmt: skip

    statuses = (Status.OPTIMAL, Status.FEASIBLE, Status.UNKNOWN, Status.INFEASIBLE)
    assert (
        outcome([came(*made) for made in itertools.product(statuses, repeat=3)]) == "217cd2a99ee6"
    )


@pytest.mark.parametrize(("capacity", "reason"), [(None, "PROOF"), (0, "CAPACITY")])
def test_what_is_enough(capacity, reason):
    assert placer.enough(capacity) is StopReason[reason]
