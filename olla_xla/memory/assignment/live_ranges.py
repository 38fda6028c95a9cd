"""XLA's live ranges of all values under a schedule (HloLiveRange), as inclusive logical times."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.jit import inner, loop


class References(NamedTuple):
    """Where in the schedule values are defined and used, as numbered points that have no time yet:
    a point is an instruction's number; then come the starts of computations, then their ends.

    Attributes:
      start, end: int64 [values], where a value is defined, and where its definition ends.
      position_ptr, position_idx: value -> points of its other positions (CSR).
      use_ptr, use_idx: value -> points of its uses (CSR).
      readonly: bool [values], entry parameters that no output replaces: they live to the end.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    position_ptr: NDArray[np.int64]
    position_idx: NDArray[np.int64]
    use_ptr: NDArray[np.int64]
    use_idx: NDArray[np.int64]
    readonly: NDArray[np.bool_]


class LiveRanges(NamedTuple):
    """The live range of each value under a schedule.

    Attributes:
      start, end: int64 [values], inclusive logical times.
      by_start: int64, the values of each alias set, sorted by start; rows as in `AliasSets.ptr`.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    by_start: NDArray[np.int64]


def live_ranges(
    time: NDArray[np.int64],
    total: int,
    refs: References,
    set_ptr: NDArray[np.int64],
    set_idx: NDArray[np.int64],
) -> LiveRanges:
    """XLA's live ranges of all values. Where two in one buffer overlap, the earlier one is cut at
    the later one's start, and the later one lives at least until the earlier one's end.

    Args:
      time: int64 [points], logical time of every reference point. total: the schedule's end.
      refs: reference points of the values. set_ptr, set_idx: alias set (buffer) -> values (CSR).
    """
    n = len(refs.start)
    ranges = LiveRanges(
        start=np.empty(n, np.int64),
        end=np.empty(n, np.int64),
        by_start=set_idx.copy(),
    )
    _fill(time, total, refs, set_ptr, ranges.start, ranges.end, ranges.by_start)
    return ranges


@loop
def _fill(
    time: NDArray[np.int64],
    total: int,
    refs: References,
    set_ptr: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    by_start: NDArray[np.int64],
) -> None:
    """Writes all values' live ranges to `start` and `end`; sorts the values of each buffer (row of
    `set_ptr`) in `by_start` by start, and cuts their ranges as `live_ranges` says.
    """
    _whole(time, total, refs, start, end)
    for b in range(len(set_ptr) - 1):
        members = by_start[set_ptr[b] : set_ptr[b + 1]]
        _sort(members, start, end)
        for i in range(len(members) - 1):
            a, following = members[i], members[i + 1]
            end[following] = max(end[a], end[following])
            end[a] = min(end[a], start[following])


@inner
def _whole(
    time: NDArray[np.int64],
    total: int,
    refs: References,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
) -> None:
    """Writes each value's live range to `start` and `end`, before ranges in one buffer are cut."""
    for v in range(len(refs.start)):
        start[v] = time[refs.start[v]]
        stop = time[refs.end[v]]
        for e in range(refs.position_ptr[v], refs.position_ptr[v + 1]):
            stop = max(stop, time[refs.position_idx[e]])
        if refs.readonly[v]:
            stop = total
        else:
            for e in range(refs.use_ptr[v], refs.use_ptr[v + 1]):
                stop = max(stop, time[refs.use_idx[e]])
        end[v] = stop


@inner
def _sort(members: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> None:
    """Sorts values by (start, end, id), in place; sets are small."""
    for i in range(1, len(members)):
        v = members[i]
        j = i - 1
        while j >= 0 and (start[members[j]], end[members[j]], members[j]) > (start[v], end[v], v):
            members[j + 1] = members[j]
            j -= 1
        members[j + 1] = v
