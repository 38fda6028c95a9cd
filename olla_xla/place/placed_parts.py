"""Where an item fits among those that are placed already, and which items it overlaps in time."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.jit import inner
from olla_xla.place.items import Items

LOWEST, TIGHTEST, HIGHEST = 0, 1, 2
"""Which gap an item takes: the lowest one, the tightest, or the highest below the target height."""

FIRST, LAST, LOW, TOP, ITEM = 0, 1, 2, 3, 4
"""Rows of the placed parts, int64 [5, parts], which are sorted by offset (LOW, in bytes).

FIRST and LAST are sections, as in Items; TOP is one past the part's last byte.
"""


class Shapes(NamedTuple):
    """When and with how many bytes items are live, as arrays for compiled loops.

    Attributes:
      ptr: int64 [items + 1], item -> its parts, ranges of sections (sets of items live together).
      first, last, height: int64 [parts], sections, both inclusive, and bytes.
      size: int64 [items], the largest height of an item's parts.
      fixed: int64 [items], the offset of an item that must not move, else -1.
    """

    ptr: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    height: NDArray[np.int64]
    size: NDArray[np.int64]
    fixed: NDArray[np.int64]


def shapes_of(items: Items) -> Shapes:
    """Takes from `items` what compiled loops need: lifetimes, heights, pinned offsets (bytes)."""
    parts = items.part_ptr, items.part_first, items.part_last, items.part_height
    return Shapes(*parts, items.size, items.fixed)


@inner
def fit(
    i: int, shapes: Shapes, target_height: int, gap: int, placed: NDArray[np.int64], count: int
) -> int:
    """Finds an offset in bytes for item `i` in a gap below or between the placed items that overlap
    it in time; for TIGHTEST and HIGHEST, from these up to the target height is a gap as well. On
    top of all of them if it fits into no gap.

    Args:
      i: the item. shapes: of all items. target_height: bytes; HIGHEST takes gaps below it alone.
      gap: which gap: LOWEST, TIGHTEST or HIGHEST.
      placed: int64 [5, any], rectangles by rising offset, one for each range of sections (sets of
        items live together) of a placed item: FIRST and LAST section, LOW and TOP in bytes, ITEM.
      count: how many columns of `placed` are in use.
    """
    lo, hi = shapes.ptr[i], shapes.ptr[i + 1]
    height = shapes.size[i]
    x, chosen, least = np.int64(0), np.int64(-1), np.int64(-1)
    for k in range(count):
        if placed[TOP, k] <= x:
            continue
        met = False
        for q in range(lo, hi):
            if shapes.first[q] <= placed[LAST, k] and placed[FIRST, k] <= shapes.last[q]:
                met = True
                break
        if not met:
            continue
        spare = placed[LOW, k] - x - height
        if spare >= 0:
            if gap == LOWEST:
                return int(x)
            if gap == HIGHEST:
                if placed[LOW, k] <= target_height:
                    chosen = placed[LOW, k] - height
            elif least < 0 or spare < least:
                least, chosen = spare, x
                if spare == 0:
                    return int(x)
        x = placed[TOP, k]
    spare = target_height - x - height
    if gap == HIGHEST and spare >= 0:
        return int(target_height - height)
    if chosen < 0 or (gap == TIGHTEST and 0 <= spare < least):
        return int(x)
    return int(chosen)


@inner
def put(i: int, x: int, shapes: Shapes, placed: NDArray[np.int64], count: int) -> int:
    """Inserts item `i` at offset `x` into `placed`: rectangles of sections by bytes, sorted by
    offset, of which `count` columns are in use; returns the new count.
    """
    lo, hi = shapes.ptr[i], shapes.ptr[i + 1]
    width = hi - lo
    at = count
    while at > 0 and placed[LOW, at - 1] > x:
        at -= 1
        for row in range(5):
            placed[row, at + width] = placed[row, at]
    for q in range(lo, hi):
        to = at + q - lo
        placed[FIRST, to] = shapes.first[q]
        placed[LAST, to] = shapes.last[q]
        placed[LOW, to] = x
        placed[TOP, to] = x + shapes.height[q]
        placed[ITEM, to] = i
    return int(count + width)


@inner
def overlapping(i: int, shapes: Shapes, found: NDArray[np.int64]) -> int:
    """Writes the numbers of items that overlap item `i` in time to `found`; returns how many."""
    count = 0
    for j in range(len(shapes.ptr) - 1):
        if j == i:
            continue
        met = False
        for p in range(shapes.ptr[i], shapes.ptr[i + 1]):
            for q in range(shapes.ptr[j], shapes.ptr[j + 1]):
                if shapes.first[p] <= shapes.last[q] and shapes.first[q] <= shapes.last[p]:
                    met = True
        if met:
            found[count] = j
            count += 1
    return count


@inner
def sticking_out(
    offset: NDArray[np.int64], size: NDArray[np.int64], target_height: int, found: NDArray[np.int64]
) -> int:
    """Writes the numbers of items that end above the target height to `found`; returns how many."""
    count = 0
    for i in range(len(offset)):
        if offset[i] + size[i] > target_height:
            found[count] = i
            count += 1
    return count


@inner
def excess(offset: int, size: int, target_height: int) -> int:
    """How many of the `size` bytes of an item at `offset` lie above the target height."""
    return int(min(size, max(np.int64(0), offset + size - target_height)))
