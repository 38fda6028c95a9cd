"""Sections: the maximal sets of blocks that are live together, found by a sweep over time.
Two blocks overlap in time exactly if they share a section, and a packing fits a capacity exactly if
it does so in every section; so the placers use sections instead of times.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.lifetimes import live_bytes
from olla_xla.place.problem import PlacementProblem


@dataclasses.dataclass(frozen=True, eq=False)
class Items:
    """The items to place in one memory space: blocks, those of a group with one offset as one item.

    A section is a maximal set of blocks that are live together; sections are numbered over time.
    Item i covers sections part_first[p], ..., part_last[p] with part_height[p] bytes for each of
    its parts p in range(part_ptr[i], part_ptr[i + 1]); its parts share no section.

    Attributes:
      count: number of sections.
      part_ptr, part_first, part_last, part_height: see above; heights are rounded up to `grain`.
      size: [items] the largest height of the item's parts (bytes).
      need: [items] the same, not rounded (bytes).
      align: [items] bytes. fixed: [items] pinned offset or -1 (bytes).
      span: [items] time it is live. lower, upper: [items] from its first time to past its last.
      grain: bytes of which all offsets are multiples.
      ids: [items] the item's number among all items of the memory space.
    """

    count: int
    part_ptr: NDArray[np.int64]
    part_first: NDArray[np.int64]
    part_last: NDArray[np.int64]
    part_height: NDArray[np.int64]
    size: NDArray[np.int64]
    need: NDArray[np.int64]
    align: NDArray[np.int64]
    fixed: NDArray[np.int64]
    span: NDArray[np.int64]
    lower: NDArray[np.int64]
    upper: NDArray[np.int64]
    grain: int
    ids: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.size)

    def owner(self) -> NDArray[np.int64]:
        """Lists the item that each part belongs to, int64 [parts]; a part is a range of sections in
        which an item is live with one height in bytes.
        """
        return np.repeat(np.arange(len(self)), np.diff(self.part_ptr))

    def loads(self) -> NDArray[np.int64]:
        """Sums the bytes live in each section, a maximal set of items live together, with heights
        rounded up to `grain`: int64 [count].
        """
        return live_bytes(self.part_first, self.part_last + 1, self.part_height, self.count)


def items_of(problem: PlacementProblem, space: int) -> tuple[Items, NDArray[np.int64]]:
    """Joins the blocks of one memory space into items (a block, or a group that shares one offset)
    and finds the sections, the maximal sets of items live together. Returns (items, int64 [blocks]:
    the item of each block; -1 in other spaces, or where a group has no bytes).
    """
    mine = np.flatnonzero((problem.space == space) & (problem.size > 0))
    groups = np.unique(problem.group[mine])
    n = len(groups)
    item = np.full(len(problem), -1, np.int64)
    near = np.minimum(np.searchsorted(groups, problem.group), max(n - 1, 0))
    known = np.flatnonzero((problem.space == space) & np.isin(problem.group, groups))
    item[known] = near[known]
    align = np.ones(n, np.int64)
    np.lcm.at(align, item[known], problem.alignment[known])
    grain = int(np.gcd.reduce(align)) if n else 1
    owner, lower, upper, raw = parts_of(problem, mine, item)
    height = -(-raw // grain) * grain
    first, last, count = _sweep(lower, upper)
    order = np.lexsort((first, owner))
    owner, first, last, height = owner[order], first[order], last[order], height[order]
    ptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=n), out=ptr[1:])
    size, need, span = (np.zeros(n, np.int64) for _ in range(3))
    fixed = np.full(n, -1, np.int64)
    np.maximum.at(size, owner, height)
    np.maximum.at(need, item[mine], problem.size[mine])
    np.add.at(span, owner, (upper - lower)[order])
    fixed[item[mine]] = problem.fixed[mine]
    limits = np.iinfo(np.int64)
    begin, end = np.full(n, limits.max), np.full(n, limits.min)
    np.minimum.at(begin, item[mine], problem.lower[mine])
    np.maximum.at(end, item[mine], problem.upper[mine])
    items = Items(
        count=count,
        part_ptr=ptr,
        part_first=first,
        part_last=last,
        part_height=height,
        size=size,
        need=need,
        align=align,
        fixed=fixed,
        span=span,
        lower=begin,
        upper=end,
        grain=grain,
        ids=np.arange(n),
    )
    return items, item


def parts_of(
    problem: PlacementProblem, blocks: NDArray[np.int64], item: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Divides the life of items into parts: intervals [lower, upper) with the bytes of the largest
    block live then. `blocks`: numbers of those to look at; `item`: each block's item.
    Returns int64 [parts] each: item, lower, upper (times of the problem), bytes.
    """
    members = np.bincount(item[blocks])
    single = blocks[members[item[blocks]] == 1]
    rows = [
        np.stack([item[single], problem.lower[single], problem.upper[single], problem.size[single]])
    ]
    shared = blocks[members[item[blocks]] > 1]
    shared = shared[np.argsort(item[shared], kind="stable")]
    for group in np.split(shared, np.flatnonzero(np.diff(item[shared])) + 1):
        if len(group):
            rows.append(_profile(int(item[group[0]]), problem, group))
    owner, lower, upper, size = np.concatenate(rows, axis=1)
    return owner, lower, upper, size


def _profile(item: int, problem: PlacementProblem, group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Computes an item's parts, intervals with the bytes of the largest block of `group` live then:
    int64 [4, parts]; rows: item, lower, upper (time), bytes.
    """
    points = np.unique(np.concatenate([problem.lower[group], problem.upper[group]]))
    height = np.zeros(len(points), np.int64)
    for block in group:
        at = slice(*np.searchsorted(points, [problem.lower[block], problem.upper[block]]))
        height[at] = np.maximum(height[at], problem.size[block])
    starts = np.flatnonzero(np.diff(height, prepend=0))
    keep = height[starts] > 0
    stops = np.append(starts[1:], len(points) - 1)[keep]
    starts = starts[keep]
    return np.stack([np.full(len(starts), item), points[starts], points[stops], height[starts]])


def _sweep(
    lower: NDArray[np.int64], upper: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Finds sections: maximal sets of intervals [lower, upper) that overlap, numbered over time.
    A section ends where an end follows a start; ends come before starts at equal times. Returns
    (first section of each interval, last section of each, number of sections).
    """
    n = len(lower)
    times = np.concatenate([upper, lower])
    starts = np.repeat([False, True], n)
    order = np.lexsort((starts, times))
    place = np.empty(2 * n, np.int64)
    place[order] = np.arange(2 * n)
    kind = starts[order]
    sections = np.flatnonzero(~kind[1:] & kind[:-1]) + 1
    first = np.searchsorted(sections, place[n:], side="left")
    last = np.searchsorted(sections, place[:n], side="right") - 1
    return first, last, len(sections)


def load_bound(items: Items) -> int:
    """Computes a lower bound in bytes on the height of any packing: the most bytes live in a
    section (maximal set of items live together), or the highest end of a pinned item if that is
    higher. A section's topmost block needs no padding, so the largest padding there is left out.
    """
    bound = int(np.max(items.fixed + items.need, where=items.fixed >= 0, initial=0))
    loads = items.loads()
    owner = items.owner()
    for section in np.argsort(-loads, kind="stable"):
        if loads[section] - (items.grain - 1) <= bound:
            break
        live = (items.part_first <= section) & (section <= items.part_last)
        # An item's padding is known where its largest part is live, and at least 0 elsewhere; the
        # bound must not be too high, so the largest that is possible is taken.
        whole = items.part_height[live] == items.size[owner[live]]
        padding = np.where(whole, (items.size - items.need)[owner[live]], items.grain - 1)
        bound = max(bound, int(loads[section] - padding.max()))
    return bound


def subset(items: Items, chosen: NDArray[np.int64]) -> Items:
    """Makes a packing problem of the items `chosen` (int64, numbers) alone, with sections (maximal
    sets of items live together) of its own.
    """
    chosen = np.asarray(chosen, np.int64)
    counts = np.diff(items.part_ptr)[chosen]
    ptr = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(counts, out=ptr[1:])
    parts = np.arange(ptr[-1]) + np.repeat(items.part_ptr[chosen] - ptr[:-1], counts)
    first, last, count = _sweep(items.part_first[parts], items.part_last[parts] + 1)
    fields = ("size", "need", "align", "fixed", "span", "lower", "upper", "ids")
    return dataclasses.replace(
        items,
        count=count,
        part_ptr=ptr,
        part_first=first,
        part_last=last,
        part_height=items.part_height[parts],
        **{name: getattr(items, name)[chosen] for name in fields},
    )


def independent(items: Items) -> Sequence[Items]:
    """Splits a packing problem into problems that share no time, to be packed separately; an item
    takes all time from the start of its first part to the end of its last one.
    """
    if not len(items):
        return []
    first = np.minimum.reduceat(items.part_first, items.part_ptr[:-1])
    last = np.maximum.reduceat(items.part_last, items.part_ptr[:-1])
    borders = np.flatnonzero(live_bytes(first, last, 1, items.count)[:-1] == 0)
    if not len(borders):
        return [items]
    place = np.searchsorted(borders, first, side="left")
    return [subset(items, np.flatnonzero(place == k)) for k in range(len(borders) + 1)]
