"""Snappy in a compiled loop: it takes the most time in reading a GPU's executable in Python.

The format is google/snappy, format_description.txt.
"""

import numpy as np
from numpy.typing import NDArray

from hlo.module import HloError
from hlo.wire import read_varint
from olla_xla.memory.jit import loop

_MOST = 64  # most bytes that one compressed byte can stand for: a copy of 64 takes at least two


def unsnapped(data: bytes) -> bytes:
    """Decompresses Snappy data; HloError if `data` was not compressed by Snappy."""
    total, at = read_varint(data, 0)
    if total <= _MOST * len(data):
        out = np.empty(total, np.uint8)
        if _fill(np.frombuffer(bytearray(data), np.uint8), at, out) == total:
            return out.tobytes()
    raise HloError("not compressed by Snappy")


@loop
def _fill(data: NDArray[np.uint8], at: int, out: NDArray[np.uint8]) -> int:
    """Decompresses `data` into `out`, from the first tag, at byte `at`, on. Returns how many bytes
    it wrote; -1 if the data is not valid.
    """
    end, total, n = len(data), len(out), 0
    while at < end:
        tag = int(np.int64(data[at]))
        kind, at = tag & 3, at + 1
        width = kind if kind < 3 else 4  # bytes of a size or a distance
        size = (tag >> 2) + 1
        if kind == 0:
            width = size - 60 if size > 60 else 0
        elif kind == 1:
            size = (tag >> 2 & 7) + 4
        if at + width > end:
            return -1
        number = 0
        for k in range(width):
            number |= int(np.int64(data[at + k])) << (8 * k)
        at += width
        if kind == 0:
            size = number + 1 if width else size
            if size > end - at or size > total - n:
                return -1
            for k in range(size):
                out[n + k] = data[at + k]
            at += size
        else:
            back = (tag >> 5) << 8 | number if kind == 1 else number
            if back < 1 or back > n or size > total - n:
                return -1
            for k in range(size):  # one by one: a copy may go on with what it has just written
                out[n + k] = out[n + k - back]
        n += size
    return n
