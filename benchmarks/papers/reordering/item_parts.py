"""The items of a packing under an order of operators, as parts of constant height."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.placement_blocks import blocks_of
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import spans_and_passes
from olla_xla.place.placed_parts import Shapes


class HandOvers(NamedTuple):
    """Which pairs of the graph memory passes on by, and must go on doing so.

    Attributes:
      passes: bool [pairs]. longer: bool [pairs], of those, the operand is live at the step all the
        same.
    """

    passes: np.ndarray
    longer: np.ndarray


class ItemParts(NamedTuple):
    """The parts of each item; sections are steps.

    Attributes:
      ptr, first, last, height, size: as in Shapes.
      tensor: int64 [parts], of each part; -1 - v for the inside of operator v.
      item, inside: int64 [m] and [n], the item of each tensor and of each operator's inside, or -1.
      movable: items below this number are not live everywhere.
    """

    ptr: np.ndarray
    first: np.ndarray
    last: np.ndarray
    height: np.ndarray
    tensor: np.ndarray
    item: np.ndarray
    inside: np.ndarray
    size: np.ndarray
    movable: int

    def shapes(self) -> Shapes:
        """The items that are not live everywhere."""
        count, end = self.movable, self.ptr[self.movable]
        first, last, height = self.first[:end], self.last[:end], self.height[:end]
        return Shapes(self.ptr[: count + 1], first, last, height, self.size[:count])


def item_parts(
    arrays: GraphArrays, order: Sequence[int], alignment: int
) -> tuple[ItemParts, HandOvers] | None:
    """Items, those that are live everywhere last; None if a graph is not supported."""
    blocks = blocks_of(arrays, order, alignment)
    spans, position = blocks.spans, blocks.position
    kept = (arrays.bytes > 0) & (spans[:, 0] < spans[:, 1])
    if ((arrays.bytes > 0) & ~kept).any():
        return None
    keep, calls = np.flatnonzero(kept), np.flatnonzero(blocks.inside > 0)
    groups = np.concatenate([blocks.group[keep], len(blocks.group) + calls])
    first = np.concatenate([spans[keep, 0], position[calls]])
    last = np.concatenate([spans[keep, 1] - 1, position[calls]])
    height = np.concatenate([blocks.sizes[keep], blocks.inside[calls]])
    tensor = np.concatenate([keep, -1 - calls])
    numbers, item = np.unique(groups, return_inverse=True)
    n = len(numbers)
    size, low = np.zeros(n, np.int64), np.full(n, np.iinfo(np.int64).max)
    np.maximum.at(size, item, height)
    np.minimum.at(low, item, height)
    steps = np.zeros(n, np.int64)
    np.add.at(steps, item, last - first + 1)
    always = (steps == arrays.n) & (low == size)
    rank = np.argsort(always, kind="stable")
    number = np.empty(n, np.int64)
    number[rank] = np.arange(n)
    item, size = number[item], size[rank]
    by = np.lexsort((first, item))
    item, tensor, height, first, last = item[by], tensor[by], height[by], first[by], last[by]
    if ((item[1:] == item[:-1]) & (first[1:] <= last[:-1])).any():
        return None
    ptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(item, minlength=n), out=ptr[1:])
    item_of, inside = np.full(arrays.m, -1), np.full(arrays.n, -1)
    item_of[tensor[tensor >= 0]] = item[tensor >= 0]
    inside[-1 - tensor[tensor < 0]] = item[tensor < 0]
    passes = spans_and_passes(arrays, position)[1]
    longer = passes & (spans[arrays.pair_a, 1] > position[arrays.source[arrays.pair_b]])
    parts = ItemParts(
        ptr, first, last, height, tensor, item_of, inside, size, int(n - always.sum())
    )
    return parts, HandOvers(passes, longer)
