"""Repairs packings: what sticks out above a goal is placed earlier, or room is made for it.

Two compiled loops, both of many cheap tries. The first repeats first fit, each time with the items
that stuck out moved forward in the order (squeaky wheels; Joslin and Clements 1999). The second
keeps most items where they are: it takes out an item that sticks out and some that overlap it in
time, either all in a band of addresses or a random few, and places them anew. A try is kept unless
more sticks out than before. Where tries are in vain for long, what sticks out weighs more and
more, so that other items must give way (breakout local search). All randomness is seeded.

Items that are live everywhere lie below all others: they only lower the goal for the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from olla_xla.memory.jit import jit
from olla_xla.place.exact.restarts import Budget
from olla_xla.place.items import Items, subset

__all__ = ["fit", "overlapping", "put", "relocate", "repairable", "repaired"]

_ROUNDS = 400
"""Of first fit, for each order that they begin with."""

_TRIES = 60_000
"""Of local repair at a time."""

_PATIENCE = 300
"""Tries in vain until what sticks out weighs more."""

_BUMP = 1.2
_SOME = (6, 40, 15)
"""Items to place anew at once, about; in turn."""

_MAX_ITEMS = 20_000


def repairable(items: Items) -> bool:
    """Whether `repaired` can serve: no pins, one alignment, not too many items."""
    same = bool((items.align == items.grain).all())
    return same and bool((items.fixed < 0).all()) and 0 < len(items) <= _MAX_ITEMS


def repaired(
    items: Items, goal: int, best: np.ndarray, budget: Budget, turn: int = 0
) -> np.ndarray:
    """Looks for a packing at most `goal` bytes high.

    Args:
      items: one independent part, `repairable`. best: a packing. budget: is charged one node for
        each item placed. turn: seeds; another number, other tries.

    Returns:
      Offsets no higher than those of `best`.
    """
    length = np.add.reduceat(items.part_last - items.part_first + 1, items.part_ptr[:-1])
    level = np.minimum.reduceat(items.part_height, items.part_ptr[:-1]) == items.size
    always = (length == items.count) & level
    below = np.flatnonzero(always)
    floor = int(items.size[below].sum())
    rest = np.flatnonzero(~always)
    if not len(rest):
        return best
    core = subset(items, rest)
    offsets = best.copy()
    offsets[below] = np.cumsum(items.size[below]) - items.size[below]
    room = goal - goal % items.grain - floor
    if room < int(core.size.max()):
        return best
    tries = _Repair(core, room, budget)
    top = int(np.max(best + items.size))
    for found in tries.packings(turn):
        if floor + int(np.max(found + core.size)) < top:
            offsets[rest] = floor + found
            best, top = offsets.copy(), floor + int(np.max(found + core.size))
        if top <= goal or budget.left() <= 0:
            break
    return best


class _Repair:
    """The tries for one set of items."""

    def __init__(self, items: Items, goal: int, budget: Budget) -> None:
        self.items, self.goal = items, goal
        self.budget = budget
        self.parts = (items.part_ptr, items.part_first, items.part_last, items.part_height)
        self.rate = 1e-3

    def packings(self, turn: int) -> Iterator[np.ndarray]:
        """Packings, better and worse ones, without end."""
        items = self.items
        length = np.add.reduceat(items.part_last - items.part_first + 1, items.part_ptr[:-1])
        whole = items.part_last[items.part_ptr[1:] - 1] - items.part_first[items.part_ptr[:-1]] + 1
        keys = (
            items.size * np.sqrt(length),
            items.size * np.sqrt(whole),
            items.size.astype(float),
            whole.astype(float),
        )
        pool: list[tuple[float, int, np.ndarray]] = []
        for number, key in enumerate(keys):
            low, high = ((0.3, 0.9), (0.0, 0.3), (0.8, 1.0))[turn % 3]
            found = self._squeaky(key, turn * len(keys) + number, low, high)
            pool.append((self._over(found), number, found))
            yield found
        seed = turn * 1000
        while True:
            pool.sort(key=lambda row: row[:2])
            for rank in (0, 0, 1, 0, 2):
                rank = min(rank, len(pool) - 1)
                _, number, offsets = pool[rank]
                seed += 1
                found = self._relocated(offsets, seed)
                yield found
                over = self._over(found)
                if over < pool[rank][0]:
                    pool[rank] = (over, number, found)

    def _over(self, offsets: np.ndarray) -> float:
        size = self.items.size
        return float(np.minimum(np.maximum(offsets + size - self.goal, 0), size).sum())

    def _squeaky(self, key: np.ndarray, seed: int, low: float, high: float) -> np.ndarray:
        rounds = max(1, min(_ROUNDS, self.budget.nodes_left() // len(self.items)))
        best = np.zeros(0, np.int64)
        top = None
        rank = np.empty(len(key))
        rank[np.argsort(-key, kind="stable")] = np.arange(len(key))
        # Some rounds at a time, so that the clock is looked at.
        for start in range(0, rounds, 50):
            found, height, spent = _squeaky(
                rank, *self.parts, self.items.size, self.goal, min(50, rounds - start),
                seed * 100 + start, low, high,
            )  # fmt: skip
            self.budget.charge(spent * len(key), 0.0)
            if top is None or height < top:
                best, top = found, height
            if top <= self.goal or self.budget.left() <= 0:
                break
        return best

    def _relocated(self, offsets: np.ndarray, seed: int) -> np.ndarray:
        best = offsets
        left = self.budget.seconds()
        tries = int(max(100, min(_TRIES, left / self.rate, self.budget.nodes_left())))
        started = time.monotonic()
        best, placed = relocate(
            offsets.copy(), *self.parts, self.items.size, self.goal, tries, seed,
            _SOME[seed % len(_SOME)], _PATIENCE, _BUMP,
        )  # fmt: skip
        self.budget.charge(placed, 0.0)
        self.rate = max((time.monotonic() - started) / tries, 1e-7)
        return best


@jit
def _squeaky(
    rank: np.ndarray,
    part_ptr: np.ndarray,
    part_first: np.ndarray,
    part_last: np.ndarray,
    part_height: np.ndarray,
    size: np.ndarray,
    goal: int,
    rounds: int,
    seed: int,
    low: float,
    high: float,
) -> tuple[np.ndarray, int, int]:  # pragma: no cover
    """Rounds of first fit; the rank of what sticks out is multiplied by low..high, in place.

    Returns:
      (the best offsets, their height, rounds).
    """
    np.random.seed(seed)
    n, total = len(size), len(part_first)
    placed = np.empty((5, total), np.int64)
    offset = np.zeros(n, np.int64)
    best = np.zeros(n, np.int64)
    least = np.int64(-1)
    for step in range(rounds):
        order = np.argsort(rank, kind="mergesort")
        count = 0
        top = np.int64(0)
        for i in order:
            x = fit(i, part_ptr, part_first, part_last, size[i], goal, 0, placed, count)
            offset[i] = x
            top = max(top, x + size[i])
            count = put(i, x, part_ptr, part_first, part_last, part_height, placed, count)
        if least < 0 or top < least:
            least = top
            best[:] = offset
            if top <= goal:
                return best, int(least), step + 1
        for k in range(n):
            rank[order[k]] = k
        for i in range(n):
            if offset[i] + size[i] > goal:
                rank[i] *= np.random.uniform(low, high)
    return best, int(least), rounds


@jit
def fit(
    i: int,
    part_ptr: np.ndarray,
    part_first: np.ndarray,
    part_last: np.ndarray,
    height: int,
    goal: int,
    mode: int,
    placed: np.ndarray,
    count: int,
) -> int:  # pragma: no cover
    """Where item i fits among the placed parts (first, last, low, top, item; sorted by low).

    mode: 0 the lowest gap, 1 the tightest below the goal, 2 the highest below the goal. Above the
    goal, where none below it is large enough.
    """
    lo, hi = part_ptr[i], part_ptr[i + 1]
    x, found, least = np.int64(0), np.int64(-1), np.int64(-1)
    for k in range(count):
        if placed[3, k] <= x:
            continue
        met = False
        for q in range(lo, hi):
            if part_first[q] <= placed[1, k] and placed[0, k] <= part_last[q]:
                met = True
                break
        if not met:
            continue
        spare = placed[2, k] - x - height
        if spare >= 0:
            if mode == 0:
                return int(x)
            if mode == 2:
                if placed[2, k] <= goal:
                    found = placed[2, k] - height
            elif least < 0 or spare < least:
                least, found = spare, x
                if spare == 0:
                    return int(x)
        x = placed[3, k]
    last = goal - x - height
    if mode == 2 and last >= 0:
        return int(goal - height)
    if found < 0 or mode == 1 and last >= 0 and last < least:
        return int(x)
    return int(found)


@jit
def put(
    i: int,
    x: int,
    part_ptr: np.ndarray,
    part_first: np.ndarray,
    part_last: np.ndarray,
    part_height: np.ndarray,
    placed: np.ndarray,
    count: int,
) -> int:  # pragma: no cover
    """Adds item i at offset x to the placed parts; returns their number."""
    lo, hi = part_ptr[i], part_ptr[i + 1]
    width = hi - lo
    at = count
    while at > 0 and placed[2, at - 1] > x:
        at -= 1
        for row in range(5):
            placed[row, at + width] = placed[row, at]
    for q in range(lo, hi):
        to = at + q - lo
        placed[0, to] = part_first[q]
        placed[1, to] = part_last[q]
        placed[2, to] = x
        placed[3, to] = x + part_height[q]
        placed[4, to] = i
    return int(count + width)


@jit
def overlapping(
    i: int, part_ptr: np.ndarray, part_first: np.ndarray, part_last: np.ndarray, found: np.ndarray
) -> int:  # pragma: no cover
    """Writes the items that overlap item i in time to `found`; returns how many."""
    count = 0
    for j in range(len(part_ptr) - 1):
        if j == i:
            continue
        met = False
        for p in range(part_ptr[i], part_ptr[i + 1]):
            for q in range(part_ptr[j], part_ptr[j + 1]):
                if part_first[p] <= part_last[q] and part_first[q] <= part_last[p]:
                    met = True
        if met:
            found[count] = j
            count += 1
    return count


@jit
def relocate(
    offset: np.ndarray,
    part_ptr: np.ndarray,
    part_first: np.ndarray,
    part_last: np.ndarray,
    part_height: np.ndarray,
    size: np.ndarray,
    goal: int,
    tries: int,
    seed: int,
    some: int,
    patience: int,
    bump: float,
) -> tuple[np.ndarray, int]:  # pragma: no cover
    """Local repair of `offset`, in place.

    Returns:
      (the offsets with fewest bytes above the goal, items placed).
    """
    np.random.seed(seed)
    n, total = len(size), len(part_first)
    length = np.empty(n, np.int64)
    for i in range(n):
        length[i] = part_last[part_ptr[i + 1] - 1] - part_first[part_ptr[i]] + 1
    now, then = np.empty((5, total), np.int64), np.empty((5, total), np.int64)
    count = 0
    for i in np.argsort(offset, kind="mergesort"):
        count = put(i, offset[i], part_ptr, part_first, part_last, part_height, now, count)
    out, near = np.empty(n, np.int64), np.empty(n, np.int64)
    taken, key = np.empty(n, np.int64), np.empty(n)
    mark = np.zeros(n, np.bool_)
    weight = np.ones(n)
    fresh = offset.copy()
    over = np.int64(0)
    for i in range(n):
        over += min(size[i], max(np.int64(0), offset[i] + size[i] - goal))
    best, least = offset.copy(), over
    spent = 0
    stale = 0
    for _ in range(tries):
        if over == 0:
            break
        outs = 0
        for i in range(n):
            if offset[i] + size[i] > goal:
                out[outs] = i
                outs += 1
        stale += 1
        if stale > patience:
            stale = 0
            for k in range(outs):
                weight[out[k]] *= bump
        target = out[np.random.randint(outs)]
        most = 3 + np.random.randint(some)
        mark[target] = True
        taken[0] = target
        c = 1
        for k in range(outs):
            if c >= most:
                break
            if not mark[out[k]] and np.random.random() < 0.5:
                mark[out[k]] = True
                taken[c] = out[k]
                c += 1
        kind = np.random.randint(3)
        at = np.int64(-1)
        m = overlapping(target, part_ptr, part_first, part_last, near)
        if m > 0 and kind == 0:
            # The target takes the place of whatever lies in a band of its size.
            j = near[np.random.randint(m)]
            side = np.random.randint(3)
            at = offset[j] if side == 0 else offset[j] + size[j]
            if side == 2:
                at -= size[target]
            at = min(max(at, np.int64(0)), goal - size[target])
            for k in range(m):
                j = near[k]
                if not mark[j] and offset[j] < at + size[target] and at < offset[j] + size[j]:
                    mark[j] = True
                    taken[c] = j
                    c += 1
        elif m > 0 and kind == 1:
            # All in a band of addresses around an end, of any size.
            j = near[np.random.randint(m)]
            middle = offset[j] + (size[j] if np.random.random() < 0.5 else 0)
            half = size[target] * (0.1 + 2 * np.random.random() ** 2)
            if np.random.random() < 0.3:
                m = overlapping(j, part_ptr, part_first, part_last, near)
            first = np.random.randint(m)
            for k in range(m):
                j = near[(first + k) % m]
                if (
                    not mark[j]
                    and offset[j] < middle + half
                    and middle - half < offset[j] + size[j]
                ):
                    mark[j] = True
                    taken[c] = j
                    c += 1
                    if c >= 3 * most:
                        break
        elif m > 0:
            # A few that overlap an item in time, mostly from near one address.
            m = overlapping(near[np.random.randint(m)], part_ptr, part_first, part_last, near)
            middle = offset[near[np.random.randint(m)]]
            half = size[target] * (1 + 4 * np.random.random())
            anywhere = np.random.random() < 0.3
            for _t in range(4 * most):
                if c >= most:
                    break
                j = near[np.random.randint(m)]
                if not mark[j] and (anywhere or abs(offset[j] - middle) <= half):
                    mark[j] = True
                    taken[c] = j
                    c += 1
        kept = 0
        for k in range(count):
            if not mark[now[4, k]]:
                for row in range(5):
                    then[row, kept] = now[row, k]
                kept += 1
        by, noise = np.random.randint(4), 2 * np.random.random()
        first_of_all = at >= 0 or np.random.random() < 0.5
        before, limit = np.int64(0), 0.0
        for k in range(c):
            i = taken[k]
            mark[i] = False
            z = min(size[i], max(np.int64(0), offset[i] + size[i] - goal))
            before += z
            limit += z * weight[i]
            value = -3.0 * offset[i] / goal
            if by == 0:
                value = np.log(float(size[i]))
            elif by == 1:
                value = np.log(float(length[i]))
            elif by == 2:
                value = np.log(float(size[i]) * length[i])
            key[k] = -value - noise * np.random.random()
            if i == target and first_of_all:
                key[k] = -1e9
        mode = np.random.randint(3)
        after, cost = np.int64(0), 0.0
        good = True
        for k in np.argsort(key[:c], kind="mergesort"):
            i = taken[k]
            x = at
            if at < 0 or i != target:
                x = fit(i, part_ptr, part_first, part_last, size[i], goal, mode, then, kept)
            spent += 1
            fresh[i] = x
            z = min(size[i], max(np.int64(0), x + size[i] - goal))
            after += z
            cost += z * weight[i]
            if cost > limit:
                good = False
                break
            kept = put(i, x, part_ptr, part_first, part_last, part_height, then, kept)
        if not good:
            continue
        if cost < limit:
            stale = 0
        for k in range(c):
            offset[taken[k]] = fresh[taken[k]]
        now, then = then, now
        count = kept
        over += after - before
        if over < least:
            least = over
            best[:] = offset
    return best, spent
