"""The largest batch that fits in one way: bounds, predictions, and the next size to compile."""

from __future__ import annotations

import math
from collections.abc import Callable

from olla_xla.errors import LimitError
from olla_xla.tools.batch_ways import BatchWay, NotCompiled

_STRAIGHT = 3
"""Every so many compiles between two bounds, the middle is tried instead of where a line points."""

_APART = 0.9
"""Largest ratio of two compiled sizes, the smaller to the larger, for a slope between them."""

_BEYOND = 0.2
"""The last compile goes below the line's answer, by this part of its distance to `high`, to fit."""


class Bounds:
    """Finds the largest batch that fits, by compiling sizes between a lower and an upper bound.

    Args:
      way: how sizes are compiled. unit: sizes are multiples of it.

    Attributes:
      low: the largest that was compiled this way and fits; 0 where none was.
      high: the least that does not fit; 0 where none was found.
      refused: why no further size is compiled this way, or "".
    """

    def __init__(self, way: BatchWay, unit: int) -> None:
        self.way, self.work, self.unit = way, way.work, unit
        self.low = self.high = 0
        self.refused = ""
        self._tries = 0
        self._last = 0  # the size that was compiled last
        self._first = 0  # the size that predictions point at

    def predict(self, floor: int, start: int, most: int, off: float = 1.0) -> None:
        """Finds the first size to compile, by predicted totals; `next` then returns it.

        Args:
          floor: a size that fits. start: to try first. most: compiles so far, of all ways, at which
            to stop. off: ratio of XLA's total to the predicted one in the previous way.
        """
        prediction = Prediction(self.way, self.unit)
        self._first = prediction.largest(floor, start, lambda: self.work.compiles < most)
        off *= 1 + self.way.margin
        if off != 1.0:
            self._first = int(self._meets(self.work.memory / off))

    def off(self) -> float:
        """XLA's total over the predicted one, for the size compiled last; 1.0 if not known."""
        self._learn()
        exact, predicted = self.way.exact(), self.way.on_line()
        if exact.get(self._last) and predicted.get(self._last):
            return exact[self._last] / predicted[self._last]
        return 1.0

    def compile(self, batch: int) -> None:
        """Compiles a size in full, and sets `low`, `high` or `refused` by what came of it."""
        self._tries += 1
        self._last = batch
        try:
            size = self.way.assigned(batch)
        except NotCompiled as refused:
            self.refused = str(refused)
            self.work.progress(f"{self.way.name}: {refused}")
            return
        if size <= self.work.memory:
            self.low = batch
        else:
            self.high = batch
        fits = "fits" if size <= self.work.memory else "does not fit"
        self.work.progress(f"{self.way.name}: batch {batch:,} {fits}, {size / 2**20:,.0f} MB")

    def is_closed(self, floor: int) -> bool:
        """Whether the search is over: no size above `floor` could still fit."""
        return bool(self.refused) or 0 < self.high <= floor + self.unit

    def doubt(self, floor: int) -> float:
        """How much larger the answer could still be, as a fraction of the largest size that fits.

        Args:
          floor: a size that fits, as it does in the previous way; or 0.
        """
        least = max(self.low, floor)
        if self.is_closed(least):
            return 0.0
        if not least:
            return math.inf
        return ((self.high or self.expected(floor) + self.unit) - least) / least

    def expected(self, floor: int) -> int:
        """Estimates the largest size that fits, by a line through known totals, within bounds."""
        least = max(self.low, floor)
        meets = max(self._meets(), least)
        at = rounded(int(meets), self.unit) if meets >= self.unit else 0
        return min(at, self.high - self.unit) if self.high else at

    def next(self, floor: int, is_last: bool) -> int:
        """Which batch size to compile next.

        Args:
          floor: a size that fits, or 0. is_last: whether it is the last compile of this way.
        """
        self._learn()
        least = max(self.low, floor)
        if not self._tries:
            at = self._first
        elif least and self.high:  # along the line, and now and then in the middle
            meets, turn = int(self._meets()), self._tries % _STRAIGHT == 0
            at = (least + self.high) // 2 if turn or meets >= self.high else meets
        elif self.high:
            at = self._down(is_last)
        else:  # first one unit above, most often too large; then doubled
            at = max(int(self._meets()), least + self.unit * 2 ** (self._tries - 1))
        at = max(rounded(at, self.unit), least + self.unit)
        return min(at, self.high - self.unit) if self.high else at

    def _learn(self) -> None:
        if self._last and self.work.is_captured(self._last):
            self.way.learn(self._last)

    def _down(self, is_last: bool) -> int:
        """A size below all that were compiled, none of which fits."""
        totals, memory = self._corrected(), self.work.memory
        fitting = [b for b, size in totals.items() if b < self.high and size <= memory]
        surely = max(fitting, default=0)
        if is_last:  # this size should fit: go below the line's answer
            meets = self._meets()
            at = math.floor(meets - _BEYOND * (self.high - meets))
            return max(at, surely, self.unit) if self.way.exact() else surely
        if self._meets() >= self.high:  # the line contradicts the bound
            return (surely + self.high) // 2
        at = min(math.floor(self._meets()), self.high - self.unit * 2 ** (self._tries - 1))
        if at > surely or not surely:
            return at
        rise = max(totals.get(self.high, memory + 1) - totals[surely], 1)
        return surely + int((memory - totals[surely]) / rise * (self.high - surely))

    def _corrected(self) -> dict[int, int]:
        """Totals by size; predicted ones are scaled by the error that was seen at `high`."""
        exact, predicted = self.way.exact(), self.way.on_line()
        off = 1.0
        if exact.get(self.high) and predicted.get(self.high):
            off = exact[self.high] / predicted[self.high]
        return {b: int(off * size) for b, size in predicted.items()} | exact

    def _meets(self, memory: float = 0.0) -> float:
        """The size at which a line through known totals meets a memory, by default the device's."""
        exact, predicted, memory = self.way.exact(), self.way.on_line(), memory or self.work.memory
        totals = exact or predicted
        if not totals:
            return float(self._first)
        at = min(totals, key=lambda b: (abs(totals[b] - memory), b))
        slope = _slope(exact, memory) or _slope(predicted, memory) or max(totals[at], 1) / at
        return at + (memory - totals[at]) / slope


def _slope(totals: dict[int, int], memory: float) -> float:
    """Bytes per unit of batch near a memory, from two sizes that are far enough apart; else 0.

    Two sizes of which one fits and one does not are preferred: between them a curve errs least.
    """
    near = sorted(totals, key=lambda b: (abs(totals[b] - memory), b))
    across = [b for b in near if (totals[b] <= memory) != (totals[near[0]] <= memory)]
    for other in across + near[1:]:
        if min(other, near[0]) <= _APART * max(other, near[0]):
            return max((totals[other] - totals[near[0]]) / (other - near[0]), 0.0)
    return 0.0


_LARGEST = 2**24
"""Largest batch that is tried: if it fits, its size does not seem to matter."""

_REACH = 512
"""A line is extrapolated to at most so many times its largest size."""

_FAR = 1024
"""If a size so many times larger takes as much, the step does not use the size."""

_WIDE = 32
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
                    f"a batch of {low:,} fits {self.memory:,} bytes; does memory depend on it?"
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
                    f"a batch of {low:,} takes {size:,} bytes, like a batch of {points[0][0]:,}; "
                    "does the step depend on the batch size?"
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
            apart = max(meets, _WIDE * batch) if meets > batch else min(meets, batch / _WIDE)
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
