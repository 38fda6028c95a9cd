"""The largest batch by a line through predicted totals."""

from __future__ import annotations

from collections.abc import Callable

from olla_xla.errors import LimitError
from olla_xla.tools.batch_ways import BatchWay

_LARGEST = 2**24
"""Largest batch that is tried: if it fits, its size does not seem to matter."""

_REACH = 512
"""A line is extrapolated to at most so many times its largest size."""

_FAR = 1024
"""If a size so many times larger takes as much, the step does not use the size."""

_APART = 32
"""Ratio of the first two sizes, at least: the totals of nearby sizes give no useful slope."""

_NEAR = 2
"""Ratio of memory and a total below which they are near: half of that size then makes a line."""

_GROWTH = 4
"""So many times the largest size known to fit is tried next, where no line points at a size."""


class Prediction:
    """Predicts the largest batch that fits, by a line through one way's predicted totals.

    Near the memory a line is extrapolated; full compiles then confirm or correct it.

    Args:
      way: whose totals are used. unit: sizes are multiples of it.
    """

    def __init__(self, way: BatchWay, unit: int) -> None:
        self.way, self.work, self.memory, self.unit = way, way.work, way.work.memory, unit

    def largest(self, low: int, start: int, may_compile: Callable[[], bool]) -> int:
        """The largest size whose predicted total fits, or nearly fits.

        Args:
          low: a size that fits. start: to try first. may_compile: whether another size may be
            compiled.

        Raises:
          LimitError: all sizes fit that were tried, so the size seems to have no effect.
        """
        high, rounds = None, 0
        # Sizes whose schedules are known cost no compile: two of them make a line.
        points = [(b, self.way.predicted(b)) for b in self.work.known()]
        for b, size in points:
            self.work.point(self.way.name, b, size)
        guess = self.next(points, low, None) if points else rounded(start, self.unit)
        while not _rises(points) and (high is None or high - low > self.unit):
            if not (half := self._half(points)):
                guess = max(guess, low + self.unit)
                guess = guess if high is None else min(guess, high - self.unit)
            guess = half or guess
            if guess > _LARGEST:
                raise LimitError(
                    f"a batch of {low:,} fits {self.memory:,} bytes; does its size have an effect?"
                )
            if not may_compile() and not self.work.is_captured(guess):
                break
            size = self.way.predicted(guess)
            self.work.point(self.way.name, guess, size)
            self.work.progress(
                f"batch {guess:,}, {self.way.name}: {size / 2**20:,.0f} MB predicted"
            )
            if size <= self.memory:
                low = max(low, guess)
            else:
                high = min(high or guess, guess)
            points.append((guess, size))
            rounds += 1
            sizes = {size for _, size in points}
            if len(sizes) == 1 and low >= _FAR * points[0][0]:
                raise LimitError(
                    f"a batch of {low:,} takes {size:,} bytes, just as one of {points[0][0]:,}; "
                    "does its size have an effect?"
                )
            guess = self.next(points, low, high, halve=rounds % 3 == 0)
        return max(guess, low)

    def _half(self, points: list[tuple[int, int]]) -> int:
        """Half of the only known size, where its total is near the memory; else 0."""
        if len(points) != 1 or points[0][0] < 2 * self.unit:
            return 0
        ((batch, size),) = points
        near = self.memory < _NEAR * size and size < _NEAR * self.memory
        return rounded(batch // 2, self.unit) if near else 0

    def next(
        self, points: list[tuple[int, int]], low: int, high: int | None, halve: bool = False
    ) -> int:
        """The size to try next: where a line through two totals meets the memory, or a middle.

        Args:
          points: (size, predicted bytes). low: a size that fits. high: one that does not, or None.
          halve: whether to take the middle of both instead of the line.
        """
        middle = _GROWTH * max(low, self.unit) if high is None else (low + high) // 2
        near = sorted(points, key=lambda p: abs(p[1] - self.memory))[:2]
        if halve and high is not None or not near:
            return rounded(middle, self.unit)
        (batch, size), (other, other_size) = near[0], near[-1] if len(near) > 1 else (0, 0)
        if batch == other or (size - other_size) / (batch - other) <= 0:
            return rounded(middle, self.unit)
        meets = batch + (self.memory - size) * (batch - other) / (size - other_size)
        if len(near) == 1:  # a line through the origin gives too small a size, not too large a one
            apart = max(meets, _APART * batch) if meets > batch else min(meets, batch / _APART)
            return rounded(int(apart), self.unit)
        reach = _REACH * max(low, *(b for b, _ in near))
        return rounded(int(min(meets, reach)), self.unit)


def _rises(points: list[tuple[int, int]]) -> bool:
    """Whether the totals of the two largest sizes rise, so that their line meets the memory."""
    if len(points) < 2:
        return False
    (batch, size), (other, other_size) = sorted(points)[-2:]
    return (other_size - size) / max(other - batch, 1) > 0


def rounded(batch: int, unit: int) -> int:
    """A size rounded down to a multiple of a unit, and at least the unit."""
    return max(batch // unit, 1) * unit
