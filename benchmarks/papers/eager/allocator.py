"""Simulated caching allocators, as deep-learning frameworks use on top of a device's allocator.

They keep memory that was reserved from the device for reuse. Reserved bytes that hold nothing live
are fragmentation.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses

MIN_BLOCK = 512
"""Every request is rounded up to a multiple of this (bytes), as in PyTorch."""
SMALL_REQUEST = 1 << 20
"""The largest request that is served from the small pool."""
SMALL_SEGMENT = 2 << 20
"""What the small pool reserves at a time."""
LARGE_SEGMENT = 20 << 20
"""What a request below `WHOLE_REQUEST` reserves."""
WHOLE_REQUEST = 10 << 20
"""Requests from here on reserve their own size, rounded up to `SEGMENT_ROUNDING`."""
SEGMENT_ROUNDING = 2 << 20
LINEAR_CUTOFF = 16 << 20
"""Above this the power-of-two pool rounds up to multiples of it, as MXNet's does."""


class Allocator(abc.ABC):
    """Allocates and frees; counts bytes.

    Attributes:
      allocated: bytes of live blocks, rounding included. peak_allocated: the most so far.
      reserved: bytes taken from the device; never given back.
    """

    def __init__(self) -> None:
        self.allocated = 0
        self.peak_allocated = 0
        self.reserved = 0
        self._handles = 0

    @abc.abstractmethod
    def allocate(self, size: int) -> int:
        """A block of at least `size` bytes; returns its handle."""

    @abc.abstractmethod
    def free(self, handle: int) -> None:
        """Gives a block back to its pool."""

    def _handed_out(self, size: int) -> int:
        """Counts a block of `size` bytes that is live now; its handle."""
        self.allocated += size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self._handles += 1
        return self._handles


@dataclasses.dataclass(eq=False, slots=True)
class _Block:
    """[offset, offset + size) of a segment, between its neighbours there."""

    segment: int
    offset: int
    size: int
    small: bool
    free: bool = True
    before: _Block | None = None
    after: _Block | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        return self.size, self.segment, self.offset


class BlockSplittingAllocator(Allocator):
    """Best fit over split and coalesced blocks, in a small and a large pool, on one stream.

    The rules and constants of PyTorch's CUDACachingAllocator with its default settings and no
    memory limit: the least free block that fits, lowest address first on ties; a remainder is split
    off at 512 bytes or more in the small pool, above 1 MiB in the large one; freed blocks merge
    with free neighbours of their segment.
    """

    def __init__(self) -> None:
        super().__init__()
        self._segments = 0
        self._live: dict[int, _Block] = {}
        # By pool (small: 1): keys ascending, and the blocks they stand for.
        self._keys: tuple[list[tuple[int, int, int]], ...] = ([], [])
        self._blocks: dict[tuple[int, int, int], _Block] = {}

    def allocate(self, size: int) -> int:
        """A block of at least `size` bytes; returns its handle."""
        size = max(MIN_BLOCK, _rounded(size, MIN_BLOCK))
        small = size <= SMALL_REQUEST
        block = self._fitting(size, small) or self._reserve(size, small)
        remainder = block.size - size
        if remainder >= MIN_BLOCK if small else remainder > SMALL_REQUEST:
            rest = _Block(block.segment, block.offset + size, remainder, small)
            rest.before, rest.after = block, block.after
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.size = rest, size
            self._insert(rest)
        block.free = False
        handle = self._handed_out(block.size)
        self._live[handle] = block
        return handle

    def free(self, handle: int) -> None:
        """Gives a block back to its pool, merged with its free neighbours."""
        block = self._live.pop(handle)
        self.allocated -= block.size
        block.free = True
        if block.after is not None and block.after.free:
            self._merge(block, block.after, taken=block.after)
        if block.before is not None and block.before.free:
            self._merge(block.before, block, taken=block.before)
            block = block.before
        self._insert(block)

    def _merge(self, left: _Block, right: _Block, taken: _Block) -> None:
        """Lets `left` swallow `right`; `taken` is the one of them that lies in the pool."""
        self._remove(taken)
        left.size += right.size
        left.after = right.after
        if left.after is not None:
            left.after.before = left

    def _fitting(self, size: int, small: bool) -> _Block | None:
        keys = self._keys[small]
        at = bisect.bisect_left(keys, (size, -1, -1))
        if at == len(keys):
            return None
        block = self._blocks[keys[at]]
        self._remove(block)
        return block

    def _reserve(self, size: int, small: bool) -> _Block:
        if small:
            segment = SMALL_SEGMENT
        elif size < WHOLE_REQUEST:
            segment = LARGE_SEGMENT
        else:
            segment = _rounded(size, SEGMENT_ROUNDING)
        self.reserved += segment
        self._segments += 1
        return _Block(self._segments, 0, segment, small)

    def _insert(self, block: _Block) -> None:
        bisect.insort(self._keys[block.small], block.key)
        self._blocks[block.key] = block

    def _remove(self, block: _Block) -> None:
        keys = self._keys[block.small]
        del keys[bisect.bisect_left(keys, block.key)]
        del self._blocks[block.key]


class PowerOfTwoAllocator(Allocator):
    """A pool of blocks whose sizes are powers of two: no splitting, no merging.

    A request is rounded up to a power of two of at least 512 bytes, above 16 MiB to a multiple of
    16 MiB, and served from free blocks of exactly that size (MXNet's rounded storage manager).
    """

    def __init__(self) -> None:
        super().__init__()
        self._free: dict[int, int] = {}
        self._live: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        """A block of at least `size` bytes; returns its handle."""
        size = max(size, MIN_BLOCK)
        if size > LINEAR_CUTOFF:
            size = _rounded(size, LINEAR_CUTOFF)
        else:
            size = 1 << (size - 1).bit_length()
        if self._free.get(size, 0):
            self._free[size] -= 1
        else:
            self.reserved += size
        handle = self._handed_out(size)
        self._live[handle] = size
        return handle

    def free(self, handle: int) -> None:
        """Gives a block back to the pool of its size."""
        size = self._live.pop(handle)
        self.allocated -= size
        self._free[size] = self._free.get(size, 0) + 1


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
