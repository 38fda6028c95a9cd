"""Bounds on the largest batch that fits in one way, and the choice of the next size to compile."""

from __future__ import annotations

import math

from olla_xla.tools.batch_prediction import Prediction, rounded
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
