"""What the search needs to know of one independent part, as arrays for compiled loops."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.jit import loop
from olla_xla.place.items import Items

MAX_PAIRS = 20_000_000
"""Overlapping pairs of blocks beyond which no model is built (about 30 bytes each)."""


class Model(NamedTuple):
    """A packing problem as arrays for compiled search: items, sections in time, and overlaps.

    Attributes:
      grain: bytes of which all offsets are multiples.
      size, need, align, fixed, part_ptr, part_first, part_last, part_height: as in Items.
      first, last: [items] the first and last section in which it is live.
      sec_ptr, sec_idx, sec_height: item -> sections in which it is live, and its bytes there.
      mem_ptr, mem_idx, mem_height: section -> items live there, and their bytes there.
      nb_ptr, nb_idx: item -> its neighbours, the items that share a section with it.
      nb_below: least distance from the item's offset up to the neighbour's, if the item lies below.
      nb_above: least distance from the neighbour's offset up to the item's, if the item lies above.
      twin: [items] the previous item that is alike in all respects and not pinned, or -1.
      kin_ptr, kin_idx: item -> other items that are live in exactly the same sections and may
        change places with it where one rests on the other; none for items of several parts.
      pin_ptr, pin_idx: item -> entries of nb_idx that are pinned items, by increasing offset.
    """

    grain: int
    size: NDArray[np.int64]
    need: NDArray[np.int64]
    align: NDArray[np.int64]
    fixed: NDArray[np.int64]
    part_ptr: NDArray[np.int64]
    part_first: NDArray[np.int64]
    part_last: NDArray[np.int64]
    part_height: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    sec_ptr: NDArray[np.int64]
    sec_idx: NDArray[np.int64]
    sec_height: NDArray[np.int64]
    mem_ptr: NDArray[np.int64]
    mem_idx: NDArray[np.int64]
    mem_height: NDArray[np.int64]
    nb_ptr: NDArray[np.int64]
    nb_idx: NDArray[np.int64]
    nb_below: NDArray[np.int64]
    nb_above: NDArray[np.int64]
    twin: NDArray[np.int64]
    kin_ptr: NDArray[np.int64]
    kin_idx: NDArray[np.int64]
    pin_ptr: NDArray[np.int64]
    pin_idx: NDArray[np.int64]


def overlapping_pairs(items: Items) -> int:
    """Counts the pairs of items' parts that overlap in time, each pair twice: no fewer than there
    are pairs of items.
    """
    starts, ends = np.sort(items.part_first), np.sort(items.part_last)
    before = np.searchsorted(ends, items.part_first, side="left")
    upto = np.searchsorted(starts, items.part_last, side="right")
    return int((upto - before - 1).sum())


def model_of(items: Items) -> Model:
    """Computes the Model of `items`, which should be one independent part."""
    n = len(items)
    width = items.part_last - items.part_first + 1
    owner = np.repeat(items.owner(), width)
    start = np.repeat(items.part_first - np.concatenate([[0], np.cumsum(width)[:-1]]), width)
    section = start + np.arange(len(owner))
    height = np.repeat(items.part_height, width)
    by_section = np.argsort(section, kind="stable")
    twin, kin = _alike(items)
    kin_ptr = _pointers(np.repeat(np.arange(n), [len(k) for k in kin]), n)
    kin_idx = np.array([j for k in kin for j in k], np.int64)
    nb_ptr = np.zeros(n + 1, np.int64)
    pairs = np.empty((3, overlapping_pairs(items)), np.int64)
    _neighbours(nb_ptr, pairs, items.part_ptr, items.part_first, items.part_last, items.part_height)
    nb_idx, below, above = pairs[:, : nb_ptr[n]].copy()
    pin_ptr, pin_idx = _pins(nb_ptr, nb_idx, items.fixed)
    return Model(
        grain=items.grain,
        size=items.size,
        need=items.need,
        align=items.align,
        fixed=items.fixed,
        part_ptr=items.part_ptr,
        part_first=items.part_first,
        part_last=items.part_last,
        part_height=items.part_height,
        first=np.minimum.reduceat(items.part_first, items.part_ptr[:-1]),
        last=np.maximum.reduceat(items.part_last, items.part_ptr[:-1]),
        sec_ptr=_pointers(owner, n),
        sec_idx=section,
        sec_height=height,
        mem_ptr=_pointers(section, items.count),
        mem_idx=owner[by_section],
        mem_height=height[by_section],
        nb_ptr=nb_ptr,
        nb_idx=nb_idx,
        nb_below=below,
        nb_above=above,
        twin=twin,
        kin_ptr=kin_ptr,
        kin_idx=kin_idx,
        pin_ptr=pin_ptr,
        pin_idx=pin_idx,
    )


def _pointers(owner: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    pointers = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=n), out=pointers[1:])
    return pointers


def _alike(items: Items) -> tuple[NDArray[np.int64], list[list[int]]]:
    """Finds items that may change places, none of them pinned: ([items] the previous item of the
    same size, alignment and lifetime, or -1; for each item of one part and without padding, others
    like that in exactly the same sections).
    """
    twin = np.full(len(items), -1, np.int64)
    kin: list[list[int]] = [[] for _ in range(len(items))]
    last: dict[tuple, int] = {}
    spans: dict[tuple[int, int], list[int]] = {}
    for i in range(len(items)):
        if items.fixed[i] >= 0:
            continue
        parts = slice(items.part_ptr[i], items.part_ptr[i + 1])
        first, stop = items.part_first[parts], items.part_last[parts]
        key = (
            int(items.align[i]),
            int(items.need[i]),
            tuple(first.tolist()),
            tuple(stop.tolist()),
            tuple(items.part_height[parts].tolist()),
        )
        twin[i] = last.get(key, -1)
        last[key] = i
        if len(first) == 1 and items.align[i] == items.grain and items.need[i] == items.size[i]:
            alike = spans.setdefault((int(first[0]), int(stop[0])), [])
            for j in alike:
                kin[j].append(i)
                kin[i].append(j)
            alike.append(i)
    return twin, kin


@loop
def _neighbours(
    ptr: NDArray[np.int64],
    pairs: NDArray[np.int64],
    part_ptr: NDArray[np.int64],
    part_first: NDArray[np.int64],
    part_last: NDArray[np.int64],
    part_height: NDArray[np.int64],
) -> None:
    """Fills `ptr` with nb_ptr of Model, and `pairs` with its rows nb_idx, nb_below and nb_above:
    each item's neighbours in time, least distances from it up to its neighbour and from that up to
    it.
    """
    n = len(part_ptr) - 1
    count = 0
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            down, up = 0, 0
            for p in range(part_ptr[i], part_ptr[i + 1]):
                for q in range(part_ptr[j], part_ptr[j + 1]):
                    if part_first[p] <= part_last[q] and part_first[q] <= part_last[p]:
                        down = max(down, part_height[p])
                        up = max(up, part_height[q])
            if down == 0:
                continue
            pairs[0, count], pairs[1, count], pairs[2, count] = j, down, up
            count += 1
        ptr[i + 1] = count


def _pins(
    nb_ptr: NDArray[np.int64], nb_idx: NDArray[np.int64], fixed: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Finds the pinned items that overlap each item in time, lowest offset first, as pin_ptr and
    pin_idx of Model. `nb_ptr`, `nb_idx`: item -> items that overlap it.
    """
    owner = np.repeat(np.arange(len(fixed)), np.diff(nb_ptr))
    entries = np.flatnonzero(fixed[nb_idx] >= 0)
    entries = entries[np.lexsort((fixed[nb_idx[entries]], owner[entries]))]
    return _pointers(owner[entries], len(fixed)), entries
