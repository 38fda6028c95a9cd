"""Packings improved by programs of a few items each, among the others, which stay.

A program of all items is too large if thousands are live together. Therefore an item that exceeds
the target height is taken together with some items in its way, chosen in one of several manners. A
program moves them within the gaps that the other items leave, so that as few bytes as possible lie
above the target height (fix and optimize, or large neighbourhood search; Shaw 1998). This proves
nothing, unless nothing exceeds the target height.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from olla_xla.place.exact.model import Model as Neighbours
from olla_xla.place.exact.model import model_of
from olla_xla.place.items import Items, subset
from olla_xla.place.programs import Units

__all__ = ["Gaps", "Window", "narrowed"]

_LEAST, _MOST = 8, 60
"""Items that a program places, at first and at most."""

_GROWTH, _SHRINKAGE = 1.1, 0.8
"""Of that number: where a program changes nothing, and where it is not solved in time."""

_TRIES = 12
"""Places of an item that are looked at, to find one where few stand in its way."""

Gaps = tuple[tuple[tuple[int, int], ...], ...]
"""By item, ascending ranges of its address, both ends inclusive, in units."""


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """A program to solve: the items that move.

    Attributes:
      part: the items. near: which of them are live together. units: their scale.
      gaps: by item, ranges of addresses that are free.
      target_height: units; bytes above it are minimised. most: units; nothing may lie above it.
      begin: the items' present offsets, bytes.
    """

    part: Items
    near: Neighbours
    units: Units
    gaps: Gaps
    target_height: int
    most: int
    begin: np.ndarray


Solve = Callable[[Window, float], tuple[np.ndarray | None, bool]]
"""Solves a window within seconds: (offsets in bytes or None, whether they are proven best)."""


def narrowed(
    part: Items,
    near: Neighbours,
    units: Units,
    offsets: np.ndarray,
    target_height: int,
    solve: Solve,
    *,
    deadline: float,
    seconds: float,
    seed: int,
) -> np.ndarray:
    """Lowers a packing towards a target height by programs of a few items.

    Args:
      part: the items, none pinned. near, units: of them, with these offsets.
      offsets: some packing, bytes. target_height: bytes; no lower packing is of use.
      solve: solves one program. deadline: of time.monotonic(). seconds: for one program.
      seed: of what is tried.

    Returns:
      Offsets whose height is never more.
    """
    run = _Run(part, near, units, offsets, target_height, seed)
    size = float(_LEAST)
    while run.left() > 0 and time.monotonic() < deadline:
        window, chosen = run.window(int(size))
        if window is None:
            size = min(size * _GROWTH, _MOST)
            continue
        found, proven = solve(window, min(seconds, max(deadline - time.monotonic(), 0.01)))
        if found is not None and run.take(chosen, found):
            size = float(_LEAST)
        elif proven:
            size = min(size * _GROWTH, _MOST)
        else:
            size = max(size * _SHRINKAGE, _LEAST)
    return run.offsets


class _Run:
    """The present packing, and the choice of the next window."""

    def __init__(
        self,
        part: Items,
        near: Neighbours,
        units: Units,
        offsets: np.ndarray,
        target_height: int,
        seed: int,
    ) -> None:
        self.offsets = offsets.copy()
        self._part, self._near, self._units, self._target_height = part, near, units, target_height
        self._most = int((offsets + part.need).max())
        self._random = np.random.default_rng(seed)
        self._turn = 0

    def left(self) -> int:
        """Bytes above the target height, over all items."""
        return int(self._above(self.offsets, self._part.need).sum())

    def _above(self, offsets: np.ndarray, need: np.ndarray) -> np.ndarray:
        return np.maximum(offsets + need - self._target_height, 0)

    def take(self, chosen: np.ndarray, found: np.ndarray) -> bool:
        """Moves items unless more would exceed the target height; returns whether less does."""
        need = self._part.need[chosen]
        before = int(self._above(self.offsets[chosen], need).sum())
        after = int(self._above(found, need).sum())
        if after <= before:  # an equal packing is another one to go on from
            self.offsets[chosen] = found
        return after < before

    def window(self, size: int) -> tuple[Window | None, np.ndarray]:
        """The next program with about `size` items, or None if it has nothing to decide."""
        out = np.flatnonzero(self._above(self.offsets, self._part.need))
        i = int(self._random.choice(out))
        self._turn += 1
        pick = (self._in_the_way, self._within, self._near_by)[self._turn % 3]
        others = pick(i, size)
        chosen = np.unique(np.concatenate([[i], others]).astype(np.int64))
        gaps = self._gaps(chosen)
        if not all(gaps):
            return None, chosen
        numbered = dataclasses.replace(self._part, ids=np.arange(len(self._part)))
        few = subset(numbered, chosen)
        # A twin may stand where another must not.
        near = model_of(few)._replace(twin=np.full(len(few), -1))
        unit = self._units.unit
        return Window(
            part=few,
            near=near,
            units=self._units.only(chosen),
            gaps=gaps,
            target_height=self._target_height // unit,
            most=self._most // unit,
            begin=self.offsets[chosen],
        ), chosen

    def _neighbours(self, i: int) -> slice:
        return slice(int(self._near.nb_ptr[i]), int(self._near.nb_ptr[i + 1]))

    def _in_the_way(self, i: int, size: int) -> np.ndarray:
        """Items at addresses where item i could lie if few items moved, and some that they meet."""
        at = self._neighbours(i)
        others = self._near.nb_idx[at]
        low, top = self.offsets[others], self.offsets[others] + self._near.nb_above[at]
        need = int(self._part.size[i])
        room = self._target_height - int(self._part.need[i])
        places = np.concatenate([[0], top[top <= room]])
        tries = self._random.choice(places, min(_TRIES, len(places)), replace=False)
        found = [others[(low < x + need) & (x < top)] for x in tries.tolist()]
        blockers = min(found, key=len)
        return self._filled(blockers[:size], size)

    def _filled(self, chosen: np.ndarray, size: int) -> np.ndarray:
        """The items with random ones that they meet."""
        more = [self._near.nb_idx[self._neighbours(int(j))] for j in chosen]
        near = np.setdiff1d(np.concatenate([*more, np.zeros(0, np.int64)]), chosen)
        extra = min(max(size - len(chosen), 0), len(near))
        return np.concatenate([chosen, self._random.choice(near, extra, replace=False)])

    def _within(self, i: int, size: int) -> np.ndarray:
        """Items whose lifetimes lie within that of item i, or extend little beyond it."""
        others = self._near.nb_idx[self._neighbours(i)]
        first, last = self._near.first, self._near.last
        beyond = np.maximum(first[i] - first[others], 0) + np.maximum(last[others] - last[i], 0)
        noise = self._random.exponential(1.0, len(others))
        return others[np.argsort((1 + beyond) * noise, kind="stable")[:size]]

    def _near_by(self, i: int, size: int) -> np.ndarray:
        """Random items that are live together with item i."""
        others = self._near.nb_idx[self._neighbours(i)]
        return self._random.choice(others, min(size, len(others)), replace=False)

    def _gaps(self, chosen: np.ndarray) -> Gaps:
        """Where each may lie among those that stay."""
        stays = np.ones(len(self._part), np.bool_)
        stays[chosen] = False
        unit = self._units.unit
        result = []
        for i in chosen.tolist():
            at = self._neighbours(i)
            others = self._near.nb_idx[at]
            kept = stays[others]
            low = self.offsets[others][kept] - self._near.nb_below[at][kept]
            top = self.offsets[others][kept] + self._near.nb_above[at][kept]
            highest = max(int(self.offsets[i]), self._target_height - int(self._part.need[i]))
            step = int(self._units.step[i]) * unit
            result.append(_ranges(low, top, highest, step, unit))
        return tuple(result)


def _ranges(
    low: np.ndarray, top: np.ndarray, highest: int, step: int, unit: int
) -> tuple[tuple[int, int], ...]:
    """What intervals (low, top), open at both ends, leave of [0, highest], in units."""
    order = np.argsort(low, kind="stable")
    low = low[order]
    # Below each, all that lies lower has ended at the highest of their tops.
    free = np.maximum(np.maximum.accumulate(np.concatenate([[0], top[order]])), 0)
    start, stop = free, np.minimum(np.append(low, highest), highest)
    real = start <= stop
    found = zip(start[real].tolist(), stop[real].tolist(), strict=True)
    rounded = ((-(-a // step) * step, b // step * step) for a, b in found)
    return tuple((a // unit, b // unit) for a, b in rounded if a <= b)
