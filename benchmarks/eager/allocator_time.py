"""How long a step's allocations take: the C library's malloc and free, asked the same in turn.

They stand for an eager framework's allocator, which a plan does without: what a framework's own
takes, on whichever device, was not measured. The memory is not touched.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import numba
import numpy as np

from benchmarks.eager.graph import Program
from benchmarks.eager.requests import eager_requests

__all__ = ["allocator_time", "malloc_seconds"]

_REPEATS = 5


def allocator_time(program: Program) -> tuple[int, float]:
    """Requests of one step, and the seconds they take: the least of five steps.

    Arguments stay where they are from step to step. All else is made and freed once in a step,
    gradients and results at its end.
    """
    tensors = program.graph.tensors
    asked = [r for r in eager_requests(program) if not tensors[abs(r) - 1].live_in]
    freed = {-r for r in asked if r < 0}
    asked += [-r for r in asked if r > 0 and r not in freed]
    return len(asked), malloc_seconds(asked, [max(t.bytes, 1) for t in tensors])


def malloc_seconds(asked: Sequence[int], sizes: Sequence[int]) -> float:
    """Seconds that the C library takes for requests: k + 1 makes block k, -(k + 1) frees it."""
    requests, bytes = np.array(asked, np.int64), np.array(sizes, np.int64)
    replay = _replay()
    replay(requests, bytes)  # loads it, and fills the allocator's lists
    best = np.inf
    for _ in range(_REPEATS):
        started = time.perf_counter()
        replay(requests, bytes)
        best = min(best, time.perf_counter() - started)
    return best


def _replay():
    """The loop, compiled with the library's functions in it."""
    library = ctypes.CDLL(None)
    malloc, free = library.malloc, library.free
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_size_t
    free.argtypes, free.restype = [ctypes.c_size_t], None

    @numba.njit
    def run(requests, sizes):
        address = np.zeros(len(sizes), np.uint64)
        for request in requests:
            if request > 0:
                address[request - 1] = malloc(np.uint64(sizes[request - 1]))
            else:
                free(address[-request - 1])

    return run
