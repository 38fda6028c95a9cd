"""Where to cut a traced function into segments: Chen et al. 2016, algorithm 3 and section 4.

With segments recomputed one at a time in the backward pass, memory is about what crosses the cuts
(x) plus the largest segment (y): O(sqrt n) for a chain of n. Cutting segments again gives O(log n),
for more recomputation (section 4.3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hlo.walk import after_needs
from olla_xla.errors import InputError
from olla_xla.segments.walk import Walk

GRID = 6
"""Budgets tried, evenly spread over [B / sqrt 2, B sqrt 2] by ratio."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """A range of steps (equations) [start, stop): one `jax.checkpoint` if it is `recomputed`.

    Attributes:
      recomputed: its results are dropped after the forward pass, except those that later segments
        read, and computed again when its backward pass begins.
      inner: segments into which it is itself cut; their steps count from its start. () for none.
      again: earlier steps, ascending, that are run once more inside this segment: it reads their
        results, which are not kept for it.
    """

    start: int
    stop: int
    recomputed: bool
    inner: tuple[Segment, ...] = ()
    again: tuple[int, ...] = ()


def candidates(walk: Walk, window: int) -> NDArray[np.bool_]:
    """Returns bool[n]: after which steps, but for the last, a segment may end, as few bytes of
    values are made before and read after (set C of algorithm 3). These are `walk.allowed` if given.
    Otherwise a step counts if no cut within `window` bytes of steps before and after it is crossed
    by fewer bytes of values that are read within four windows of being made.
    """
    n = len(walk)
    if walk.allowed is not None:
        return walk.allowed & (np.arange(n) < n - 1)
    crossing = walk.crossing(longest=4 * window)
    done = np.cumsum(walk.sizes)
    left = np.searchsorted(done, done - window, side="left")
    right = np.searchsorted(done, done + window, side="right") - 1
    local_minima = crossing <= np.minimum(
        _range_minimum(crossing, left, np.arange(n)), _range_minimum(crossing, np.arange(n), right)
    )
    if n:
        local_minima[-1] = False  # nothing follows
    return local_minima


def _range_minimum(
    values: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns the minimum of values[first[k] : last[k] + 1] for every k, by a sparse table."""
    table = [values]
    while 2 ** len(table) <= len(values):
        half = 2 ** (len(table) - 1)
        table.append(np.minimum(table[-1][:-half], table[-1][half:]))
    level = np.frexp(last - first + 1)[1] - 1
    result = np.empty_like(values)
    for k, row in enumerate(table):
        at = level == k
        result[at] = np.minimum(row[first[at]], row[last[at] - 2**k + 1])
    return result


def close_segments(
    sizes: NDArray[np.int64], candidate: NDArray[np.bool_], budget: float
) -> list[int]:
    """Returns the steps after which segments end, ascending (algorithm 3): each ends at the first
    candidate where its bytes exceed the budget. `sizes`: int64[n], bytes of each step. `candidate`:
    bool[n], where a segment may end. `budget`: bytes.
    """
    cuts, size = [], 0
    for step, (more, may) in enumerate(zip(sizes.tolist(), candidate.tolist(), strict=True)):
        size += more
        if may and size > budget:
            cuts.append(step)
            size = 0
    return cuts


def cost(walk: Walk, cuts: list[int]) -> tuple[int, int]:
    """Returns (bytes of values made before and read after a cut, bytes of the largest segment).
    `cuts`: the steps after which segments end.
    """
    x = int(walk.value_bytes[walk.stored(cuts)].sum())
    return x, max(_part_bytes(walk, cuts), default=0)


def _part_bytes(walk: Walk, cuts: list[int]) -> list[int]:
    starts = [0, *(c + 1 for c in cuts)]
    return np.add.reduceat(walk.sizes, starts).tolist() if len(walk) else []


def plan_segments(
    walk: Walk,
    *,
    depth: int | None = 1,
    budget: int | None = None,
    splits: int = 1,
    loss_last: bool = False,
) -> tuple[Segment, ...]:
    """Cuts a walk (a program's steps) into segments that a backward pass recomputes one at a time.

    Args:
      walk: the steps of the forward pass.
      budget: bytes of an outermost segment (B of algorithm 3); searched for if None.
      depth: how often a step is recomputed at most: 1 gives O(sqrt n) memory, d gives O(n^(1 / (d +
        1))), None goes on cutting, to O(log n).
      splits: k of section 4.3, where `depth` is None: the cuts that each part gets.
      loss_last: the walk ends in a loss, whose backward pass follows at once: the last segment is
        not recomputed, since it would be made again as soon as it was dropped.
    """
    if len(walk) == 0:
        return ()
    if depth is None:
        return _split(walk, splits, loss_last)
    if budget is not None:
        return _cut(walk, depth, budget, loss_last)
    best, least = _segments(walk, [], loss_last, _whole), math.inf
    for segments in budget_choices(walk, depth, loss_last).values():
        estimate = _peak(walk, segments)
        if estimate < least:
            best, least = segments, estimate
    return best


def budget_choices(walk: Walk, depth: int, loss_last: bool) -> dict[int, tuple[Segment, ...]]:
    """Cuts a walk (a program's steps) into segments by each of GRID budgets; returns {budget in
    bytes: segments}, each result only once.
    """
    choices: dict[int, tuple[Segment, ...]] = {}
    for b in map(int, _budgets(walk, depth)):
        segments = _cut(walk, depth, b, loss_last)
        if segments not in choices.values():
            choices[b] = segments
    return choices


def _budgets(walk: Walk, depth: int) -> list[float]:
    """Returns GRID budgets (bytes of a segment) to try, spread evenly by ratio around an estimated
    best, B. Bytes kept (x) times the largest segment's (y) hardly depend on the budget that gave
    them: both are those of a chain of N = S^2 / (x y) equal links, S being the bytes of all steps.
    B = sqrt(x y) = S / N^(1/2) is then best for one level, S / N^(1 / (depth + 1)) for more.
    """
    total = int(walk.sizes.sum())
    b = 0.0
    for _ in range(3):  # the first pass, with B = 0, cuts everywhere
        x, y = cost(walk, close_segments(walk.sizes, candidates(walk, int(b / 4)), b))
        links = max(total**2 / max(x * y, 1), 1.0)
        b = total / links ** (1 / (depth + 1))
    return [b * 2 ** (k / (GRID - 1) - 0.5) for k in range(GRID)]


def _cut(walk: Walk, depth: int, budget: float, loss_last: bool) -> tuple[Segment, ...]:
    cuts = close_segments(walk.sizes, candidates(walk, int(budget / 4)), budget)
    return _segments(walk, cuts, loss_last, lambda part: _inner(part, depth - 1))


def _inner(part: Walk, depth: int) -> tuple[Segment, ...]:
    """Cuts the steps of one segment into inner segments, at most `depth` levels deep; returns () if
    that saves no memory, or there are fewer than 3 steps.
    """
    if depth < 1 or len(part) < 3:
        return ()
    segments = plan_segments(part, depth=depth, loss_last=True)
    return segments if _peak(part, segments) < part.sizes.sum() else ()


def _split(walk: Walk, splits: int, loss_last: bool) -> tuple[Segment, ...]:
    """Cuts a program's steps into segments near every 1 / (splits + 1) of its bytes, where few
    bytes cross, and each part again while that may save memory (section 4.3).
    """
    total = int(walk.sizes.sum())
    crossing = walk.crossing()
    done = np.cumsum(walk.sizes)
    parts = splits + 1
    cuts = []
    for k in range(1, parts):
        near = (done >= total * (k - 1 / 3) / parts) & (done <= total * (k + 1 / 3) / parts)
        near[-1:] = False
        if walk.allowed is not None:
            near &= walk.allowed
        if near.any():
            least = np.flatnonzero(near & (crossing == crossing[near].min()))
            cuts.append(int(least[np.abs(done[least] - total * k / parts).argmin()]))
    stored = int(walk.value_bytes[walk.stored(cuts)].sum())
    if not cuts or stored + total / (len(cuts) + 1) >= total:  # nothing to gain
        return _segments(walk, [], loss_last, _whole)

    def inner(part: Walk) -> tuple[Segment, ...]:
        segments = _split(part, splits, loss_last=True)
        return segments if len(segments) > 1 else ()

    return _segments(walk, cuts, loss_last, inner)


def _segments(
    walk: Walk, cuts: list[int], loss_last: bool, inner: Callable[[Walk], tuple[Segment, ...]]
) -> tuple[Segment, ...]:
    """Makes a Segment, with what `inner` makes of its steps, of each range of steps between cuts.
    Fixed steps (side effects) are alone and not recomputed, nor is the end if `loss_last`.
    """
    fixed = np.flatnonzero(walk.fixed).tolist()
    bounds = {0, len(walk), *(c + 1 for c in cuts), *fixed, *(f + 1 for f in fixed)}
    ascending = sorted(bounds)
    segments = []
    for start, stop in zip(ascending, ascending[1:], strict=False):
        recomputed = not walk.fixed[start] and not (loss_last and stop == len(walk))
        segments.append(Segment(start, stop, recomputed, inner(walk.part(start, stop))))
    return tuple(segments)


def _whole(part: Walk) -> tuple[Segment, ...]:
    return ()


def _peak(walk: Walk, segments: tuple[Segment, ...]) -> int:
    """Estimates peak bytes: the maximum over segments of bytes kept before it plus its own peak."""
    cuts = [s.stop - 1 for s in segments[:-1]]
    kept = walk.stored(cuts)
    by_step = np.zeros(len(walk) + 1, np.int64)
    np.add.at(by_step, walk.source[kept] + 1, walk.value_bytes[kept])
    before = np.cumsum(by_step)
    peaks = []
    for s in segments:
        part = walk.part(s.start, s.stop)
        peaks.append(
            int(before[s.start]) + (_peak(part, s.inner) if s.inner else int(part.sizes.sum()))
        )
    return max(peaks)


MOST_AGAIN = 100_000
"""Steps that all segments together run once more, at most: where each of n segments reads what all
before it make, they are n^2."""


def mirrored_segments(walk: Walk, counts: Sequence[int]) -> tuple[Segment, ...]:
    """Makes segments that recompute each step `counts` times (m of the paper's algorithm 2), 0 for
    a fixed step (with side effects). A step of count 0 ends a segment, which is recomputed from the
    one before; steps of count 1 end its inner segments, and so on. A value that crosses a segment's
    end and has a greater count is not kept: each segment that reads it makes it once more, from
    kept values (`Segment.again`). The last step of all is made again with its segment.
    `mirror_counts` gives the counts that result. Raises InputError for over MOST_AGAIN steps in
    `again`.
    """
    asked = np.where(walk.fixed, 0, np.asarray(counts, np.int64))
    reads = _reads(walk)
    segments: list[Segment] = []
    start = total = 0
    while start < len(walk):
        stop = _end(walk, asked, reads, start)
        again = () if walk.fixed[start] else _again(reads, asked, start, stop)
        total += len(again)
        if total > MOST_AGAIN:
            raise InputError(
                f"mirror makes segments repeat more than {MOST_AGAIN:,} steps of earlier segments; "
                "let mirror return 0 for some values that are read long after they are computed"
            )
        deeper = asked[start:stop] - 1
        inner = (
            mirrored_segments(walk.part(start, stop), deeper.tolist()) if deeper.max() > 0 else ()
        )
        segments.append(Segment(start, stop, bool(asked[start] > 0 or again), inner, again))
        start = stop
    return tuple(segments)


def _end(walk: Walk, asked: NDArray[np.int64], reads: list[list[int]], start: int) -> int:
    """Returns the exclusive end of the segment that begins at step `start`. One that is recomputed
    ends with a kept step (`asked`, how often to recompute it, is 0). Kept steps in a row are a
    segment that is not, but one that reads (`reads`) a result that is not kept is one by itself.
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
    """Returns for each step the steps whose results it reads, ascending."""
    steps_read: list[set[int]] = [set() for _ in range(len(walk))]
    sources = walk.source[walk.use_value]
    for step, source in zip(walk.use_step.tolist(), sources.tolist(), strict=True):
        steps_read[step].add(source)
    return [sorted(s) for s in steps_read]


def _again(
    reads: list[list[int]], asked: NDArray[np.int64], start: int, stop: int
) -> tuple[int, ...]:
    """Returns the steps before `start` that the segment [start, stop) must run again, ascending:
    their results are needed, if only for others of them, and not kept (`asked`, how often to
    recompute a step, is not 0). `reads`: for each step those whose results it reads.
    """

    def lost(step: int) -> list[int]:
        return [u for u in reads[step] if u < start and asked[u] > 0]

    return tuple(sorted(after_needs((u for k in range(start, stop) for u in lost(k)), lost)))


def mirror_counts(walk: Walk, segments: tuple[Segment, ...]) -> list[int]:
    """Returns how often each step is recomputed with these segments: m(v) of algorithm 2. A step is
    recomputed once for every recomputed segment around it, but not where all its results are kept
    across the segment's end, nor then in its inner segments; and once for each segment with it in
    `again`.
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
    """Returns int64[m]: the last step that reads each value as it was first made and kept, or the
    step that makes it. Segments that make it once more (`Segment.again`) do not count.
    """
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
