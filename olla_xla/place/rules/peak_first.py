"""Greedy first fit with the blocks of the fullest section first.

A packing at the largest live sum has no hole where that sum is reached. First fit by size leaves
some there: what is large and dies early has made room for nothing. So the blocks that live in the
fullest section come first, in one of several orders by lifetime: whatever the order, they lie on
each other without a hole there, much as in the pyramid of the OLLA paper's section 4.5. What lives
elsewhere has room to spare, and follows by size or area. In plans of train steps one section is far
fuller than the others, and some of these orders meet the largest live sum in most of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from olla_xla.place.items import Items

__all__ = ["fullest", "ordered", "peak_orders"]


def peak_orders(items: Items) -> Iterator[NDArray[np.int64]]:
    """Orders for `first_fit`, int64 [items]; ties by number."""
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
    """(what lives in the fullest section, what stands there all the time, keys to stack it by)."""
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
    """What stands comes first: it divides the memory of the others, unless it lies below them."""
    return np.lexsort((other, np.where(there, stack, 0), ~pinned, ~there))
