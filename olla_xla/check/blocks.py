"""The independent referee of packings: blocks with lifetimes, sizes and offsets.

It shares no code with the placers, which it judges; it imports the error tree only.
"""

import bisect
from collections.abc import Mapping, Sequence

from olla_xla.errors import CheckError


def check_blocks(
    lower: Sequence[int],
    upper: Sequence[int],
    size: Sequence[int],
    offsets: Sequence[int],
    *,
    names: Sequence[str] | None = None,
    capacity: int | Mapping[int, int] | None = None,
    alignment: Sequence[int] | None = None,
    fixed: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
    space: Sequence[int] | None = None,
) -> dict[int, int]:
    """Checks that no two blocks that are live at once share a byte, and the constraints below.

    Raises CheckError, with the blocks' names, where they do not hold, or if lengths differ.

    Args:
      lower, upper: block i is live at the times lower[i], ..., upper[i] - 1, which is at least one.
      size: bytes. offsets: block i occupies bytes [offsets[i], offsets[i] + size[i]).
      names: for the messages; indices if None.
      capacity: bytes of every memory space, or by space, or None for no limit.
      alignment: of each block, in bytes; its offset must be a multiple of it.
      fixed: the offset that each block must have, or -1.
      group: blocks of one group must have one offset, and may overlap.
      space: memory space of each block (None: all 0); those of different spaces never conflict.

    Returns:
      Memory space -> the least capacity that holds its blocks, in bytes.
    """
    n = len(size)
    label = [str(i) for i in range(n)] if names is None else [str(x) for x in names]
    for what, values in (("lower", lower), ("upper", upper), ("offsets", offsets)):
        if len(values) != n:
            raise CheckError(f"{what} has {len(values)} values for {n} blocks")
    heights: dict[int, int] = {}
    for i in range(n):
        at = 0 if space is None else int(space[i])
        limit = capacity.get(at) if isinstance(capacity, Mapping) else capacity
        start, stop = int(offsets[i]), int(offsets[i]) + int(size[i])
        if start < 0 or (limit is not None and stop > limit):
            raise CheckError(
                f"block {label[i]} at [{start}, {stop}) exceeds the capacity of {limit} bytes"
            )
        if alignment is not None and start % int(alignment[i]):
            raise CheckError(
                f"block {label[i]} at offset {start} is not aligned to {int(alignment[i])} bytes"
            )
        if fixed is not None and fixed[i] >= 0 and start != fixed[i]:
            raise CheckError(f"block {label[i]} must be at {int(fixed[i])}, but is at {start}")
        heights[at] = max(heights.get(at, 0), stop)
    if group is not None:
        _check_groups(offsets, group, label)
    for at in heights:
        mine = [i for i in range(n) if (space is None or space[i] == at) and size[i] > 0]
        _check_overlaps(mine, lower, upper, size, offsets, label, group)
    return heights


def _check_groups(offsets: Sequence[int], group: Sequence[int], label: Sequence[str]) -> None:
    first: dict[int, int] = {}
    for i, g in enumerate(group):
        other = first.setdefault(int(g), i)
        if offsets[other] != offsets[i]:
            raise CheckError(
                f"blocks {label[other]} at offset {int(offsets[other])} and {label[i]} at offset "
                f"{int(offsets[i])} must have the same offset"
            )


def _check_overlaps(
    blocks: Sequence[int],
    lower: Sequence[int],
    upper: Sequence[int],
    size: Sequence[int],
    offsets: Sequence[int],
    label: Sequence[str],
    group: Sequence[int] | None,
) -> None:
    """Raises CheckError if two of `blocks` (indices), not of one group, share a time and a byte."""
    events = sorted(
        event for i in blocks for event in ((int(lower[i]), 1, i), (int(upper[i]), 0, i))
    )
    live: list[tuple[int, int, int]] = []  # (offset, end, block)
    for time, starts, i in events:
        entry = (int(offsets[i]), int(offsets[i]) + int(size[i]), i)
        at = bisect.bisect_left(live, entry)
        if not starts:
            del live[at]
            continue
        # Only members of one group may lie on each other, all at one offset: past the members of
        # i's own group, the nearest block on either side is the one that reaches furthest.
        left, right = at - 1, at
        while left >= 0 and _same(group, live[left][2], i):
            left -= 1
        while right < len(live) and _same(group, live[right][2], i):
            right += 1
        for other in (left, right):
            if not 0 <= other < len(live):
                continue
            start, end, j = live[other]
            if start < entry[1] and entry[0] < end:
                raise CheckError(
                    f"blocks {label[j]} at [{start}, {end}) and {label[i]} at [{entry[0]}, "
                    f"{entry[1]}) overlap, and both are live at time {time}"
                )
        live.insert(at, entry)


def _same(group: Sequence[int] | None, i: int, j: int) -> bool:
    return group is not None and group[i] == group[j]
