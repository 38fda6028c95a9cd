"""Preplacement of section 4.5 of the paper, algorithm 5: a pyramid of nested lifetimes."""

from __future__ import annotations

import numpy as np

from olla_xla.place.items import Items

__all__ = ["pyramid"]


def pyramid(items: Items) -> dict[int, int]:
    """Items nested in time at increasing offsets.

    The item that is live longest lies at offset 0, of several the largest; on it the one live
    longest within its time, and so on. In training these are the activations, the first made and
    the last freed. An item that is dead for a while counts as live from first to last.

    Returns:
      Item -> offset in bytes; nothing where items are pinned or aligned in different ways.
    """
    if (items.fixed >= 0).any() or (items.align != items.grain).any() or not len(items):
        return {}
    start, stop = int(items.lower.min()), int(items.upper.max())
    left = np.ones(len(items), np.bool_)
    placed: dict[int, int] = {}
    address = 0
    while True:
        inside = np.flatnonzero(left & (items.lower >= start) & (items.upper <= stop))
        if not len(inside):
            return placed
        longest = (items.upper - items.lower)[inside]
        i = int(inside[np.lexsort((inside, -items.size[inside], -longest))[0]])
        placed[i] = address
        left[i] = False
        address += int(items.size[i])
        start, stop = int(items.lower[i]), int(items.upper[i])
