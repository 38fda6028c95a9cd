"""The largest batch that fits a memory: in XLA's order, planned, and with recomputation.

A compile that ends at XLA's schedule is enough to predict the totals of a batch size. Totals lie
nearly on a line, so two of them point at the answer; that and the next larger size are compiled in
full, which confirms or corrects it: the totals that are reported are XLA's own. What XLA schedules
on the way is kept, so that plans are predicted without compiles of their own. Where the lines hold
that is six compiles for XLA and a plan, and no more are made where they do not: the answer is then
between two sizes, one that fits and one that does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator

import jax

from olla_xla.compile.batch_ways import (
    Batches,
    Make,
    NotCompiled,
    Planned,
    Progress,
    Recomputed,
    Way,
    Xla,
)
from olla_xla.errors import LimitError
from olla_xla.problem.options import PlanOptions, parse_bytes

__all__ = ["LargestBatch", "MaxBatch", "max_batch"]

_LARGEST = 2**24
"""A batch that nothing is looked for beyond: its size does not seem to matter."""

_STRAIGHT = 3
"""Of so many sizes between two bounds all but one are along a line, the last is in the middle."""

_REACH = 512
"""Times the largest size of a line up to which the line is followed."""

_FAR = 1024
"""Times a size from which on another size that takes as much does not matter to the step."""

_APART = 32
"""Times the first size that the second is at least: what two near ones differ by is no slope."""

_GROWTH = 4
"""Times the largest size known to fit that is tried next, where nothing points at one."""

_CONFIRMING = 2
"""Compiles of each way that are kept for its answer and the next size."""

_BEYOND = 0.1
"""Part of a line's distance that is added where a second bound is looked for with what is left."""

_CAREFUL = 0.5
"""Part of where a line points that is compiled last, where nothing was found to fit."""


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits in one way.

    Attributes:
      way: "xla", "planned" or "recomputed".
      batch: the largest that was found to fit; 0 where none was.
      bytes: XLA's assigned total for it, on each device; 0 where none fits.
      next_batch: the least that was found not to fit; 0 where none was.
      next_bytes: what that takes at least: XLA's assigned total, or where `next_is_predicted` the
        least for which a plan was found.
      predicted_bytes: the predicted total of the batch.
      overhead: predicted time that is added by computing things again, as a part of the step's.
      reason: why the answer is that of the way before: a size cannot be compiled this way, or none
        was found to fit; or "".
      is_largest: whether `next_batch` is the next size; else the largest that fits may be any from
        `batch` on that is less than `next_batch`.
    """

    way: str
    batch: int
    bytes: int
    next_batch: int
    next_bytes: int
    next_is_predicted: bool = False
    predicted_bytes: int = 0
    overhead: float = 0.0
    reason: str = ""
    is_largest: bool = True


@dataclasses.dataclass(frozen=True)
class MaxBatch:
    """What `max_batch` found.

    Attributes:
      memory_bytes: what a device has for the step.
      xla, planned, recomputed: the largest batch in each way; `recomputed` is None where nothing
        was to be computed again.
      points: every total that was predicted on the way, as (way, batch, bytes), in order; for
        "recomputed" the least that was reached.
      seconds: of it all.
      compiles: of it all, as far as XLA's schedule or in full.
    """

    memory_bytes: int
    xla: LargestBatch
    planned: LargestBatch
    recomputed: LargestBatch | None
    points: tuple[tuple[str, int, int], ...]
    seconds: float
    compiles: int = 0

    @property
    def tried(self) -> tuple[int, ...]:
        """Batch sizes that were compiled as far as their schedule, ascending."""
        return tuple(sorted({batch for _, batch, _ in self.points}))


def max_batch(
    make: Make,
    memory: int | str,
    *,
    max_overhead: float = 0.05,
    multiple_of: int = 1,
    start: int = 8,
    compiles: int = 6,
    options: PlanOptions | None = None,
    progress: Progress | None = None,
) -> MaxBatch:
    """Finds the largest batch that fits a memory, for XLA alone, planned, and with recomputation.

    XLA's own rematerialization is off: where a step comes near the card's memory it adds time that
    nobody predicts, to XLA's order and to ours. Larger batches are taken to need more memory. No
    order or choice of what to compute again is proven to be the best, so a larger batch than was
    found may fit.

    Args:
      make: lowers the step for a batch size: `lambda n: jax.jit(step).lower(state, batch_of(n))`,
        with shapes as arguments; on a target that need not be there with those that its `place`
        gives (`olla_xla.targets`). Batches divided among devices count as a whole.
      memory: what each device has for the step, in bytes or as in "30GiB".
      max_overhead: predicted time that may be added by computing things again, as a part of the
        step's; 0 looks for no such answer.
      multiple_of: batches are multiples of it, as of the number of devices.
      start: the first size that is tried.
      compiles: made at most, for XLA alone and planned; half as many more with recomputation. More
        narrow an answer that lies between two sizes.
      options: limits and seed of each plan; a budget and an overhead in them are not used.
      progress: called with a line at each size.

    Raises:
      InputError: an argument is of the wrong type.
      LimitError: it is not positive, `compiles` is below 4, or no size is too large.
      OllaError: the backend does not show its schedule.
    """
    started, memory_bytes = time.monotonic(), parse_bytes(memory, "memory")
    for name, value in (("memory", memory_bytes), ("multiple_of", multiple_of), ("start", start)):
        if value <= 0:
            raise LimitError(f"{name}={value} must be positive")
    if compiles < 2 * _CONFIRMING:
        raise LimitError(f"compiles={compiles} must be at least {2 * _CONFIRMING}")
    base = dataclasses.replace(options or PlanOptions(), memory_budget=None, max_overhead=None)
    again = dataclasses.replace(base, memory_budget=memory_bytes, max_overhead=max_overhead)
    work = _BatchSearch(make, memory_bytes, multiple_of, progress or (lambda line: None))
    with _no_rematerialization():
        xla = work.answer(Xla(work), None, start, compiles - _CONFIRMING)
        planned = work.answer(Planned(work, base), xla, start, compiles)
        recomputed = None
        if max_overhead > 0:
            most = compiles + compiles // 2
            recomputed = work.answer(Recomputed(work, again), planned, start, most)
    return MaxBatch(
        memory_bytes,
        xla,
        planned,
        recomputed,
        tuple(work.points),
        seconds=time.monotonic() - started,
        compiles=work.compiles,
    )


@contextlib.contextmanager
def _no_rematerialization() -> Iterator[None]:
    """Within it XLA computes nothing again by itself. JAX's setting is one of the whole process."""
    before = jax.config.jax_compiler_enable_remat_pass  # pyright: ignore
    jax.config.update("jax_compiler_enable_remat_pass", False)
    try:
        yield
    finally:
        jax.config.update("jax_compiler_enable_remat_pass", before)


class _BatchSearch(Batches):
    """The search for the largest size that fits."""

    def __init__(self, make: Make, memory: int, unit: int, progress: Progress) -> None:
        super().__init__(make, memory, progress)
        self.unit = unit
        self._rise = 0.0  # bytes by which one more adds to what was predicted last

    def answer(self, way: Way, before: LargestBatch | None, start: int, most: int) -> LargestBatch:
        """The largest batch that fits in a way, compiled, and the next one.

        Args:
          way: how. before: the answer of the way before, which fits this way too; or None.
          start: to try first, where none is known to fit.
          most: compiles of all ways at the end of this one.
        """
        least = 0 if before is None else before.batch
        predicted = self._predicted(way, least, start, most - _CONFIRMING)
        try:
            low, high = self._confirmed(way, predicted, least, most, int(before is None))
        except NotCompiled as refused:
            assert before is not None, "XLA's own way refuses nothing"
            self.progress(f"{way.name}: {refused}")
            return dataclasses.replace(before, way=way.name, reason=str(refused))
        if before is not None and 0 < high <= least and not low:
            why = f"with a batch of {high:,} no plan was found that fits"
            self.progress(f"{way.name}: {why}")
            return dataclasses.replace(before, way=way.name, reason=why)
        found = LargestBatch(
            way=way.name,
            batch=low,
            bytes=way.assigned(low) if low else 0,
            next_batch=high,
            next_bytes=way.assigned(high) if high else 0,
            next_is_predicted=high > 0 and not way.is_compiled(high),
            predicted_bytes=way.predicted(low) if low else 0,
            overhead=way.overhead(low) if low else 0.0,
            is_largest=high == max(low, least) + self.unit,
        )
        if least and not low:
            assert before is not None
            why = f"a batch of {high:,} does not fit, and none above {least:,} was found to"
            found = dataclasses.replace(
                found, batch=before.batch, bytes=before.bytes, overhead=before.overhead, reason=why
            )
        not_fit = f"{high:,} does not" if high else "and nothing larger was compiled"
        self.progress(f"{way.name}: batch {found.batch:,} fits, {not_fit}")
        return found

    def _confirmed(
        self, way: Way, batch: int, least: int, most: int, spare: int = 0
    ) -> tuple[int, int]:
        """The largest size whose assigned total was found to fit, and the least that does not.

        Each is 0 where there is none.

        Args:
          way: how. batch: that was predicted. least: fits, though it was not compiled this way.
          most: compiles of all ways at the end. spare: of those that are kept for the next way, to
            be used where there is but one bound.

        Raises:
          NotCompiled: a size cannot be compiled this way.
        """
        low, high, at, step, turns = 0, 0, batch or self.unit, self.unit, 0
        sizes = {b: size for name, b, size in self.points if name == way.name}
        left = max(most - self.compiles, 1)
        while left > 0 or (left > -spare and not (low and high)):
            sizes[at] = size = way.assigned(at)
            low, high = (at, high) if size <= self.memory else (low, at)
            left -= 1
            if high and high - max(low, least) <= self.unit:
                break
            many, is_last = self._many(sizes, at, high), left <= 1
            if low and high:  # along the line, and now and then in the middle
                turns += 1
                along = at + self.unit * (math.floor(many) if at == high else max(int(many), 1))
                at = (low + high) // 2 if turns % _STRAIGHT == 0 else along
            elif high:  # down, and further
                many *= 1 + _BEYOND * is_last
                at = max(min(at + self.unit * math.floor(many), high - step), least)
                at = self._not_below_what_fits(sizes, at, high, is_spare=left == 0)
            elif is_last:  # to what does not fit: there are two bounds then
                at += self.unit * (int(many * (1 + _BEYOND * (many > 1))) + 1)
            else:  # up: by one first, which is most often too large
                at += self.unit * max(int(many), step)
            step *= 2
            at = max(self._rounded(at), low + self.unit)
            at = min(at, high - self.unit) if high else at
        return low, high

    def _not_below_what_fits(
        self, sizes: dict[int, int], at: int, high: int, is_spare: bool
    ) -> int:
        """A size to try below one that does not fit: `at`, or one that is between for all known.

        Args:
          sizes: and their totals, assigned or predicted. at: where a line points.
          high: what does not fit. is_spare: whether it is the last try, which is to fit.
        """
        surely = max(
            (b for b, size in sizes.items() if b < high and size <= self.memory), default=0
        )
        if is_spare:
            return surely or int(_CAREFUL * high)
        if at > surely or not surely:
            return at
        part = (self.memory - sizes[surely]) / (sizes[high] - sizes[surely])
        return surely + int(part * (high - surely))

    def _many(self, sizes: dict[int, int], at: int, high: int) -> float:
        """How many more, in units, a line through what is known meets the memory; below 0: less."""
        near = sorted(sizes, key=lambda b: (abs(sizes[b] - self.memory), b))[:2]
        rise = (sizes[near[-1]] - sizes[near[0]]) / max(abs(near[-1] - near[0]), 1)
        each = abs(rise) or self._rise
        if not each and at != high:  # nobody knows how far
            return 0.0
        return (self.memory - sizes[at]) / max((each or sizes[at] / at) * self.unit, 1)

    def _predicted(self, way: Way, low: int, start: int, most: int) -> int:
        """The largest size whose predicted total fits, or all but fits; `low` fits.

        Near the memory a line tells the rest, and what is compiled then confirms or corrects it.

        Args:
          way: how. low: fits. start: to try first. most: compiles of all ways at the end.
        """
        high, rounds = None, 0
        # Sizes that are compiled already cost no compile: two of them make a line.
        points = [(b, way.predicted(b)) for b in self.known()]
        for b, size in points:
            self.point(way.name, b, size)
        guess = self._next(points, low, None) if points else self._rounded(start)
        while not self._points_up(points) and (high is None or high - low > self.unit):
            guess = max(guess, low + self.unit)
            guess = guess if high is None else min(guess, high - self.unit)
            if guess > _LARGEST:
                raise LimitError(
                    f"a batch of {low:,} still fits {self.memory:,} bytes; does the step use it?"
                )
            if self.compiles >= most and not self.is_captured(guess):
                break
            size = way.predicted(guess)
            self.point(way.name, guess, size)
            self.progress(f"batch {guess:,}, {way.name}: {size / 2**20:,.0f} MB predicted")
            if size <= self.memory:
                low = guess
            else:
                high = guess
            points.append((guess, size))
            rounds += 1
            sizes = {size for _, size in points}
            if len(sizes) == 1 and low >= _FAR * points[0][0]:
                raise LimitError(
                    f"a batch of {low:,} takes {size:,} bytes, as one of {points[0][0]:,} does; "
                    "does the step use it?"
                )
            guess = self._next(points, low, high, halve=rounds % 3 == 0)
        return max(guess, low)

    def _points_up(self, points: list[tuple[int, int]]) -> bool:
        """Whether totals are on a line that meets the memory."""
        if len(points) < 2:
            return False
        (batch, size), (other, other_size) = sorted(points)[-2:]
        self._rise = max((other_size - size) / max(other - batch, 1), 0.0)
        return self._rise > 0

    def _next(
        self, points: list[tuple[int, int]], low: int, high: int | None, halve: bool = False
    ) -> int:
        """The size to try next: where a line through two totals meets the memory."""
        middle = _GROWTH * max(low, self.unit) if high is None else (low + high) // 2
        near = sorted(points, key=lambda p: abs(p[1] - self.memory))[:2]
        if halve and high is not None or not near:
            return self._rounded(middle)
        (batch, size), (other, other_size) = near[0], near[-1] if len(near) > 1 else (0, 0)
        if batch == other or (size - other_size) / (batch - other) <= 0:
            return self._rounded(middle)
        meets = batch + (self.memory - size) * (batch - other) / (size - other_size)
        if len(near) == 1:  # through the origin: it meets too early, not too late
            apart = max(meets, _APART * batch) if meets > batch else min(meets, batch / _APART)
            return self._rounded(int(apart))
        return self._rounded(int(min(meets, _REACH * max(low, *(b for b, _ in near)))))

    def _rounded(self, batch: int) -> int:
        return max(batch // self.unit, 1) * self.unit
