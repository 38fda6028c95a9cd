"""Allocation reuse: which allocation each alias set gets, or none if it goes to the heap.

XLA takes alias sets by decreasing size. Constants, entry arguments and tuple tables get allocations
of their own. Any other set first tries the allocations of its instruction's operands, then every
reusable allocation from the newest to the oldest; one that is live to the end then gets its own.
"""

import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.assignment.live_ranges import LiveRanges
from olla_xla.memory.jit import inner, loop


class AliasSetKind(enum.IntEnum):
    """How XLA allocates a set of aliased values, such as an argument's or a temporary's."""

    TEMP = 0
    CONSTANT = 1
    ARGUMENT = 2
    TUPLE = 3


class AliasSets(NamedTuple):
    """Alias sets: values that share one buffer in every order.

    Attributes:
      ptr, idx: set -> values (CSR).
      bytes: int64 [sets], the largest of its values. kind: int64 [sets], an AliasSetKind.
      live_out, readonly: bool [sets], holds an output; holds an argument that no output replaces.
      operand_ptr, operand_idx: set -> values whose allocations are tried first (CSR).
      color: int64 [sets], memory space. position: int64 [sets], number of its first instruction.
    """

    ptr: NDArray[np.int64]
    idx: NDArray[np.int64]
    operand_ptr: NDArray[np.int64]
    operand_idx: NDArray[np.int64]
    bytes: NDArray[np.int64]
    kind: NDArray[np.int64]
    live_out: NDArray[np.bool_]
    readonly: NDArray[np.bool_]
    color: NDArray[np.int64]
    position: NDArray[np.int64]


class Links(NamedTuple):
    """For each value, the other values whose memory it may take or must stay away from (CSR).

    Attributes:
      share_ptr, share_idx: operands whose memory the value may take over.
      copied_ptr, copied_idx: what a copy reads, which must not lie where the copy writes.
    """

    share_ptr: NDArray[np.int64]
    share_idx: NDArray[np.int64]
    copied_ptr: NDArray[np.int64]
    copied_idx: NDArray[np.int64]


class AllocationReuse(NamedTuple):
    """In which allocation each value of a module lies, before temporaries are packed into a heap.

    Attributes:
      allocation: int64 [values], numbered as made; -1 for the heap.
      bytes: int64 [allocations].
      counted: bool [allocations], holds an argument or output, as XLA counts them.
      temporary: bool [allocations], a tuple table that is no output: part of temp.
    """

    allocation: NDArray[np.int64]
    bytes: NDArray[np.int64]
    counted: NDArray[np.bool_]
    temporary: NDArray[np.bool_]


class _Allocations(NamedTuple):
    """The allocations so far; arrays are long enough for one allocation for each alias set.

    Attributes:
      allocation: int64 [values], allocation or -1. bytes, color: int64 [allocations].
      usable: bool [allocations], whether other sets may be put in.
      head, tail, following: an allocation's values as a linked list; following: int64 [values].
      usables: int64, usable allocations in the order made. gaps: when each is free (`new_gaps`).
    """

    allocation: NDArray[np.int64]
    bytes: NDArray[np.int64]
    color: NDArray[np.int64]
    usable: NDArray[np.bool_]
    head: NDArray[np.int64]
    tail: NDArray[np.int64]
    following: NDArray[np.int64]
    usables: NDArray[np.int64]
    gaps: NDArray[np.int64]


def reuse_allocations(
    sets: AliasSets, links: Links, ranges: LiveRanges, order: NDArray[np.int64]
) -> AllocationReuse:
    """Simulates how XLA puts alias sets (values that share one buffer) into allocations made before
    or new ones, or leaves them for the heap. `order`: int64 [any], sets, as it takes them.
    """
    n, m = len(ranges.start), len(sets.bytes)
    made = _Allocations(
        allocation=np.full(n, -1, np.int64),
        bytes=np.zeros(m, np.int64),
        color=np.zeros(m, np.int64),
        usable=np.zeros(m, np.bool_),
        head=np.full(m, -1, np.int64),
        tail=np.full(m, -1, np.int64),
        following=np.full(n, -1, np.int64),
        usables=np.empty(m, np.int64),
        gaps=new_gaps(m),
    )
    counted = np.zeros(m, np.bool_)
    temporary = np.zeros(m, np.bool_)
    count = _fill(sets, links, ranges, order, made, counted, temporary)
    return AllocationReuse(made.allocation, made.bytes[:count], counted[:count], temporary[:count])


@loop
def _fill(
    sets: AliasSets,
    links: Links,
    ranges: LiveRanges,
    order: NDArray[np.int64],
    made: _Allocations,
    counted: NDArray[np.bool_],
    temporary: NDArray[np.bool_],
) -> int:
    """Puts alias sets, in `order`, into old or new allocations, or leaves them for the heap;
    returns how many allocations there are. Writes `made`, and for each allocation `counted` and
    `temporary` (see `AllocationReuse`).
    """
    # Python literals here would make numba compile the functions that get them twice.
    clock, usables = np.int64(0), np.int64(0)
    for v in range(len(ranges.end)):
        clock = max(clock, ranges.end[v])
    count = 0
    for b in order:
        allocation = -1
        members = sets.idx[sets.ptr[b] : sets.ptr[b + 1]]
        if sets.kind[b] == AliasSetKind.TEMP:
            allocation = _find(sets, links, ranges, made, b, usables)
            if allocation < 0 and not sets.live_out[b]:
                continue
        if allocation < 0:
            allocation = count
            count += 1
            kind = sets.kind[b]
            made.bytes[allocation], made.color[allocation] = sets.bytes[b], sets.color[b]
            counted[allocation] = kind == AliasSetKind.ARGUMENT or (
                kind != AliasSetKind.CONSTANT and sets.live_out[b]
            )
            temporary[allocation] = kind == AliasSetKind.TUPLE and not sets.live_out[b]
            replaced = kind == AliasSetKind.ARGUMENT and not sets.readonly[b]
            made.usable[allocation] = kind == AliasSetKind.TEMP or replaced
            if made.usable[allocation]:
                made.usables[usables] = allocation
                members_by_start = ranges.by_start[sets.ptr[b] : sets.ptr[b + 1]]
                put(made.gaps, usables, members_by_start, ranges.start, ranges.end, clock)
                usables += 1
        _move_in(made, members, allocation)
    return count


@inner
def _find(
    sets: AliasSets, links: Links, ranges: LiveRanges, made: _Allocations, b: int, usables: int
) -> int:
    """The first allocation into which alias set `b` fits (XLA's MaybeAssignBuffer); -1 if none
    does. `usables`: how many of those made may take other sets. Its loop is the hottest of all. It
    calls nothing that takes many arrays (see jit.py), unless one value starts as another ends.
    """
    lo, hi = sets.ptr[b], sets.ptr[b + 1]
    first = sets.idx[lo]
    tried, k = sets.operand_ptr[b], usables
    while True:
        if tried < sets.operand_ptr[b + 1]:
            allocation = made.allocation[sets.operand_idx[tried]]
            tried += 1
            if allocation < 0:
                continue
        else:
            k = previous(made.gaps, k, ranges.start[first], ranges.end[first])
            if k < 0:
                return -1
            allocation = made.usables[k]
            if sets.live_out[b] and made.bytes[allocation] != sets.bytes[b]:
                return -1  # allocations only grow from here
        if not made.usable[allocation] or made.color[allocation] != sets.color[b]:
            continue
        if made.bytes[allocation] < sets.bytes[b]:
            continue
        if sets.live_out[b] and made.bytes[allocation] != sets.bytes[b]:
            continue
        fits, a = True, made.head[allocation]
        while fits and a >= 0:
            for e in range(lo, hi):
                v = sets.idx[e]
                if ranges.start[a] <= ranges.end[v] and ranges.start[v] <= ranges.end[a]:
                    fits = ranges.end[v] == ranges.start[a] or ranges.end[a] == ranges.start[v]
                    fits = fits and _passes(links, ranges, a, v)
                for f in range(links.copied_ptr[v], links.copied_ptr[v + 1]):
                    fits = fits and links.copied_idx[f] != a
                if not fits:
                    break
            a = made.following[a]
        if fits:
            return int(allocation)


@inner
def _move_in(made: _Allocations, members: NDArray[np.int64], allocation: int) -> None:
    """Appends an alias set's values, `members`, to those in an allocation, in place."""
    for v in members:
        made.allocation[v] = allocation
        if made.head[allocation] < 0:
            made.head[allocation] = v
        else:
            made.following[made.tail[allocation]] = v
        made.tail[allocation] = v


@inner
def _passes(links: Links, ranges: LiveRanges, a: int, b: int) -> bool:
    """Whether two values, one of which starts as the other ends, may share memory: if the later one
    may take over the other's (XLA's LiveRangeInterferes).
    """
    if ranges.end[b] == ranges.start[a]:
        a, b = b, a
    for e in range(links.share_ptr[b], links.share_ptr[b + 1]):
        if links.share_idx[e] == a:
            return True
    return False


# Which allocations may take a live range: an index over the gaps of each.
#
# Between the values of an allocation's own alias set there are gaps. Any other value in the
# allocation that lives for more than an instant must lie in one of them. The index has for each
# allocation the earliest begin and the latest end of a gap, and the extremes of these over aligned
# runs of allocations, so that whole runs are skipped.


_NEVER = np.int64(2**62)
_BEGIN, _END = 0, 1


def new_gaps(count: int) -> NDArray[np.int64]:
    """Makes an empty index of the times at which `count` allocations are free, for `put` and
    `previous`. Row capacity + k has when the k-th one is first free and until when it is last free,
    row j the least and the greatest of rows 2j and 2j + 1; capacity: half of the rows.
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
    """Enters into the index `gaps` (`new_gaps`) from when on the k-th allocation is first free of
    live values, and until when it is last free.

    Args:
      gaps: the index, changed in place.
      members: values in the allocation, in the order in which they begin.
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
    """The last allocation before the `k`-th that may be free over [start, end] by the index `gaps`
    (`new_gaps`), by number; -1 if none. It may be taken after all. k - 1 if start >= end.
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
