"""Which allocations may take a live range: an index over the gaps of each.

Between the values of an allocation's own alias set there are gaps. Any other value in the
allocation that lives for more than an instant must lie in one of them. The index has for each
allocation the earliest begin and the latest end of a gap, and the extremes of these over aligned
runs of allocations, so that whole runs are skipped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.jit import inner

_NEVER = np.int64(2**62)
_BEGIN, _END = 0, 1


def new_gaps(count: int) -> NDArray[np.int64]:
    """Makes an empty index of the gaps in time of `count` allocations, for `put` and `previous`.

    Row capacity + k is place k's (earliest begin, latest end), row j that of rows 2j and 2j + 1.
    """
    capacity = 1
    while capacity < count:
        capacity *= 2
    gaps = np.empty((2 * capacity, 2), np.int64)
    gaps[:, _BEGIN] = _NEVER
    gaps[:, _END] = -1
    return gaps


@inner
def put(
    gaps: NDArray[np.int64],
    k: int,
    members: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    clock: int,
) -> None:
    """Enters into the index the spans of time in which an allocation has no live value.

    Args:
      gaps: the index, changed in place. k: the place.
      members: its values, in the order in which they begin.
      start, end: inclusive live ranges by value id, within [0, clock].
    """
    begin, until = _NEVER, np.int64(-1)
    past = np.int64(0)
    for v in members:
        if start[v] > past:
            begin, until = min(begin, past), max(until, start[v])
        past = max(past, end[v])
    if past < clock:
        begin, until = min(begin, past), _NEVER
    node = len(gaps) // 2 + k
    gaps[node, _BEGIN], gaps[node, _END] = begin, until
    while node > 1:
        node //= 2
        gaps[node, _BEGIN] = min(gaps[2 * node, _BEGIN], gaps[2 * node + 1, _BEGIN])
        gaps[node, _END] = max(gaps[2 * node, _END], gaps[2 * node + 1, _END])


@inner
def previous(gaps: NDArray[np.int64], k: int, start: int, end: int) -> int:
    """Searches the index backwards for an allocation that is free over the live range [start, end].

    Any may take a live range of one instant.
    """
    if start >= end:
        return k - 1
    capacity = len(gaps) // 2
    k -= 1
    while k >= 0:
        node = capacity + k
        if gaps[node, _BEGIN] <= start and gaps[node, _END] >= end:
            return k
        # The largest run that ends here and cannot take the live range is skipped.
        while node > 1 and node % 2:
            above = node // 2
            if gaps[above, _BEGIN] <= start and gaps[above, _END] >= end:
                break
            node = above
        while node < capacity:
            node *= 2
        k = node - capacity - 1
    return -1
