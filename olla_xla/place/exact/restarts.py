"""The exact search under restarts: preorders alternate, each adapted to past failures.
A descent (descend.py) that begins with a poor choice may never recover; another preorder packs
the same items almost without backtracking. So short descents alternate over preorders, with node
limits that grow until one of them ends by itself. Sections that failed weigh more from one descent
to the next, and items that live in heavy sections are tried first (Boussemart et al. 2004, for
constraint programs).
"""

import contextlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory import clock
from olla_xla.place.exact.descend import LIMIT, descend
from olla_xla.place.exact.model import MAX_PAIRS, Model, model_of, overlapping_pairs
from olla_xla.place.exact.state import trails
from olla_xla.place.items import Items
from olla_xla.problem.plan_parts import StopReason

_PREORDERS = ("TWA", "TCA", "WAT", "TAW", "BTA")
"""Keys, the first counts most, all decreasing: the largest load met (T), time (W) and sections (C)
of life, bytes times time (A), bytes times sections (B). The first, third and fourth are
MiniMalloc's."""

_LEAST_NODES = 500
_GROWTH = 1.25
_MOST_NODES = 2.0**60  # in one descent; in a search without end the limit would grow without end
_DECAY = 0.8
_TRAIL = 4_000_000
"""Entries of the undo trails; 16 bytes each."""


class Budget:
    """The wall-clock seconds, and the nodes (placements tried; None: any number), that a search may
    still spend. With enough seconds, equal nodes give equal results.
    """

    def __init__(self, seconds: float, nodes: int | None = None) -> None:
        self.deadline = clock.now() + seconds
        self.limit = seconds
        self.total = nodes
        self.nodes = nodes
        self.spent = 0
        self.size: tuple[int, int] = (0, 0)
        self._rate = 10_000.0

    def seconds(self) -> float:
        """Wall-clock time left, in seconds; negative once it is used up."""
        return self.deadline - clock.now()

    def left(self) -> int:
        """Estimates the nodes (placements) that time and node limit still allow: none if <= 0."""
        seconds = self.seconds()
        if seconds <= 0:
            return 0
        by_time = int(min(seconds * self._rate, _MOST_NODES)) + 1
        return by_time if self.nodes is None else min(by_time, self.nodes - self.spent)

    def nodes_left(self) -> int:
        """Returns the nodes (placements tried) left, regardless of time; 2^62 without a limit."""
        return 2**62 if self.nodes is None else max(self.nodes - self.spent, 0)

    def charge(self, nodes: int, seconds: float) -> None:
        """Counts `nodes` (placements tried) as spent; if they took more than 0.01 seconds, they
        give the search's speed from then on.
        """
        self.spent += nodes
        if seconds > 0.01:
            self._rate = nodes / seconds

    @contextlib.contextmanager
    def portion(self, part: float) -> Iterator[None]:
        """Context manager: inside, at most the fraction `part` of the whole budget can be spent."""
        whole = self.deadline, self.nodes
        self.deadline = min(self.deadline, clock.now() + part * self.limit)
        if self.nodes is not None and self.total is not None:
            self.nodes = min(self.nodes, self.spent + int(part * self.total) + 1)
        try:
            yield
        finally:
            self.deadline, self.nodes = whole

    @property
    def stopped_by(self) -> StopReason:
        """The limit that ended the search: TIME_LIMIT if no time is left, else NODE_LIMIT."""
        return StopReason.TIME_LIMIT if self.seconds() <= 0 else StopReason.NODE_LIMIT


def searchable(items: Items) -> bool:
    """Whether the arrays of a search over these items have at most MAX_PAIRS entries."""
    lives = int((items.part_last - items.part_first + 1).sum())
    return max(overlapping_pairs(items), lives) <= MAX_PAIRS


class Search:
    """Looks for packings of the items of one independent part; from call to call it learns which
    sections (sets of items live together) cannot be packed, and tries their items first.
    """

    def __init__(self, items: Items) -> None:
        self.items = items
        self.model: Model = model_of(items)
        self._keys = _keys(items, self.model)
        self._weights = np.zeros((len(_PREORDERS), items.count))
        self._alike = np.arange(len(items))
        for i in np.flatnonzero(self.model.twin >= 0):
            self._alike[i] = self._alike[self.model.twin[i]]
        self._trails = trails(_TRAIL)
        self._descents = 0
        self._limit = float(max(_LEAST_NODES, 2 * len(items)))

    def within(
        self, capacity: int, budget: Budget, most: int | None = None
    ) -> tuple[int, NDArray[np.int64]]:
        """Looks for a packing within `capacity` bytes, with at most `most` nodes (placements).
        The budget is charged. Returns (FOUND, EXHAUSTED: there is none, or LIMIT; int64 [items],
        offsets in bytes, where FOUND).
        """
        allowed = budget.left() if most is None else min(most, budget.left())
        spent = 0
        while spent < allowed:
            preorder = self._descents % len(_PREORDERS)
            failures = np.zeros(self.items.count)
            nodes = min(int(self._limit), allowed - spent)
            started = clock.now()
            outcome, visited, offsets = descend(
                self.model, self._ranks(preorder), capacity, nodes, failures, self._trails
            )
            spent += visited
            budget.charge(visited, clock.now() - started)
            if outcome != LIMIT:
                return outcome, offsets
            self._weights[preorder] = self._weights[preorder] * _DECAY + failures
            self._descents += 1
            if self._descents % len(_PREORDERS) == 0:
                self._limit = min(self._limit * _GROWTH, _MOST_NODES)
            allowed = min(allowed, spent + budget.left())
        return LIMIT, np.empty(0, np.int64)

    def _ranks(self, preorder: int) -> NDArray[np.int64]:
        """Ranks items in the order of trial, int64 [items]: those first in whose sections the
        search failed most; among equals, by the keys of list number `preorder`.
        """
        items = self.items
        heavy = np.maximum.reduceat(
            self._weights[preorder][self.model.sec_idx], self.model.sec_ptr[:-1]
        )
        keys = [-heavy, *(-self._keys[k] for k in _PREORDERS[preorder])]
        ranks = np.empty(len(items), np.int64)
        ranks[np.lexsort(keys[::-1])] = np.arange(len(items))
        # The search places twins by number; their ranks must ascend likewise.
        ranks[np.lexsort((self._alike,))] = ranks[np.lexsort((ranks, self._alike))]
        return ranks


def _keys(items: Items, model: Model) -> dict[str, NDArray[np.int64]]:
    """Computes what items are sorted by: letter -> float64 [items]: "T", most bytes live with the
    item at one time; "W", time live; "C", sections; "A" and "B", these two times its bytes.
    """
    loads = items.loads()
    sections = np.diff(model.sec_ptr)
    return {
        "T": np.maximum.reduceat(loads[model.sec_idx], model.sec_ptr[:-1]).astype(float),
        "W": items.span.astype(float),
        "C": sections.astype(float),
        "A": items.span.astype(float) * items.size,
        "B": sections.astype(float) * items.size,
    }
