"""The largest batch that fits a memory: in XLA's order, planned, and with recomputation.

A compile that ends at XLA's schedule is enough to predict the totals of a batch size. Totals lie
nearly on a line, so two of them point at the answer; that and the next larger size are compiled in
full, which confirms or corrects it: the totals that are reported are XLA's own. What XLA schedules
on the way is kept, so that plans are predicted without compiles of their own: six for XLA and
a plan where the lines hold.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator

import jax

from olla_xla.compile.batch_ways import (
    FIRST,
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

_MUCH = 0.15
"""Part of the memory that is left from which on a size is not tried beside the next one."""

_REACH = 32
"""Times the largest size known to fit that is tried next, at most, while none is too large."""

_FAR = 64
"""Times the largest size of a line's points up to which it is followed: what confirms its answer
costs as much as a point that would make it surer, and is one too."""


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits in one way.

    Attributes:
      way: "xla", "planned" or "recomputed".
      batch: the largest that fits; 0 where none does.
      bytes: XLA's assigned total for it, on each device; 0 where none fits.
      next_batch: the next larger one, which does not fit.
      next_bytes: what that takes at least: XLA's assigned total, or where `next_is_predicted` the
        least for which a plan was found.
      predicted_bytes: the predicted total of the batch.
      overhead: predicted time that is added by computing things again, as a part of the step's.
      reason: why a size cannot be compiled this way, whose answer is then that of the way before;
        or "".
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


@dataclasses.dataclass(frozen=True)
class MaxBatch:
    """What `max_batch` found.

    Attributes:
      memory_bytes: what a device has for the step.
      xla, planned, recomputed: the largest batch in each way; `recomputed` is None where nothing
        was to be computed again.
      points: every total that was predicted on the way, as (way, batch, bytes), in order; a total
        above the memory is for "recomputed" the least that was reached.
      seconds: of it all.
    """

    memory_bytes: int
    xla: LargestBatch
    planned: LargestBatch
    recomputed: LargestBatch | None
    points: tuple[tuple[str, int, int], ...]
    seconds: float

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
      options: limits and seed of each plan; a budget and an overhead in them are not used.
      progress: called with a line at each size.

    Raises:
      InputError: an argument is of the wrong type.
      LimitError: it is not positive, or no size is too large.
      OllaError: the backend does not show its schedule.
    """
    started, memory_bytes = time.monotonic(), parse_bytes(memory, "memory")
    for name, value in (("memory", memory_bytes), ("multiple_of", multiple_of), ("start", start)):
        if value <= 0:
            raise LimitError(f"{name}={value} must be positive")
    base = dataclasses.replace(options or PlanOptions(), memory_budget=None, max_overhead=None)
    again = dataclasses.replace(base, memory_budget=memory_bytes, max_overhead=max_overhead)
    work = _BatchSearch(make, memory_bytes, multiple_of, progress or (lambda line: None))
    with _no_rematerialization():
        xla = work.answer(Xla(work), None, start)
        planned = work.answer(Planned(work, base), xla, start)
        recomputed = None
        if max_overhead > 0:
            recomputed = work.answer(Recomputed(work, again), planned, start)
    seconds = time.monotonic() - started
    return MaxBatch(memory_bytes, xla, planned, recomputed, tuple(work.points), seconds)


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
        super().__init__(make, progress)
        self.memory, self.unit = memory, unit
        self._rise = 0.0  # bytes by which one more adds to what was predicted last

    def answer(self, way: Way, before: LargestBatch | None, start: int) -> LargestBatch:
        """The largest batch that fits in a way, compiled, and the next one.

        Args:
          way: how. before: the answer of the way before, which fits this way too; or None.
          start: to try first, where none is known to fit.
        """
        fits = 0 if before is None else before.batch
        predicted = self._predicted(way, fits, int(fits * FIRST) or start)
        try:
            batch = self._confirmed(way, predicted)
        except NotCompiled as refused:
            assert before is not None, "XLA's own way refuses nothing"
            self.progress(f"{way.name}: {refused}")
            return dataclasses.replace(before, way=way.name, reason=str(refused))
        found = LargestBatch(
            way=way.name,
            batch=batch,
            bytes=way.assigned(batch) if batch else 0,
            next_batch=batch + self.unit,
            next_bytes=way.assigned(batch + self.unit),
            next_is_predicted=not way.is_compiled(batch + self.unit),
            predicted_bytes=way.predicted(batch) if batch else 0,
            overhead=way.overhead(batch) if batch else 0.0,
        )
        self.progress(f"{way.name}: batch {batch:,} fits, {batch + self.unit:,} does not")
        return found

    def _confirmed(self, way: Way, batch: int) -> int:
        """The largest size whose assigned total fits, near the one that was predicted.

        Raises:
          NotCompiled: a size cannot be compiled this way.
        """
        low, high, at, step, turns = 0, 0, batch or self.unit, self.unit, 0
        sizes: dict[int, int] = {}
        while True:
            sizes[at] = size = way.assigned(at)
            low, high = (at, high) if size <= self.memory else (low, at)
            if high and high - low <= self.unit:
                return low
            along = self._along(sizes, at, high)
            if low and high:  # along the line, and now and then in the middle
                turns += 1
                at = (low + high) // 2 if turns % _STRAIGHT == 0 else along
            elif high:  # down, and further
                at = min(along, high - step)
            else:  # up: by one first, which is most often too large; far where much is left
                much = self.memory - size > _MUCH * self.memory
                at = max(along, low + step) if much or len(sizes) > 1 else low + step
            step *= 2
            at = max(self._rounded(at), low + self.unit)
            at = min(at, high - self.unit) if high else at

    def _along(self, sizes: dict[int, int], at: int, high: int) -> int:
        """The size at which a line through what is known meets the memory, from one size on."""
        near = sorted(sizes, key=lambda b: (abs(sizes[b] - self.memory), b))[:2]
        rise = (sizes[near[-1]] - sizes[near[0]]) / max(abs(near[-1] - near[0]), 1)
        each = abs(rise) or self._rise or sizes[at] / at
        many = (self.memory - sizes[at]) / max(each * self.unit, 1)
        # The largest that fits, or, where that is known to fit, the one after it.
        return at + self.unit * (math.floor(many) if at == high else max(math.floor(many), 1))

    def _predicted(self, way: Way, low: int, start: int) -> int:
        """The largest size whose predicted total fits, or all but fits; `low` fits.

        Near the memory a line tells the rest, and what is compiled then confirms or corrects it.
        """
        high, rounds = None, 0
        # Sizes that are compiled already cost no compile: two of them make a line.
        points = [(b, way.predicted(b)) for b in self.known()] if way.is_linear else []
        for b, size in points:
            self.point(way.name, b, size)
        guess = self._rounded(start) if not points else self._next(points, low, None, way.growth)
        if self._follows(points, guess):
            return max(guess, low)
        while high is None or high - low > self.unit:
            guess = max(guess, low + self.unit)
            guess = guess if high is None else min(guess, high - self.unit)
            if guess > _LARGEST:
                raise LimitError(
                    f"a batch of {low:,} still fits {self.memory:,} bytes; does the step use it?"
                )
            size = way.predicted(guess)
            self.point(way.name, guess, size)
            self.progress(f"batch {guess:,}, {way.name}: {size / 2**20:,.0f} MB predicted")
            if size <= self.memory:
                low = guess
            else:
                high = guess
            if way.is_linear or size > self.memory:  # what no plan gets below is on a line too
                points.append((guess, size))
            rounds += 1
            guess = self._next(points, low, high, way.growth, halve=rounds % 3 == 0)
            straight = self._next(points, low, high, way.growth)
            if way.is_linear and self._follows(points, straight):
                return max(straight, low)
        return low

    def _follows(self, points: list[tuple[int, int]], guess: int) -> bool:
        """Whether a line through two totals leads to a guess that is not far from them."""
        if len(points) < 2:
            return False
        (batch, size), (other, other_size) = sorted(points)[-2:]
        self._rise = max((other_size - size) / max(other - batch, 1), 0.0)
        return self._rise > 0 and guess <= _FAR * other

    def _next(
        self,
        points: list[tuple[int, int]],
        low: int,
        high: int | None,
        growth: float,
        halve: bool = False,
    ) -> int:
        """The size to try next: where a line through two totals meets the memory."""
        middle = int(growth * max(low, self.unit)) if high is None else (low + high) // 2
        near = sorted(points, key=lambda p: abs(p[1] - self.memory))[:2]
        if halve and high is not None or not near:
            return self._rounded(middle)
        (batch, size), (other, other_size) = near[0], near[-1] if len(near) > 1 else (0, 0)
        if batch == other or (size - other_size) / (batch - other) <= 0:
            return self._rounded(middle)
        meets = batch + (self.memory - size) * (batch - other) / (size - other_size)
        return self._rounded(int(min(meets, _REACH * max(low, self.unit))))

    def _rounded(self, batch: int) -> int:
        return max(batch // self.unit, 1) * self.unit
