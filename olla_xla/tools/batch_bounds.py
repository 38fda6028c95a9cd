"""The largest batch that fits in one way: bounds, a line through totals, the next size."""

from __future__ import annotations

import math

from olla_xla.errors import LimitError
from olla_xla.tools.batch_ways import BatchWay, NotCompiled

_STRAIGHT = 3
"""Every so many compiles between two bounds, the middle is tried instead of where a line points."""

_APART = 0.9
"""Largest ratio of two compiled sizes, the smaller to the larger, for a slope between them."""

_BEYOND = 0.2
"""The last compile goes below the line's answer, by this part of its distance to `high`, to fit."""

_LARGEST = 2**24
"""Largest batch that is scheduled: if it fits, its size does not seem to matter."""

_REACH = 512
"""A line is extrapolated to at most so many times its largest size."""

_FAR = 1024
"""If a size so many times larger takes as much, the step does not use the size."""

_WIDE = 32
"""Ratio of the first two sizes, at least: the totals of nearby sizes give no useful slope."""

_NEAR = 2
"""Ratio of memory and a total below which they are near: half of that size then makes a line."""


class Bounds:
    """Searches for the largest batch that fits memory in one way of compiling, between two bounds.

    Args:
      way: compiles sizes (in XLA's order, planned, ...). unit: sizes are multiples of it.

    Attributes:
      low: the largest that was compiled this way and fits; 0 where none was.
      high: the least that does not fit; 0 where none was found.
      refused: why no further size is compiled this way, or "".
    """

    def __init__(self, way: BatchWay, unit: int) -> None:
        self.way, self.work, self.unit = way, way.work, unit
        self.low = self.high = 0
        self.refused = ""
        self._off = 1.0
        self._tries = 0
        self._last = 0  # the size that was compiled last

    def schedule(self, start: int, most: int) -> None:
        """Has XLA schedule batch sizes until two predicted totals give a line that predicts others.
        `start` is the first, and `most` the number of compiles, of all ways to compile, at which to
        stop. Raises LimitError if totals do not rise with the size, or very large sizes fit.
        """
        at, memory = rounded(start, self.unit), self.work.memory
        totals: dict[int, int] = {}
        while at not in totals and self.work.compiles < most:
            totals[at] = size = self._predict(at)
            self.work.progress(f"batch {at:,}, {self.way.name}: {size / 2**20:,.0f} MB predicted")
            first, last = min(totals), max(totals)
            if totals[last] > totals[first]:
                break
            if last >= _FAR * first:
                raise LimitError(
                    f"a batch of {last:,} takes {size:,} bytes, like a batch of {first:,}; "
                    "does the step depend on the batch size?"
                )
            meets = at * memory / max(size, 1)  # too small, as a step also takes what is constant
            if at >= 2 * self.unit and memory < _NEAR * size < _NEAR**2 * memory:
                meets = at / 2
            elif meets > at:
                meets = max(meets, _WIDE * last)
            else:
                meets = min(meets, at / _WIDE)
            if meets > _LARGEST:
                raise LimitError(
                    f"a batch of {at:,} fits {memory:,} bytes; does memory depend on it?"
                )
            at = rounded(int(meets), self.unit)

    def predict(self, off: float) -> None:
        """Predicts, for a line, total bytes of the (at most two) sizes that XLA has scheduled.
        `off`: XLA's total / the predicted one in the way before, to correct the first estimate by.
        """
        for batch in self.work.known():
            self._predict(batch)
        self._off = off * (1 + self.way.margin)

    def _predict(self, batch: int) -> int:
        size = self.way.predicted(batch)
        self.work.point(self.way.name, batch, size)
        return size

    def off(self) -> float:
        """XLA's total bytes / the predicted ones, of the size compiled last; 1.0 if unknown."""
        self._learn()
        exact, predicted = self.way.exact(), self.way.on_line()
        if exact.get(self._last) and predicted.get(self._last):
            return exact[self._last] / predicted[self._last]
        return 1.0

    def compile(self, batch: int) -> None:
        """Compiles a batch size in full, and sets `low` to it if it fits memory, else `high`.
        If it cannot be compiled this way, sets `refused` to the reason.
        """
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
        """Whether the search is over: the size after `floor`, which fits, is known not to fit,
        or no further size can be compiled this way.
        """
        return bool(self.refused) or 0 < self.high <= floor + self.unit

    def doubt(self, floor: int) -> float:
        """By what fraction the largest batch that fits may exceed the largest that is known to fit.
        It is 0.0 if the search is over, infinite if no size is known to fit. `floor`: the largest
        size that fits when compiled in an earlier way, and so in this; or 0.
        """
        least = max(self.low, floor)
        if self.is_closed(least):
            return 0.0
        if not least:
            return math.inf
        return ((self.high or self.expected(floor) + self.unit) - least) / least

    def expected(self, floor: int) -> int:
        """Estimates the largest batch size that fits memory, by a line through known total bytes.
        It is at least `floor`, a size that fits, or 0, and within the bounds `low` and `high`.
        """
        least = max(self.low, floor)
        meets = max(self._meets(), least)
        at = rounded(int(meets), self.unit) if meets >= self.unit else 0
        return min(at, self.high - self.unit) if self.high else at

    def next(self, floor: int, is_last: bool) -> int:
        """Chooses the batch size to compile next: by a line through known totals, or by bounds.
        `floor`: a size that fits, or 0. `is_last`: whether it is the last compile of this way.
        """
        self._learn()
        least = max(self.low, floor)
        if not self._tries:
            at = int(self._meets(self._off))
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
        """Chooses a batch size below all compiled ones, none of which fits; if `is_last`, lower."""
        meets = self._meets()
        if meets >= self.high:  # the line contradicts the bound
            return self.high // 2
        if is_last:  # this size should fit: go below the line's answer
            return math.floor(meets - _BEYOND * (self.high - meets))
        return min(math.floor(meets), self.high - self.unit * 2 ** (self._tries - 1))

    def _meets(self, off: float = 1.0) -> float:
        """The batch size at which a line through known total bytes times `off` meets memory."""
        exact, predicted, memory = self.way.exact(), self.way.on_line(), self.work.memory / off
        totals = exact or predicted
        at = min(totals, key=lambda b: (abs(totals[b] - memory), b))
        slope = _slope(exact, memory) or _slope(predicted, memory) or max(totals[at], 1) / at
        return min(at + (memory - totals[at]) / slope, _REACH * max(totals))


def _slope(totals: dict[int, int], memory: float) -> float:
    """By how many bytes the total grows for each example more in a batch; 0.0 if not known.

    It is taken from two sizes of `totals` (batch size -> bytes), not too near each other, whose
    totals are near `memory` bytes: if possible from one that fits and one that does not.
    """
    near = sorted(totals, key=lambda b: (abs(totals[b] - memory), b))
    across = [b for b in near if (totals[b] <= memory) != (totals[near[0]] <= memory)]
    for other in across + near[1:]:
        if min(other, near[0]) <= _APART * max(other, near[0]):
            return max((totals[other] - totals[near[0]]) / (other - near[0]), 0.0)
    return 0.0


def rounded(batch: int, unit: int) -> int:
    """Rounds a batch size down to a multiple of `unit`; returns at least `unit`."""
    return max(batch // unit, 1) * unit
