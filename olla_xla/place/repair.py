"""Repairs packings: what exceeds a target height is placed earlier, or other items make way.
Two compiled loops, both of many cheap tries. The first repeats first fit, each time with the items
that exceeded it moved forward in the order (squeaky wheels; Joslin and Clements 1999). The second
keeps most items where they are and repacks a few (relocate.py). All randomness is seeded.

What is pinned stays. Where nothing is, items live in all sections are placed below the others,
which lowers the target height for these.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory import clock
from olla_xla.memory.jit import jit
from olla_xla.place.exact.restarts import Budget
from olla_xla.place.items import Items, subset
from olla_xla.place.placed_parts import LOWEST, Shapes, fit, put, shapes_of
from olla_xla.place.relocate import relocate

_ROUNDS = 400
"""Rounds of first fit, for each order to begin with."""

_TRIES = 60_000
"""Tries of local repair at a time."""

_MAX_ITEMS = 20_000


def repairable(items: Items) -> bool:
    """Whether `repaired` can handle these items: equal alignments, neither none nor too many."""
    return bool((items.align == items.grain).all()) and 0 < len(items) <= _MAX_ITEMS


def repaired(
    items: Items, target_height: int, best: NDArray[np.int64], budget: Budget, seed: int = 0
) -> NDArray[np.int64]:
    """Looks for a packing at most `target_height` bytes high, by first fit in changing orders and
    then by local changes to what that made, not to `best`.

    Args:
      items: independent of others, `repairable`. best: int64 [items], the packing to beat, bytes.
      budget: is charged one node for each item placed. seed: of the random numbers.

    Returns:
      Offsets of the lowest packing found; `best` itself if none is lower.
    """
    length = np.add.reduceat(items.part_last - items.part_first + 1, items.part_ptr[:-1])
    level = np.minimum.reduceat(items.part_height, items.part_ptr[:-1]) == items.size
    always = (length == items.count) & level & bool((items.fixed < 0).all())
    below = np.flatnonzero(always)
    floor = int(items.size[below].sum())
    rest = np.flatnonzero(~always)
    if not len(rest):
        return best
    core = subset(items, rest)
    offsets = best.copy()
    offsets[below] = np.cumsum(items.size[below]) - items.size[below]
    height = target_height - target_height % items.grain - floor
    if height < int((np.maximum(core.fixed, 0) + core.size).max()):
        return best
    tries = _Repair(core, height, budget)
    top = int(np.max(best + items.size))
    for core_offsets in tries.packings(seed):
        if floor + int(np.max(core_offsets + core.size)) < top:
            offsets[rest] = floor + core_offsets
            best, top = offsets.copy(), floor + int(np.max(core_offsets + core.size))
        if top <= target_height or budget.left() <= 0:
            break
    return best


class _Repair:
    """A generator of packings of one set of items, by first fit and local changes."""

    def __init__(self, items: Items, target_height: int, budget: Budget) -> None:
        self.items, self.target_height = items, target_height
        self.budget = budget
        self.shapes = shapes_of(items)
        self.rate = 1e-3

    def packings(self, seed: int) -> Iterator[NDArray[np.int64]]:
        """Yields packings (int64 [items], bytes) without end: from first fit in four orders, then
        from local changes to those; a later one may be higher than an earlier one.
        """
        items = self.items
        length = np.add.reduceat(items.part_last - items.part_first + 1, items.part_ptr[:-1])
        whole = items.part_last[items.part_ptr[1:] - 1] - items.part_first[items.part_ptr[:-1]] + 1
        keys = (
            items.size * np.sqrt(length),
            items.size * np.sqrt(whole),
            items.size.astype(float),
            whole.astype(float),
        )
        pool: list[tuple[float, int, NDArray[np.int64]]] = []
        for number, key in enumerate(keys):
            low, high = ((0.3, 0.9), (0.0, 0.3), (0.8, 1.0))[seed % 3]
            packing = self._squeaky(key, seed * len(keys) + number, low, high)
            pool.append((self._over(packing), number, packing))
            yield packing
        seed *= 1000
        while True:
            pool.sort(key=lambda row: row[:2])
            for rank in (0, 0, 1, 0, 2):
                rank = min(rank, len(pool) - 1)
                _, number, offsets = pool[rank]
                seed += 1
                packing = self._relocated(offsets, seed)
                yield packing
                over = self._over(packing)
                if over < pool[rank][0]:
                    pool[rank] = (over, number, packing)

    def _over(self, offsets: NDArray[np.int64]) -> float:
        size = self.items.size
        return float(np.minimum(np.maximum(offsets + size - self.target_height, 0), size).sum())

    def _squeaky(
        self, key: NDArray[np.int64] | NDArray[np.float64], seed: int, low: float, high: float
    ) -> NDArray[np.int64]:
        rounds = max(1, min(_ROUNDS, self.budget.nodes_left() // len(self.items)))
        best = np.zeros(0, np.int64)
        top = None
        rank = np.empty(len(key))
        rank[np.argsort(-key, kind="stable")] = np.arange(len(key))
        # Some rounds at a time, so that the clock is checked between them.
        for start in range(0, rounds, 50):
            chunk = min(50, rounds - start)
            lowest, height, spent = _squeaky(
                rank, self.shapes, self.target_height, chunk, seed * 100 + start, low, high
            )
            self.budget.charge(spent * len(key), 0.0)
            if top is None or height < top:
                best, top = lowest, height
            if top <= self.target_height or self.budget.left() <= 0:
                break
        return best

    def _relocated(self, offsets: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        left = self.budget.seconds()
        tries = int(max(100, min(_TRIES, left / self.rate, self.budget.nodes_left())))
        started = clock.now()
        moved, placed = relocate(offsets.copy(), self.shapes, self.target_height, tries, seed)
        self.budget.charge(placed, 0.0)
        self.rate = max((clock.now() - started) / tries, 1e-7)
        return moved


@jit
def _squeaky(
    rank: NDArray[np.float64],
    shapes: Shapes,
    target_height: int,
    rounds: int,
    seed: int,
    low: float,
    high: float,
) -> tuple[NDArray[np.int64], int, int]:
    """Runs rounds of first fit, the items of least rank first; what ends too high comes earlier in
    the next one. Pinned items stay where they are. Stops once the target height is met.

    Args:
      rank: float64 [items], changed in place: ranks of items above the target height are multiplied
        by a random number in low..high after each round.
      shapes: the items. target_height: bytes. rounds: at most. seed: of the random numbers.

    Returns:
      (the offsets of the lowest packing, its height in bytes without pinned items, rounds done).
    """
    np.random.seed(seed)
    n = len(shapes.size)
    placed = np.empty((5, len(shapes.first)), np.int64)
    offset = np.maximum(shapes.fixed, 0)
    best = offset.copy()
    least = np.int64(-1)
    for step in range(rounds):
        order = np.argsort(rank, kind="mergesort")
        count, top = np.int64(0), np.int64(0)
        for i in order:
            if shapes.fixed[i] >= 0:
                count = put(i, offset[i], shapes, placed, count)
        for i in order:
            if shapes.fixed[i] >= 0:
                continue
            x = fit(i, shapes, target_height, LOWEST, placed, count)
            offset[i] = x
            top = max(top, x + shapes.size[i])
            count = put(i, x, shapes, placed, count)
        if least < 0 or top < least:
            least = top
            best[:] = offset
            if top <= target_height:
                return best, int(least), step + 1
        for k in range(n):
            rank[order[k]] = k
        for i in range(n):
            if offset[i] + shapes.size[i] > target_height:
                rank[i] *= np.random.uniform(low, high)
    return best, int(least), rounds
