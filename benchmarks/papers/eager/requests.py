"""Running a program eagerly: in program order, each tensor allocated when made.

A tensor is freed after its last reader, a result never; a gradient stays until the step has ended,
as it does in a framework whose optimizer runs after the whole backward pass. Results that replace
donated arguments are written into them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmarks.papers.eager.allocator import (
    Allocator,
    BlockSplittingAllocator,
    PowerOfTwoAllocator,
)
from benchmarks.papers.eager.graph import Program

ALLOCATORS: dict[str, type[Allocator]] = {
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
    life = _Life.of(program)
    made: list[list[int]] = [[] for _ in program.graph.operators]
    for number, t in enumerate(program.graph.tensors):
        if t.live_in or number in life.own:
            made[t.source].append(number)
    return [r for v, of in enumerate(made) for r in (*_make(of), *_free(life.dying[v]))]


def loop_requests(program: Program, steps: int) -> list[int]:
    """What a training loop asks of an allocator, as `eager_requests`.

    Arguments that are written to are kept: weights before all else, and in the first step, where it
    is first read, what only follows the backward pass, such as an optimizer's moments. All else is
    made in each step; other arguments at its beginning, and at its end they, its results and
    gradients are freed.
    """
    graph, life = program.graph, _Life.of(program)
    made: list[list[int]] = [[] for _ in graph.operators]
    for number in sorted(life.own):
        made[graph.tensors[number].source].append(number)
    last = max(program.backward, default=len(graph.operators))
    weights, given = [], []
    late: list[list[int]] = [[] for _ in graph.operators]
    for number, t in enumerate(graph.tensors):
        if not t.live_in:
            continue
        first = min(t.sinks, default=0)
        if t.buffer not in life.overwritten:
            given.append(number)
        elif first > last:
            late[first].append(number)
        else:
            weights.append(number)
    dies = {number for of in life.dying for number in of}
    ended = sorted({*life.own, *given} - dies)
    requests = _make(weights)
    for step in range(steps):
        requests += _make(given)
        for v, of in enumerate(made):
            first_made = late[v] if step == 0 else []
            requests += [*_make(first_made), *_make(of), *_free(life.dying[v])]
        requests += _free(ended)
    return requests


@dataclasses.dataclass(frozen=True)
class _Life:
    """When the tensors of a step are freed.

    Attributes:
      overwritten: buffers of donated arguments that results are written into.
      own: ids of tensors that are made in memory of their own and are no arguments.
      dying: by operator, ids of tensors, arguments too, that are freed after it.
    """

    overwritten: frozenset[int]
    own: frozenset[int]
    dying: list[list[int]]

    @classmethod
    def of(cls, program: Program) -> _Life:
        """Those of a program."""
        graph = program.graph
        arguments = {t.buffer for t in graph.tensors if t.live_in}
        overwritten = {t.buffer for t in graph.tensors if not t.live_in} & arguments
        own: set[int] = set()
        dying: list[list[int]] = [[] for _ in graph.operators]
        for number, t in enumerate(graph.tensors):
            if t.buffer in overwritten:
                continue  # kept, or written into what is
            if not t.live_in:
                own.add(number)
            if not (t.live_out or number in program.gradients):
                dying[max((t.source, *t.sinks))].append(number)
        return cls(frozenset(overwritten), frozenset(own), dying)


def _make(numbers: Sequence[int]) -> list[int]:
    return [number + 1 for number in numbers]


def _free(numbers: Sequence[int]) -> list[int]:
    return [-number - 1 for number in numbers]


def run_eagerly(program: Program, allocator: Allocator, steps: int | None = None) -> EagerRun:
    """Runs the program from an empty pool: once, or `steps` steps of a loop (`loop_requests`)."""
    tensors = program.graph.tensors
    requests = eager_requests(program) if steps is None else loop_requests(program, steps)
    handles: dict[int, int] = {}
    live = peak = at_reserve = 0
    unused = 0.0
    reserved = allocator.reserved
    for request in requests:
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
