"""How often each step is made again: m(v) of Chen et al. 2016, algorithm 2, given and found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import InputError
from olla_xla.segments.budget import Segment
from olla_xla.segments.walk import Walk

MOST_AGAIN = 100_000
"""Steps that all segments together run once more, at most: where each of n segments reads what all
before it make, they are n^2."""


def mirrored_segments(walk: Walk, counts: Sequence[int]) -> tuple[Segment, ...]:
    """Segments for given numbers of recomputations of each step (m of the paper's algorithm 2).

    A step of count 0 ends a segment, which is recomputed from the one before; steps of count 1 end
    its inner segments, and so on. What crosses a segment's end and has a greater count is not kept
    for it: the segment that reads it makes it once more, from what is kept (`Segment.again`). The
    last step of all is made again with its segment. `mirror_counts` gives the resulting counts.

    Args:
      walk: the forward pass.
      counts: by step, how often it is to be recomputed, at least 0. Fixed steps have 0.

    Raises:
      InputError: more than MOST_AGAIN steps would be run once more.
    """
    asked = np.where(walk.fixed, 0, np.asarray(counts, np.int64))
    reads = _reads(walk)
    found: list[Segment] = []
    start = total = 0
    while start < len(walk):
        stop = _end(walk, asked, reads, start)
        again = () if walk.fixed[start] else _again(reads, asked, start, stop)
        total += len(again)
        if total > MOST_AGAIN:
            raise InputError(
                f"mirror makes segments repeat more than {MOST_AGAIN:,} steps of earlier segments; "
                "return 0 for some values that are read far from where they are made"
            )
        deeper = asked[start:stop] - 1
        inner = (
            mirrored_segments(walk.part(start, stop), deeper.tolist()) if deeper.max() > 0 else ()
        )
        found.append(Segment(start, stop, bool(asked[start] > 0 or again), inner, again))
        start = stop
    return tuple(found)


def _end(walk: Walk, asked: NDArray[np.int64], reads: list[list[int]], start: int) -> int:
    """Where the segment that begins at a step stops.

    A kept step needs no segment, unless it reads what is not kept: then it is one by itself.
    """

    def reads_lost(step: int) -> bool:
        return any(asked[u] > 0 for u in reads[step])

    stop = start + 1
    recomputed = asked[start] > 0
    if walk.fixed[start] or (not recomputed and reads_lost(start)):
        return stop
    while stop < len(walk) and not walk.fixed[stop]:
        if asked[stop - 1] <= 0 if recomputed else asked[stop] > 0 or reads_lost(stop):
            break
        stop += 1
    return stop


def _reads(walk: Walk) -> list[list[int]]:
    """By step, the steps that make what it reads."""
    found: list[set[int]] = [set() for _ in range(len(walk))]
    sources = walk.source[walk.use_value]
    for step, source in zip(walk.use_step.tolist(), sources.tolist(), strict=True):
        found[step].add(source)
    return [sorted(s) for s in found]


def _again(
    reads: list[list[int]], asked: NDArray[np.int64], start: int, stop: int
) -> tuple[int, ...]:
    """The steps before `start` that must run for [start, stop), as nothing of them is kept."""
    found: set[int] = set()
    stack = [u for step in range(start, stop) for u in reads[step]]
    while stack:
        step = stack.pop()
        if step < start and asked[step] > 0 and step not in found:
            found.add(step)
            stack += reads[step]
    return tuple(sorted(found))


def mirror_counts(walk: Walk, segments: tuple[Segment, ...]) -> list[int]:
    """How often each step is recomputed with these segments: m(v) of algorithm 2.

    A step is recomputed once for every recomputed segment around it, but not where all it makes is
    kept across the segment's end, nor then in the segments inside; and once for every segment that
    runs it once more.
    """
    counts = [0] * len(walk)
    last = _last_kept_use(walk, segments)
    for s in segments:
        part = walk.part(s.start, s.stop)
        for step, count in enumerate(mirror_counts(part, s.inner)):
            counts[s.start + step] += count
        if s.recomputed:
            kept = np.ones(s.stop - s.start, np.bool_)
            made = np.zeros(s.stop - s.start, np.bool_)
            inside = (walk.source >= s.start) & (walk.source < s.stop)
            made[walk.source[inside] - s.start] = True
            kept[walk.source[inside & (last < s.stop)] - s.start] = False
            for step, gone in enumerate(~(kept & made)):
                counts[s.start + step] = counts[s.start + step] + 1 if gone else 0
    for s in segments:
        for step in s.again:
            counts[step] += 1
    return counts


def _last_kept_use(walk: Walk, segments: tuple[Segment, ...]) -> NDArray[np.int64]:
    """int64[m]: the last step that reads a value as it was kept, or the value's source."""
    segment = np.zeros(len(walk), np.int64)
    for k, s in enumerate(segments):
        segment[s.start : s.stop] = k
    again = {(k, step) for k, s in enumerate(segments) for step in s.again}
    last = walk.source.copy()
    by_segment = segment[walk.use_step].tolist()
    for value, step, k in zip(
        walk.use_value.tolist(), walk.use_step.tolist(), by_segment, strict=True
    ):
        if (k, int(walk.source[value])) not in again:
            last[value] = max(last[value], step)
    return last
