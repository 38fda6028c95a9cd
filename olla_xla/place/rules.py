"""Greedy first fit: items in a given order, each at the lowest free place; and orders for it."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import InputError
from olla_xla.memory.jit import has_numba, inner, loop
from olla_xla.place.items import Items
from olla_xla.place.placed_parts import FIRST, LAST, LOW, TOP, Shapes, put, shapes_of

_FEW = 128
"""Items that Python places in less time than it takes to import numba for the compiled loop."""


def greedy_orders(items: Items) -> dict[str, NDArray[np.int64]]:
    """Orders items for `first_fit` by falling size, lifetime or product: name -> int64 [items]."""
    keys = {"size": items.size, "span": items.span, "area": items.size * items.span}
    return {f"greedy_{name}": np.argsort(-key, kind="stable") for name, key in keys.items()}


def first_fit(items: Items, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places items in this order, pinned ones first, each at the lowest offset that is free while
    it is live. Returns int64 [items], offsets in bytes. Quadratic in the number of items.
    """
    order = np.asarray(order, np.int64)
    pinned = items.fixed[order] >= 0
    order = np.concatenate([order[pinned], order[~pinned]])
    few = len(order) <= _FEW and not has_numba()
    offset = np.empty(len(items), np.int64)
    placed = np.empty((5, len(items.part_first)), np.int64)
    (_first_fit.interpreted if few else _first_fit)(
        offset, placed, order, shapes_of(items), items.align
    )
    return offset


@loop
def _first_fit(
    offset: NDArray[np.int64],
    placed: NDArray[np.int64],
    order: NDArray[np.int64],
    shapes: Shapes,
    align: NDArray[np.int64],
) -> None:
    """Fills `offset` (int64 [items], bytes) in this order: with the lowest free offset, or an
    item's pinned one. `placed` [5, parts] is working memory; `align`: bytes, of each item.
    """
    count = 0
    for i in order:
        x = shapes.fixed[i]
        if x < 0:
            x = _lowest(i, shapes, align[i], placed, count)
        offset[i] = x
        count = put(i, x, shapes, placed, count)


@inner
def _lowest(i: int, shapes: Shapes, align: int, placed: NDArray[np.int64], count: int) -> int:
    """Finds the lowest aligned offset of item `i` at which it meets none of `count` rectangles in
    `placed` (sections by bytes that other items take).
    """
    lo, hi = shapes.ptr[i], shapes.ptr[i + 1]
    x, moved = 0, True
    while moved:
        moved = False
        for k in range(count):
            if placed[LOW, k] >= x + shapes.size[i]:
                break
            if placed[TOP, k] <= x:
                continue
            for q in range(lo, hi):
                if (
                    shapes.first[q] <= placed[LAST, k]
                    and placed[FIRST, k] <= shapes.last[q]
                    and placed[LOW, k] < x + shapes.height[q]
                    and x < placed[TOP, k]
                ):
                    x = int(placed[TOP, k] + align - 1) // align * align
                    # A part that the shorter of several parts had cleared may now be in the way.
                    moved = hi - lo > 1
    return x


def peak_orders(items: Items) -> Iterator[NDArray[np.int64]]:
    """Yields orders for `first_fit`, int64 [items], that begin with the items live at the peak."""
    if not len(items):
        return
    there, pinned, stacks = fullest(items)
    others = {"size": -items.size, "area": -items.size * items.span}
    for stack in stacks:
        for other in others.values():
            yield ordered(there, pinned, stack, other)


def fullest(
    items: Items,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], tuple[NDArray[np.int64], ...]]:
    """Looks at the section (maximal set of items live together) with most live bytes: returns (bool
    [items], live there; bool [items], live there and from the first section to the last; keys,
    int64 [items] each, by which items live there may be sorted).
    """
    owner = items.owner()
    first = np.minimum.reduceat(items.part_first, items.part_ptr[:-1])
    last = np.maximum.reduceat(items.part_last, items.part_ptr[:-1])
    fullest = int(np.argmax(items.loads()))
    there = np.zeros(len(items), np.bool_)
    there[owner[(items.part_first <= fullest) & (fullest <= items.part_last)]] = True
    pinned = there & (first == 0) & (last == items.count - 1)
    side = -np.minimum(fullest - first, last - fullest)
    return there, pinned, (-items.span, first, last, side)


def ordered(
    there: NDArray[np.bool_],
    pinned: NDArray[np.bool_],
    stack: NDArray[np.int64],
    other: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Makes an order for `first_fit`, int64 [items], with items of the fullest section first.
    Of these, items live in all sections come first: between others they would split the memory.
    `there`, `pinned`: bool, live in the fullest section; in all. `stack`: key to sort those in
    `there` by, least first. `other`: key for all others, and among equals.
    """
    return np.lexsort((other, np.where(there, stack, 0), ~pinned, ~there))


# Profile-guided best fit.
#
# Sekiyama, Imamichi, Imai and Raymond, "Profile-guided memory optimization for deep neural
# networks" (2018), arXiv:1804.10001, section 3.2.
#
# The free space is kept as offset lines: stretches of time with the lowest offset that is free
# over all of the stretch. The lowest line (the leftmost of several) takes the longest-lived block
# that fits in its stretch; if none does, the line is lifted to the lower of its neighbours and
# merged.


def best_fit(items: Items) -> NDArray[np.int64]:
    """Places items by best fit: int64 [items], offsets in bytes; quadratic in the number of items.
    An item of several parts is taken as if it were live from its first to its last section.
    InputError: an item is pinned; the method has no rule for a block above free space.
    """
    if (items.fixed >= 0).any():
        raise InputError("best fit cannot place around fixed blocks; use first fit or the search")
    if not len(items):
        return np.zeros(0, np.int64)
    first = np.minimum.reduceat(items.part_first, items.part_ptr[:-1])
    last = np.maximum.reduceat(items.part_last, items.part_ptr[:-1])
    order = np.lexsort((-items.size, -items.span))
    offset, lines = np.zeros(len(items), np.int64), np.empty((3, items.count), np.int64)
    _best_fit(offset, lines, order, first, last, items.size, items.align)
    return offset


@loop
def _best_fit(
    offset: NDArray[np.int64],
    lines: NDArray[np.int64],
    order: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    size: NDArray[np.int64],
    align: NDArray[np.int64],
) -> None:
    """Fills `offset` (int64 [items], bytes) by best fit; `lines` [3, sections] and `order` (items,
    longest lived first) are working memory. `first`, `last`: [items] sections.
    A line is a range of sections with one free offset, `level`. Its id is its first section; `stop`
    is its last, `before` the line to its left.
    """
    level, stop, before = lines[0], lines[1], lines[2]
    sections, left = len(level), len(order)
    level[0], stop[0], before[0] = 0, sections - 1, -1
    while left:
        line, k = 0, 0
        while k < sections:
            if level[k] < level[line]:
                line = k
            k = stop[k] + 1
        chosen = -1
        for e in range(left):
            i = order[e]
            if first[i] >= line and last[i] <= stop[line]:
                chosen = e
                break
        if chosen < 0:
            line = _lift(line, level, stop, before)
            continue
        i = order[chosen]
        for e in range(chosen, left - 1):
            order[e] = order[e + 1]
        left -= 1
        offset[i] = (level[line] + align[i] - 1) // align[i] * align[i]
        line = _split(line, first[i], level, stop, before)
        _split(line, last[i] + 1, level, stop, before)
        level[line] = offset[i] + size[i]
        _join(line, level, stop, before)


@inner
def _split(
    line: int,
    section: int,
    level: NDArray[np.int64],
    stop: NDArray[np.int64],
    before: NDArray[np.int64],
) -> int:
    """Cuts a line (sections above which memory is free from one offset, `level`) in two before
    `section`, if that is inside it; returns the line that begins there, else `line`.
    """
    if section <= line or section > stop[line]:
        return line
    level[section], stop[section], before[section] = level[line], stop[line], line
    if stop[line] + 1 < len(stop):
        before[stop[line] + 1] = section
    stop[line] = section - 1
    return section


@inner
def _lift(
    line: int, level: NDArray[np.int64], stop: NDArray[np.int64], before: NDArray[np.int64]
) -> int:
    """Raises a line (sections above which memory is free from one offset, its level) to the lower
    one of its neighbours' levels and merges them; returns the merged line.
    """
    left, right = before[line], stop[line] + 1
    if left >= 0 and (right >= len(stop) or level[left] <= level[right]):
        level[line] = level[left]
    else:
        level[line] = level[right]
    return _join(line, level, stop, before)


@inner
def _join(
    line: int, level: NDArray[np.int64], stop: NDArray[np.int64], before: NDArray[np.int64]
) -> int:
    """Merges a line (sections above which memory is free from one offset, its level) with
    neighbours of the same level; returns the merged line.
    """
    right = stop[line] + 1
    if right < len(stop) and level[right] == level[line]:
        stop[line] = stop[right]
        if stop[line] + 1 < len(stop):
            before[stop[line] + 1] = line
    left = before[line]
    if left >= 0 and level[left] == level[line]:
        stop[left] = stop[line]
        if stop[left] + 1 < len(stop):
            before[stop[left] + 1] = left
        line = left
    return line
