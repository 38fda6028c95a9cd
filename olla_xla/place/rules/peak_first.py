"""Greedy first fit with the blocks of the fullest section first.

A packing as high as the largest live sum has no gap in the section where that sum is reached. First
fit by size leaves gaps there. So the blocks that are live in the fullest section come first, in one
of several orders by lifetime. In any order they lie there without a gap, much as in the pyramid of
the OLLA paper's section 4.5. Other blocks have room to spare, and follow by size or area. In plans
of train steps one section is far fuller than the others, and in most of them one of these orders
meets the largest live sum.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from olla_xla.place.items import Items


def peak_orders(items: Items) -> Iterator[NDArray[np.int64]]:
    """Orders for `first_fit`, int64 [items], the items of the fullest section first."""
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
    """The section with most live bytes: (its items, those that live in all sections, sort keys)."""
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
    """An order of items for `first_fit` that places those of the fullest section first.

    Between others, always-live items would split the memory of these.

    Args:
      there, pinned: of `fullest`. stack: key for items in `there`. other: key for all others.
    """
    return np.lexsort((other, np.where(there, stack, 0), ~pinned, ~there))
