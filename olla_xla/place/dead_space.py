"""A lower bound from dead space: memory that is reserved while nothing in it is live.
An item of several parts, such as a donated argument and the output that replaces it, keeps its
offset while it is dead. Only parts that begin and end within the dead stretch can lie in its memory
then. So for a section with `live` bytes, take some interval of sections around it. Take the dead
stretches within it, of items that are live together elsewhere and so do not share memory, and the
parts that are live in the section and lie within the interval. The bytes of the stretches less
those of the parts are wasted in any packing.
Example: a dead stretch of 8 bytes, and 20 bytes of parts live there, none of which fits into it in
time: at least 28 bytes, where the largest live sum is 20.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.lifetimes import live_bytes
from olla_xla.place.items import Items, load_bound


@dataclasses.dataclass(frozen=True)
class Waste:
    """The section in which any packing needs most bytes, and dead stretches that nothing can fill.

    A section is a maximal set of items live together, numbered over time; a dead stretch, the
    sections between two parts of an item's life, in which it is not live but keeps its offset.

    Attributes:
      bytes: needed there at least (heights rounded up to the grain); 0 if there is none.
      section: its number, or -1. stretches: (bytes, first section, last section) of these.
    """

    bytes: int = 0
    section: int = -1
    stretches: tuple[tuple[int, int, int], ...] = ()


def least_height(items: Items) -> int:
    """Computes a lower bound on a packing's height from bytes live at one time and dead stretches:
    memory that items keep between two parts of their lives and that nothing can fill.
    """
    bound = load_bound(items)
    padded = items.grain - 1 if (items.size != items.need).any() else 0
    return max(bound, waste(items, bound + padded).bytes - padded)


def waste(items: Items, above: int = 0) -> Waste:
    """Finds the section (maximal set of items live together) in which any packing needs most bytes,
    counting memory that items keep while dead and nothing can fill. An empty Waste if there is no
    such memory, or at most `above` bytes are needed.
    """
    owner = items.owner()
    before = np.flatnonzero(owner[1:] == owner[:-1])
    if not len(before):
        return Waste()
    start, stop = items.part_last[before] + 1, items.part_first[before + 1] - 1
    height = np.minimum(items.part_height[before], items.part_height[before + 1])
    real = start <= stop
    before, start, stop, height = before[real], start[real], stop[real], height[real]
    live = items.loads()
    most = live + live_bytes(start, stop + 1, height, items.count)
    largest = Waste(above)
    for section in np.argsort(-most, kind="stable"):
        if most[section] <= largest.bytes:
            break
        inside = np.flatnonzero((start <= section) & (section <= stop))
        inside, free = _disjoint(items, owner, owner[before[inside]], inside, height[inside])
        if not len(inside):
            continue
        parts = np.flatnonzero((items.part_first <= section) & (section <= items.part_last))
        least, low, high = _unfilled(
            start[inside],
            stop[inside],
            free,
            items.part_first[parts],
            items.part_last[parts],
            items.part_height[parts],
        )
        if least > 0 and live[section] + least > largest.bytes:
            chosen = (start[inside] >= low) & (stop[inside] <= high)
            rows = zip(free[chosen], start[inside][chosen], stop[inside][chosen], strict=True)
            largest = Waste(
                int(live[section] + least),
                int(section),
                tuple((int(a), int(b), int(c)) for a, b, c in rows),
            )
    return largest if largest.section >= 0 else Waste()


def _disjoint(
    items: Items,
    owner: NDArray[np.int64],
    dead: NDArray[np.int64],
    inside: NDArray[np.int64],
    height: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Selects dead stretches that share no memory in any packing, as their items are live together
    in one section: that in which all items `dead` together have most bytes.
    A dead stretch is a range of sections in which an item is not live but keeps its offset; `dead`,
    `inside`, `height`: item, number and bytes of each. `owner`: each part's item. Returns (numbers
    of those selected, bytes of each: at most those of its item in that section).
    """
    if not len(inside):
        return inside, height
    parts = np.flatnonzero(np.isin(owner, dead))
    first, last, height_of = (
        items.part_first[parts],
        items.part_last[parts],
        items.part_height[parts],
    )
    meeting = int(np.argmax(live_bytes(first, last + 1, height_of, items.count)))
    there = parts[(first <= meeting) & (meeting <= last)]
    at = np.zeros(len(items), np.int64)
    at[owner[there]] = items.part_height[there]
    free = np.minimum(height, at[dead])
    return inside[free > 0], free[free > 0]


def _unfilled(
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    free: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    height: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Finds the range of sections in which dead stretches exceed by most bytes what may fill them;
    of both, those that begin and end in a range count there.
    `start`, `stop`, `free`: first section, last section and bytes of each dead stretch, in which an
    item keeps its offset while not live; `first`, `last`, `height`: of each part of items. Returns
    (bytes in excess, first section of the range, last section).
    """
    lows, highs = np.unique(start), np.unique(stop)
    excess = np.zeros((len(lows), len(highs)), np.int64)
    np.add.at(excess, (np.searchsorted(lows, start), np.searchsorted(highs, stop)), free)
    row, column = np.searchsorted(lows, first, side="right") - 1, np.searchsorted(highs, last)
    fits = (row >= 0) & (column < len(highs))
    np.subtract.at(excess, (row[fits], column[fits]), height[fits])
    # Entry (i, j): of all that begins at lows[i] or later and ends at highs[j] or earlier.
    excess = np.cumsum(np.cumsum(excess[::-1], axis=0)[::-1], axis=1)
    i, j = np.unravel_index(int(excess.argmax()), excess.shape)
    return int(excess[i, j]), int(lows[i]), int(highs[j])
