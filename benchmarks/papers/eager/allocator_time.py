"""The time that a step's allocations take, which a plan saves. The memory is not touched.

Two allocators get the same requests: malloc and free of the C library, which frameworks use on a
CPU, and a compiled version of PyTorch's caching allocator. The overhead of a framework around its
allocator is not included.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

import numba
import numpy as np

from benchmarks.papers.eager.compiled_allocator import CompiledAllocator
from benchmarks.papers.eager.graph import Program
from benchmarks.papers.eager.requests import eager_requests

_REPEATS = 5


def allocator_time(program: Program) -> tuple[int, float, float]:
    """Requests of one step, and the seconds that they take: of malloc, of a caching allocator.

    Arguments stay where they are from step to step. All else is made and freed once in a step,
    gradients and results at its end.
    """
    tensors = program.graph.tensors
    asked = [r for r in eager_requests(program) if not tensors[abs(r) - 1].live_in]
    freed = {-r for r in asked if r < 0}
    asked += [-r for r in asked if r > 0 and r not in freed]
    sizes = [max(t.bytes, 1) for t in tensors]
    return len(asked), malloc_seconds(asked, sizes), caching_seconds(asked, sizes)


def malloc_seconds(asked: Sequence[int], sizes: Sequence[int]) -> float:
    """Seconds that the C library takes for requests: k + 1 makes block k, -(k + 1) frees it."""
    requests, bytes = np.array(asked, np.int64), np.array(sizes, np.int64)
    replay = _replay()
    return _least(lambda: replay(requests, bytes))


def caching_seconds(asked: Sequence[int], sizes: Sequence[int]) -> float:
    """As `malloc_seconds`, of a caching allocator that has reserved all memory that it needs."""
    return _least(CompiledAllocator(asked, sizes).step)


def _least(step: Callable[[], object]) -> float:
    """Seconds of a step, the least of five after one that loads code and fills the allocator."""
    step()
    best = np.inf
    for _ in range(_REPEATS):
        started = time.perf_counter()
        step()
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
