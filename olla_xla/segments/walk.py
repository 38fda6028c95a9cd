"""A program as a walk: steps (equations) in topological order, and the values between them.

A cut at step `i` lies between steps `i` and `i + 1`. Sizes are bytes; ranges of steps half-open.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.lifetimes import live_bytes


@dataclasses.dataclass(frozen=True)
class Walk:
    """A program as a sequence of steps, and the values (with sizes) that pass between them.
    Arguments are not among the values: they are in memory whatever is recomputed.

    Attributes:
      sizes: int64[n], bytes that each step makes and a backward pass may need.
      value_bytes: int64[m], bytes of each value. source: int64[m], step that makes it.
      use_value, use_step: int64[u], every read of a value, in any order.
      fixed: bool[n], steps that are never recomputed (side effects).
      allowed: bool[n], the steps after which a cut may be (C of algorithm 3); None: the planner
        looks for such steps itself.
    """

    sizes: NDArray[np.int64]
    value_bytes: NDArray[np.int64]
    source: NDArray[np.int64]
    use_value: NDArray[np.int64]
    use_step: NDArray[np.int64]
    fixed: NDArray[np.bool_]
    allowed: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        values: Sequence[tuple[int, int, Sequence[int]]],
        fixed: Sequence[int] = (),
    ) -> Walk:
        """Makes a walk of each step's bytes; each value as (bytes, step that makes it, steps that
        read it); and the numbers of fixed steps.
        """
        flags = np.zeros(len(sizes), np.bool_)
        flags[list(fixed)] = True
        return cls(
            sizes=np.array(sizes, np.int64),
            value_bytes=np.array([b for b, _, _ in values], np.int64),
            source=np.array([s for _, s, _ in values], np.int64),
            use_value=np.array([k for k, v in enumerate(values) for _ in v[2]], np.int64),
            use_step=np.array([u for v in values for u in v[2]], np.int64),
            fixed=flags,
        )

    def __len__(self) -> int:
        return len(self.sizes)

    def part(self, start: int, stop: int) -> Walk:
        """Returns a walk of steps [start, stop), numbered from 0, and the values made in it."""
        inside = (self.source >= start) & (self.source < stop)
        number = np.cumsum(inside) - 1
        uses = inside[self.use_value] & (self.use_step >= start) & (self.use_step < stop)
        return Walk(
            sizes=self.sizes[start:stop],
            value_bytes=self.value_bytes[inside],
            source=self.source[inside] - start,
            use_value=number[self.use_value[uses]],
            use_step=self.use_step[uses] - start,
            fixed=self.fixed[start:stop],
            allowed=None if self.allowed is None else self.allowed[start:stop],
        )

    @property
    def last_use(self) -> NDArray[np.int64]:
        """int64[m]: the last step that reads each value, or the step that makes it if none does."""
        last = self.source.copy()
        np.maximum.at(last, self.use_value, self.use_step)
        return last

    def crossing(self, longest: int | None = None) -> NDArray[np.int64]:
        """Returns int64[n]: bytes of the values that are made up to each step and read after it;
        the last has 0. `longest`: leave out values that live on over more than this many bytes of
        steps: they cross some cut wherever it is, so they say nothing about where.
        """
        last = self.last_use
        sizes = self.value_bytes
        if longest is not None:
            done = np.cumsum(self.sizes)
            sizes = np.where(done[last] - done[self.source] <= longest, sizes, 0)
        return live_bytes(self.source, last, sizes, len(self))

    def stored(self, cuts: Sequence[int]) -> NDArray[np.bool_]:
        """Returns bool[m]: which values are made up to and read after one of the steps `cuts`
        (ascending), where segments end, and so must be kept.
        """
        if not len(cuts):
            return np.zeros(len(self.source), np.bool_)
        ascending = np.append(np.asarray(cuts, np.int64), np.iinfo(np.int64).max)
        first = ascending[np.searchsorted(ascending[:-1], self.source)]
        return first < self.last_use
