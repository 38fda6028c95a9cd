"""Running a program eagerly: in program order, each tensor allocated when made.

A tensor is freed after its last reader, a result never; a gradient stays until the step has ended,
as it does in a framework whose optimizer runs after the whole backward pass. Results that replace
donated arguments are written into them.
"""

from __future__ import annotations

import dataclasses

from benchmarks.eager.allocator import Allocator, BlockSplittingAllocator, PowerOfTwoAllocator
from benchmarks.eager.graph import Program

__all__ = ["ALLOCATORS", "EagerRun", "eager_requests", "run_eagerly"]

ALLOCATORS: dict[str, type[BlockSplittingAllocator] | type[PowerOfTwoAllocator]] = {
    "block splitting": BlockSplittingAllocator,
    "power of two": PowerOfTwoAllocator,
}
"""Name -> allocator."""


@dataclasses.dataclass(frozen=True)
class EagerRun:
    """Memory of one run. Bytes.

    Attributes:
      peak_live_bytes: the most that tensors took at a time, unrounded.
      peak_allocated_bytes: the same in the allocator's blocks.
      peak_reserved_bytes: what the allocator took from the device.
      fragmentation: share of the reserved bytes that no live tensor's block held at the moment the
        reservation reached its peak: (reserved - allocated) / reserved, as in the OLLA paper.
      peak_fragmentation: the same share when most bytes were live.
    """

    peak_live_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fragmentation: float
    peak_fragmentation: float


def eager_requests(program: Program) -> list[int]:
    """What one step asks of an allocator, in turn: t + 1 makes tensor t, -(t + 1) frees it."""
    graph = program.graph
    made: list[list[int]] = [[] for _ in graph.operators]
    dying: list[list[int]] = [[] for _ in graph.operators]
    arguments = {t.buffer for t in graph.tensors if t.live_in}
    overwritten = {t.buffer for t in graph.tensors if not t.live_in} & arguments
    for number, t in enumerate(graph.tensors):
        if t.buffer in overwritten and not t.live_in:
            continue  # written into a donated argument
        made[t.source].append(number + 1)
        if not (t.live_out or number in program.gradients or t.buffer in overwritten):
            dying[max((t.source, *t.sinks))].append(-number - 1)
    return [r for v in range(len(graph.operators)) for r in (*made[v], *dying[v])]


def run_eagerly(program: Program, allocator: Allocator) -> EagerRun:
    """Runs the program once, from an empty pool."""
    tensors = program.graph.tensors
    handles: dict[int, int] = {}
    live = peak = at_reserve = 0
    unused = 0.0
    reserved = allocator.reserved
    for request in eager_requests(program):
        size = tensors[abs(request) - 1].bytes
        if request < 0:
            allocator.free(handles.pop(-request))
            live -= size
            continue
        handles[request] = allocator.allocate(size)
        live += size
        if live > peak:
            peak, unused = live, 1 - allocator.allocated / max(allocator.reserved, 1)
        if allocator.reserved > reserved:
            reserved, at_reserve = allocator.reserved, allocator.allocated
    share = (reserved - at_reserve) / reserved if reserved else 0.0
    return EagerRun(peak, allocator.peak_allocated, reserved, share, unused)
