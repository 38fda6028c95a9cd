"""XLA's live ranges of all values under a schedule (HloLiveRange), as inclusive logical times."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["live_ranges"]


@njit(cache=True)
def live_ranges(
    time, start_ref, end_ref, pos_ptr, pos_ref, use_ptr, use_ref, readonly, total, buf_ptr, buf_val
):  # pragma: no cover
    """Start, end and last position of every value, aliased values cut apart.

    Args:
      time: logical time of every reference point (instructions, then computation starts, ends).
      start_ref, end_ref: reference points of definition and of its end, by value.
      pos_ptr, pos_ref: CSR of the other positions of each value.
      use_ptr, use_ref: CSR of uses.
      readonly: entry parameters that no output replaces live to `total`, the schedule's end.
      buf_ptr, buf_val: CSR of alias sets.

    Returns:
      (start, end, number of the position at which the value is last seen), by value.
    """
    n = len(start_ref)
    start = np.empty(n, np.int64)
    end = np.empty(n, np.int64)
    last = np.zeros(n, np.int64)
    for v in range(n):
        start[v] = time[start_ref[v]]
        stop = time[end_ref[v]]
        for e in range(pos_ptr[v], pos_ptr[v + 1]):
            t = time[pos_ref[e]]
            if t > stop:
                stop = t
                last[v] = e - pos_ptr[v] + 1
        if readonly[v]:
            stop = total
        else:
            for e in range(use_ptr[v], use_ptr[v + 1]):
                stop = max(stop, time[use_ref[e]])
        end[v] = stop
    for b in range(len(buf_ptr) - 1):
        lo, hi = buf_ptr[b], buf_ptr[b + 1]
        if hi - lo < 2:
            continue
        members = buf_val[lo:hi].copy()
        for i in range(1, len(members)):
            v = members[i]
            j = i - 1
            while j >= 0 and (start[members[j]], end[members[j]], members[j]) > (
                start[v],
                end[v],
                v,
            ):
                members[j + 1] = members[j]
                j -= 1
            members[j + 1] = v
        for i in range(len(members) - 1):
            a, b2 = members[i], members[i + 1]
            end[b2] = max(end[a], end[b2])
            end[a] = min(end[a], start[b2])
    return start, end, last
