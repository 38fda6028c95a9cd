"""Profile-guided best fit.

Sekiyama, Imamichi, Imai and Raymond, "Profile-guided memory optimization for deep neural networks"
(2018), arXiv:1804.10001, section 3.2.

The free space is kept as offset lines: stretches of time with the lowest offset that is free over
all of the stretch. The lowest line (the leftmost of several) takes the longest-lived block that
fits in its stretch; if none does, the line is lifted to the lower of its neighbours and merged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import InputError
from olla_xla.memory.jit import inner, loop
from olla_xla.place.items import Items


def best_fit(items: Items) -> NDArray[np.int64]:
    """Offsets by best fit, int64 [items], in bytes; quadratic in the number of items.

    An item of several parts is taken as if it were live from its first to its last section.

    Raises:
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
    """Fills `offset` [items]. `lines` [3, sections] and `order` [items] are working memory.

    A line's id is its first section; `stop` is its last, `before` the line to its left.
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
    """Cuts a line before `section`, if that lies within it; returns the right piece."""
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
    """Raises a line to the lower of its neighbours and merges them."""
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
    """Merges a line with neighbours of the same level; returns the merged line."""
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
