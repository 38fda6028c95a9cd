"""Local repair of a packing: a few items at a time are taken out and repacked.
A try takes out an item that exceeds the target height and some that overlap it in time: those where
it is to go, those in a band of addresses, or a random few. The result is kept unless more weighted
bytes exceed the target height than before. After many tries without improvement, the weights of
items that exceed it grow, so that other items must give way (breakout local search).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.jit import inner, jit
from olla_xla.place.placed_parts import ITEM, Shapes, excess, fit, overlapping, put, sticking_out

ANYWHERE = -1
"""Instead of an offset: an item may be placed wherever it fits."""

_PATIENCE = 300
"""Tries without improvement until the weights of items above the target height grow."""

_BUMP = 1.2
"""The factor by which they then grow."""

_SOME = (6, 40, 15)
"""About how many items are repacked at once; the seed chooses which of these."""

_SWAP, _BAND = 0, 1
"""Two of three ways to choose what is taken out: what is in the way, a band; else a random few."""

_BY_SIZE, _BY_LENGTH, _BY_AREA = 0, 1, 2
"""Three of four orders in which items are repacked: by bytes, sections, both; else by offset."""


class Scratch(NamedTuple):
    """Arrays that tries of `relocate` reuse; the first of `taken` is the item a try is about.

    Attributes:
      mark: bool [items], taken out of the packing. taken: int64 [items], these, as far as filled.
      near: int64 [items], items that overlap one in time, as far as filled.
      key: float64 [items], by place in `taken`: the least is placed first.
      fresh: int64 [items], the new offset of each item that was taken out, in bytes.
    """

    mark: NDArray[np.bool_]
    taken: NDArray[np.int64]
    near: NDArray[np.int64]
    key: NDArray[np.float64]
    fresh: NDArray[np.int64]


class _Packing(NamedTuple):
    """A packing while it is repaired.

    Attributes:
      offset: int64 [items] bytes. length: int64 [items], sections from its first to its last.
      weight: float64 [items], what each byte of an item above the target height costs.
    """

    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    weight: NDArray[np.float64]


@jit
def scratch(n: int) -> Scratch:
    """Allocates the arrays that `relocate` reuses, for `n` items."""
    return Scratch(
        np.zeros(n, np.bool_),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n),
        np.empty(n, np.int64),
    )


@jit
def relocate(
    offset: NDArray[np.int64], shapes: Shapes, target_height: int, tries: int, seed: int
) -> tuple[NDArray[np.int64], int]:
    """Repairs a packing: takes out a few items at a time and places them again.

    Args:
      offset: int64 [items] bytes, changed in place. shapes: the items. target_height: bytes.
      tries: at most. seed: of the random numbers and of how many items are repacked at once.

    Returns:
      (the offsets with fewest bytes above the target height, how many times an item was placed).
    """
    np.random.seed(seed)
    n, some = len(shapes.size), _SOME[seed % len(_SOME)]
    now = np.empty((5, len(shapes.first)), np.int64)
    then = np.empty((5, len(shapes.first)), np.int64)
    count = 0
    for i in np.argsort(offset, kind="mergesort"):
        count = put(i, offset[i], shapes, now, count)
    over = np.int64(0)
    for i in range(n):
        over += excess(offset[i], shapes.size[i], target_height)
    packing = _Packing(offset, _lengths(shapes), np.ones(n))
    trial, out = scratch(n), np.empty(n, np.int64)
    best, least = offset.copy(), over
    spent, stale = 0, 0
    for _ in range(tries):
        if over == 0:
            break
        outs = out[: sticking_out(offset, shapes.size, target_height, out)]
        stale += 1
        if stale > _PATIENCE:
            stale = 0
            for i in outs:
                packing.weight[i] *= _BUMP
        taken, at = _take(outs, some, offset, shapes, target_height, trial)
        kept = _without(trial.mark, now, count, then)
        before, limit = _arrange(taken, at, packing, shapes.size, target_height, trial)
        after, cost, kept, placed = repack(
            taken, at, limit, packing.weight, shapes, target_height, then, kept, trial
        )
        spent += placed
        if cost > limit:
            continue
        if cost < limit:
            stale = 0
        for i in trial.taken[:taken]:
            offset[i] = trial.fresh[i]
        now, then = then, now
        count = kept
        over += after - before
        if over < least:
            least = over
            best[:] = offset
    return best, spent


@jit
def _lengths(shapes: Shapes) -> NDArray[np.int64]:
    """Counts the sections (sets of items live together) from each item's first to last: int64."""
    length = np.empty(len(shapes.size), np.int64)
    for i in range(len(length)):
        length[i] = shapes.last[shapes.ptr[i + 1] - 1] - shapes.first[shapes.ptr[i]] + 1
    return length


@inner
def _take(
    outs: NDArray[np.int64],
    some: int,
    offset: NDArray[np.int64],
    shapes: Shapes,
    target_height: int,
    trial: Scratch,
) -> tuple[int, int]:
    """Takes out a random item above the target height (the target), some others above it, and some
    that overlap the target in time, or one that does so.

    Args:
      outs: int64, the items that exceed the target height. some: how many to take, about.
      offset, shapes, target_height: as in `relocate`. trial: mark, taken and near are filled.

    Returns:
      (number of items out, offset in bytes at which the target is to go, or ANYWHERE).
    """
    target = outs[np.random.randint(len(outs))]
    most = 3 + np.random.randint(some)
    count = _take_out(trial, np.int64(0), target)
    for i in outs:
        if count >= most:
            break
        if not trial.mark[i] and np.random.random() < 0.5:
            count = _take_out(trial, count, i)
    way = np.random.randint(3)
    m = overlapping(target, shapes, trial.near)
    if m == 0:
        return count, ANYWHERE
    if way == _SWAP:
        return _take_place(target, m, offset, shapes, target_height, trial, count)
    if way == _BAND:
        return _take_band(target, m, most, offset, shapes, trial, count), ANYWHERE
    return _take_few(target, m, most, offset, shapes, trial, count), ANYWHERE


@inner
def _take_out(trial: Scratch, count: int, i: int) -> int:
    """Marks item `i` as taken out and adds it to `trial.taken`; returns the new count."""
    trial.mark[i] = True
    trial.taken[count] = i
    return count + 1


@inner
def _take_place(
    target: int,
    m: int,
    offset: NDArray[np.int64],
    shapes: Shapes,
    target_height: int,
    trial: Scratch,
    count: int,
) -> tuple[int, int]:
    """Chooses an offset for the item `target` at an end of one of the `m` items in `trial.near`,
    which overlap it in time, or as close as the target height allows; takes out of the packing what
    overlaps it there. `count`: items taken out so far; `offset`: int64 [items] bytes. Returns
    (number of items taken out, the target's new offset, or ANYWHERE if a pinned item lies there).
    """
    size, fixed = shapes.size, shapes.fixed
    j = trial.near[np.random.randint(m)]
    side = np.random.randint(3)  # on its foot, on top of it, or below its top
    at = offset[j] if side == 0 else offset[j] + size[j]
    if side == 2:
        at -= size[target]
    at = min(max(at, np.int64(0)), target_height - size[target])
    for j in trial.near[:m]:
        meets = offset[j] < at + size[target] and at < offset[j] + size[j]
        if meets and fixed[j] >= 0:
            return count, ANYWHERE
        if not trial.mark[j] and meets:
            count = _take_out(trial, count, j)
    return count, int(at)


@inner
def _take_band(
    target: int,
    m: int,
    most: int,
    offset: NDArray[np.int64],
    shapes: Shapes,
    trial: Scratch,
    count: int,
) -> int:
    """Takes out of a packing items whose addresses meet a band, of random width, around an end of a
    random one of the `m` items in `trial.near`, which overlap item `target` in time; those are
    taken that overlap the target or that one. They join the `count` items in `trial.taken`, up to 3
    * `most`; returns how many are out.
    """
    size, near = shapes.size, trial.near
    j = near[np.random.randint(m)]
    middle = offset[j] + (size[j] if np.random.random() < 0.5 else 0)
    half = size[target] * (0.1 + 2 * np.random.random() ** 2)
    if np.random.random() < 0.3:
        m = overlapping(j, shapes, near)
    first = np.random.randint(m)
    for k in range(m):
        j = near[(first + k) % m]
        meets = offset[j] < middle + half and middle - half < offset[j] + size[j]
        if not trial.mark[j] and meets and shapes.fixed[j] < 0:
            count = _take_out(trial, count, j)
            if count >= 3 * most:
                break
    return count


@inner
def _take_few(
    target: int,
    m: int,
    most: int,
    offset: NDArray[np.int64],
    shapes: Shapes,
    trial: Scratch,
    count: int,
) -> int:
    """Takes out of a packing random items that overlap in time one of the `m` items in
    `trial.near`, which overlap item `target`; mostly such with addresses close together. They join
    the `count` items in `trial.taken`, up to `most`; returns how many are out.
    """
    near = trial.near
    m = overlapping(near[np.random.randint(m)], shapes, near)
    middle = offset[near[np.random.randint(m)]]
    half = shapes.size[target] * (1 + 4 * np.random.random())
    anywhere = np.random.random() < 0.3
    for _ in range(4 * most):
        if count >= most:
            break
        j = near[np.random.randint(m)]
        if (
            not trial.mark[j]
            and shapes.fixed[j] < 0
            and (anywhere or abs(offset[j] - middle) <= half)
        ):
            count = _take_out(trial, count, j)
    return count


@inner
def _without(
    mark: NDArray[np.bool_], placed: NDArray[np.int64], count: int, kept: NDArray[np.int64]
) -> int:
    """Copies to `kept` the columns of `placed` (rectangles of items' parts; `count` are in use)
    whose items are not marked; returns how many these are.
    """
    number = 0
    for k in range(count):
        if not mark[placed[ITEM, k]]:
            for row in range(5):
                kept[row, number] = placed[row, k]
            number += 1
    return number


@inner
def _arrange(
    taken: int,
    at: int,
    packing: _Packing,
    size: NDArray[np.int64],
    target_height: int,
    trial: Scratch,
) -> tuple[int, float]:
    """Sets `trial.key`, the order (least first) in which the `taken` items that are out go back, at
    random. The first leads if `at`, its new offset, is not ANYWHERE, else by chance. Sets their
    `trial.mark` to False. `packing`, `size` (bytes): of all items before. Returns (those items'
    bytes above the target height, the same with each item's times its `packing.weight`).
    """
    by, noise = np.random.randint(4), 2 * np.random.random()
    target_first = at != ANYWHERE or np.random.random() < 0.5
    before, limit = np.int64(0), 0.0
    for k in range(taken):
        i = trial.taken[k]
        trial.mark[i] = False
        above = excess(packing.offset[i], size[i], target_height)
        before += above
        limit += above * packing.weight[i]
        value = -3.0 * packing.offset[i] / target_height
        if by == _BY_SIZE:
            value = np.log(float(size[i]))
        elif by == _BY_LENGTH:
            value = np.log(float(packing.length[i]))
        elif by == _BY_AREA:
            value = np.log(float(size[i]) * packing.length[i])
        trial.key[k] = -value - noise * np.random.random()
    if target_first:
        trial.key[0] = -1e9
    return int(before), limit


@jit
def repack(
    taken: int,
    at: int,
    limit: float,
    weight: NDArray[np.float64],
    shapes: Shapes,
    target_height: int,
    placed: NDArray[np.int64],
    count: int,
    trial: Scratch,
) -> tuple[int, float, int, int]:
    """Places removed items again, one by one; stops when more than `limit` exceeds the target.

    Args:
      taken: how many items of `trial.taken` to place. at: where the first is to go, or ANYWHERE.
      limit: the most weighted bytes that may be above the target height.
      weight: float64 [items], of bytes above the target height. shapes: of all items.
      placed, count: rectangles of the other items' parts; those of the items placed are added.
      target_height: bytes. trial: `fresh` gets the new offsets.

    Returns:
      (bytes above the target height, the same with their weights, new count of rectangles in
        `placed`, how many items were placed).
    """
    gap = np.random.randint(3)
    target = trial.taken[0]
    after, cost, spent = np.int64(0), 0.0, 0
    for k in np.argsort(trial.key[:taken], kind="mergesort"):
        i = trial.taken[k]
        x = at
        if at == ANYWHERE or i != target:
            x = fit(i, shapes, target_height, gap, placed, count)
        spent += 1
        trial.fresh[i] = x
        above = excess(x, shapes.size[i], target_height)
        after += above
        cost += above * weight[i]
        if cost > limit:
            break
        count = put(i, x, shapes, placed, count)
    return int(after), cost, count, spent
