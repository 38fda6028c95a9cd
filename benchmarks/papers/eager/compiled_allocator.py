"""The caching allocator of `allocator`, compiled, so that its requests can be timed.

The rules are those of `BlockSplittingAllocator`, and so is each byte that it reserves. Free blocks
of a pool lie in a sorted array. PyTorch's own keeps them in a tree, takes a lock and keeps
statistics: its requests hardly take less.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from benchmarks.papers.eager.allocator import (
    LARGE_SEGMENT,
    MIN_BLOCK,
    SEGMENT_ROUNDING,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    WHOLE_REQUEST,
)

_NONE = -1
_SIZE, _SEGMENT, _OFFSET, _BEFORE, _AFTER, _FREE, _FIELDS = range(7)
_RESERVED, _ALLOCATED, _SEGMENTS, _USED, _COUNTS = range(5)


class CompiledAllocator:
    """Serves one program's requests, step after step.

    Args:
      requests: of one step, in turn: k + 1 makes block k, -(k + 1) frees it.
      sizes: of the blocks, in bytes.
    """

    def __init__(self, requests: Sequence[int], sizes: Sequence[int]) -> None:
        self._requests = np.array(requests, np.int64)
        self._sizes = np.array(sizes, np.int64)
        self._blocks = np.zeros((0, _FIELDS), np.int64)
        self._spare = np.zeros(0, np.int64)  # records of blocks; [used:] are of none now
        self._pools = np.zeros((2, 0), np.int64)  # free blocks, ascending; small ones: 1
        self._lengths = np.zeros(2, np.int64)
        self._counts = np.zeros(_COUNTS, np.int64)
        self._holds = np.zeros(len(sizes), np.int64)

    @property
    def reserved(self) -> int:
        """Bytes taken from the device so far."""
        return int(self._counts[_RESERVED])

    @property
    def allocated(self) -> int:
        """Bytes of live blocks, rounding included."""
        return int(self._counts[_ALLOCATED])

    def step(self) -> None:
        """Serves all requests once."""
        self._make_room()
        _serve(
            self._requests,
            self._sizes,
            self._blocks,
            self._spare,
            self._pools,
            self._lengths,
            self._counts,
            self._holds,
        )

    def _make_room(self) -> None:
        """Allocates enough block records for a step in which every request splits a new segment."""
        room = len(self._spare)
        more = int(self._counts[_USED]) + 2 * len(self._sizes) - room
        if more > 0:
            self._blocks = np.pad(self._blocks, ((0, more), (0, 0)))
            self._spare = np.append(self._spare, np.arange(room, room + more))
            self._pools = np.pad(self._pools, ((0, 0), (0, more)))


@numba.njit
def _rounded(size, unit):
    return (size + unit - 1) // unit * unit


@numba.njit
def _precedes(blocks, a, b):
    """Whether block a comes before b in a pool: by size, segment, offset."""
    for field in (_SIZE, _SEGMENT, _OFFSET):
        if blocks[a, field] != blocks[b, field]:
            return blocks[a, field] < blocks[b, field]
    return False


@numba.njit
def _place_in(blocks, pool, length, block):
    """How many of the pool's blocks come before this one."""
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        if _precedes(blocks, pool[middle], block):
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit
def _insert(blocks, pools, lengths, small, block):
    pool = pools[small]
    at = _place_in(blocks, pool, lengths[small], block)
    for k in range(lengths[small], at, -1):
        pool[k] = pool[k - 1]
    pool[at] = block
    lengths[small] += 1


@numba.njit
def _remove(blocks, pools, lengths, small, block):
    pool = pools[small]
    for k in range(_place_in(blocks, pool, lengths[small], block), lengths[small] - 1):
        pool[k] = pool[k + 1]
    lengths[small] -= 1


@numba.njit
def _fitting(blocks, pools, lengths, small, size):
    """The least free block of at least `size` bytes, taken from its pool, or none."""
    pool, low, high = pools[small], 0, lengths[small]
    while low < high:
        middle = (low + high) // 2
        if blocks[pool[middle], _SIZE] < size:
            low = middle + 1
        else:
            high = middle
    if low == lengths[small]:
        return _NONE
    block = pool[low]
    for k in range(low, lengths[small] - 1):
        pool[k] = pool[k + 1]
    lengths[small] -= 1
    return block


@numba.njit
def _record(spare, counts):
    """A block's record that no block uses."""
    block = spare[counts[_USED]]
    counts[_USED] += 1
    return block


@numba.njit
def _reserve(blocks, spare, counts, small, size):
    """A block that is a whole new segment."""
    if small:
        segment = SMALL_SEGMENT
    elif size < WHOLE_REQUEST:
        segment = LARGE_SEGMENT
    else:
        segment = _rounded(size, SEGMENT_ROUNDING)
    block = _record(spare, counts)
    blocks[block, _SIZE], blocks[block, _SEGMENT] = segment, counts[_SEGMENTS]
    blocks[block, _OFFSET] = 0
    blocks[block, _BEFORE] = blocks[block, _AFTER] = _NONE
    counts[_SEGMENTS] += 1
    counts[_RESERVED] += segment
    return block


@numba.njit
def _allocate(blocks, spare, pools, lengths, counts, wanted):
    size = max(MIN_BLOCK, _rounded(wanted, MIN_BLOCK))
    small = 1 if size <= SMALL_REQUEST else 0
    block = _fitting(blocks, pools, lengths, small, size)
    if block == _NONE:
        block = _reserve(blocks, spare, counts, small, size)
    remainder = blocks[block, _SIZE] - size
    if (remainder >= MIN_BLOCK) if small else (remainder > SMALL_REQUEST):
        rest, after = _record(spare, counts), blocks[block, _AFTER]
        blocks[rest, _SIZE], blocks[rest, _SEGMENT] = remainder, blocks[block, _SEGMENT]
        blocks[rest, _OFFSET] = blocks[block, _OFFSET] + size
        blocks[rest, _BEFORE], blocks[rest, _AFTER], blocks[rest, _FREE] = block, after, 1
        if after != _NONE:
            blocks[after, _BEFORE] = rest
        blocks[block, _AFTER], blocks[block, _SIZE] = rest, size
        _insert(blocks, pools, lengths, small, rest)
    blocks[block, _FREE] = 0
    counts[_ALLOCATED] += blocks[block, _SIZE]
    return block


@numba.njit
def _merge(blocks, spare, counts, left, right):
    """Lets `left` swallow `right`, whose record is unused from then on."""
    blocks[left, _SIZE] += blocks[right, _SIZE]
    after = blocks[right, _AFTER]
    blocks[left, _AFTER] = after
    if after != _NONE:
        blocks[after, _BEFORE] = left
    counts[_USED] -= 1
    spare[counts[_USED]] = right


@numba.njit
def _free(blocks, spare, pools, lengths, counts, small, block):
    counts[_ALLOCATED] -= blocks[block, _SIZE]
    blocks[block, _FREE] = 1
    after = blocks[block, _AFTER]
    if after != _NONE and blocks[after, _FREE]:
        _remove(blocks, pools, lengths, small, after)
        _merge(blocks, spare, counts, block, after)
    before = blocks[block, _BEFORE]
    if before != _NONE and blocks[before, _FREE]:
        _remove(blocks, pools, lengths, small, before)
        _merge(blocks, spare, counts, before, block)
        block = before
    _insert(blocks, pools, lengths, small, block)


@numba.njit
def _serve(requests, sizes, blocks, spare, pools, lengths, counts, holds):
    for request in requests:
        if request > 0:
            size = sizes[request - 1]
            holds[request - 1] = _allocate(blocks, spare, pools, lengths, counts, size)
        else:
            size = max(MIN_BLOCK, _rounded(sizes[-request - 1], MIN_BLOCK))
            small = 1 if size <= SMALL_REQUEST else 0
            _free(blocks, spare, pools, lengths, counts, small, holds[-request - 1])
