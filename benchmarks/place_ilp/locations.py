"""The location program in forms that are measured: of a window, and without what prunes it.

`place.programs` has the program. Not pruned, every pair (i, j) has both binaries of (6) and (7),
a + b = 1, and M is the largest height. Among items that stay where they are, an address lies in one
of the gaps between them: a binary for each, and nothing for the pairs with what stays. Then what
lies above a target height is minimised, since what stays may be higher than all that moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from olla_xla.place import programs
from olla_xla.place.exact.model import Model as Neighbours
from olla_xla.place.items import Items
from olla_xla.place.programs import Units

__all__ = ["LocationIlp"]


class LocationIlp(programs.LocationIlp):
    """The program of an independent part.

    Args:
      part, near, units, bound, most: as there. pruned: see above.
      gaps: by item, ascending ranges [low, high] of its address, units; None: any address.
      target_height: None to minimise the peak; else units, and the sum of what lies above is
        minimised.
    """

    def __init__(
        self,
        part: Items,
        near: Neighbours,
        units: Units,
        *,
        bound: int,
        most: int,
        pruned: bool = True,
        gaps: Sequence[Sequence[tuple[int, int]]] | None = None,
        target_height: int | None = None,
    ) -> None:
        self._gaps, self._target, self._pruned = gaps, target_height, pruned
        self._cost = int(target_height is None)
        self._both: list[tuple[int, int, int, int, int]] = []
        super().__init__(part, near, units, bound=bound, most=most)

    def start(self, offsets: np.ndarray) -> np.ndarray:
        """The point of a packing (bytes)."""
        x = super().start(offsets)
        at = offsets // self._units.unit
        for i, j, above, a, b in self._both:  # both hold for pairs that never meet; (6) allows one
            x[b] = not x[a] and at[j] + above <= at[i]
        return x

    def _add_gaps(self, gaps: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Each address in one of its gaps."""
        for i, ranges in enumerate(gaps):
            if len(ranges) < 2:
                continue
            within = self.model.add_variables(len(ranges), name=lambda k, i=i: f"gap[{i},{k}]")
            step = int(self._units.step[i])
            self.model.add_row(within, [1] * len(ranges), 1, 1, tag="gap")
            for k, tag in enumerate(("gap from", "gap to")):
                # sum_g low_g z_g <= A_i <= sum_g high_g z_g
                ends = [-(gap[k] // step) for gap in ranges]
                lower, upper = (0, math.inf) if k == 0 else (-math.inf, 0)
                self.model.add_row([self._address[i], *within], [1, *ends], lower, upper, tag=tag)

    def _add_target_height(self, target_height: int) -> None:
        """A_i + S_i <= target height + what lies above it."""
        for i, (high, need) in enumerate(zip(self._high, self._units.need.tolist(), strict=True)):
            if high + need > target_height:
                above = self.model.add_variable(
                    0, high + need - target_height, cost=1, name=f"above[{i}]"
                )
                self.model.add_row(
                    [self._address[i], above],
                    [int(self._units.step[i]), -1],
                    upper=target_height - need,
                    tag="above",
                )

    def _ranges(self) -> tuple[list[int], list[int]]:
        if self._gaps is None:
            return super()._ranges()
        return [ranges[0][0] for ranges in self._gaps], [ranges[-1][1] for ranges in self._gaps]

    def _add_pairs(self) -> None:
        self._add_gaps(self._gaps or ())
        if self._target is not None:
            self._add_target_height(self._target)
        if self._pruned:
            super()._add_pairs()
            return
        for i, j, below, above in self._all_pairs():
            a, b = self.model.add_variables(2, name=lambda k, i=i, j=j: f"{'ab'[k]}[{i},{j}]")
            self._pairs.append((i, j, below, a))
            self._both.append((i, j, above, a, b))
            meet = below > 0 or above > 0
            self.model.add_row([a, b], [1, 1], lower=int(meet), upper=1, tag="(6)")
            # A pair that never meets is the paper's a + b >= 0: either may hold, neither need.
            self._add_below(i, j, below, a, 1, self._most, "(7a)")
            self._add_below(j, i, above, b, 1, self._most, "(7b)")

    def _all_pairs(self) -> Iterator[tuple[int, int, int, int]]:
        """Every pair; heights are 0 where they never meet."""
        meeting = {(i, j): (below, above) for i, j, below, above in self._meeting()}
        for i in range(len(self._part)):
            for j in range(i + 1, len(self._part)):
                yield i, j, *meeting.get((i, j), (0, 0))
