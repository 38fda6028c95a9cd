"""The location program with given lifetimes: equations (6), (7), (8) and (15) of the paper.

Addresses A, a peak, and for a pair (i, j) that is live together binaries a, "i lies below j", and
b, "j lies below i":

   (6) a + b = 1                (7a) A_i + S_i - A_j <= (1 - a) M
   (8) A_i + S_i <= peak        (7b) A_j + S_j - A_i <= (1 - b) M

Pruned, b is 1 - a, M is no larger than a pair needs, a pair whose pins or twins decide it has no
binary, and by (15) pairs that never meet have no rows. Not pruned, every pair has both.

Among items that stay where they are, an address lies in one of the gaps between them: a binary for
each, and nothing for the pairs with what stays. Then what lies above a target height is minimised,
since what stays may be higher than all that moves.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from olla_xla.place.exact.model import Model as Neighbours
from olla_xla.place.items import Items
from olla_xla.solvers.linear import LinearModel

__all__ = ["LocationIlp", "Units", "in_order_of_twins"]


class Units:
    """How bytes of a part become small integers.

    Args:
      part: the items. offsets: with which a solver starts, bytes. pins: item -> offset, bytes.

    Attributes:
      unit: bytes that one unit stands for.
      step: int64 [items] units of which an item's address is a multiple.
      need: int64 [items] units from its address to its end.
      pins: item -> offset in bytes, those of the part among them.
    """

    def __init__(self, part: Items, offsets: np.ndarray, pins: Mapping[int, int]) -> None:
        self.pins = {int(i): int(part.fixed[i]) for i in np.flatnonzero(part.fixed >= 0)}
        self.pins |= {int(i): int(at) for i, at in pins.items()}
        steps = part.align.copy()
        if (part.align == part.grain).all():
            # Some lowest packing has every item at 0, at a pin, or right on another.
            heights = (*part.part_height.tolist(), *offsets.tolist(), *self.pins.values())
            steps[:] = math.gcd(*heights) or part.grain
        sizes = (*steps.tolist(), *part.part_height.tolist(), *part.need.tolist())
        self.unit = math.gcd(*sizes, *self.pins.values()) or 1
        self.step = steps // self.unit
        self.need = part.need // self.unit

    def only(self, chosen: np.ndarray) -> Units:
        """The same scale for some of the items, none of them pinned."""
        found = copy.copy(self)
        found.pins, found.step, found.need = {}, self.step[chosen], self.need[chosen]
        return found

    def up(self, size: int) -> int:
        """The least number of units that is no less than so many bytes."""
        return -(-size // self.unit)


class LocationIlp:
    """The program of an independent part.

    Args:
      part: its items. near: who meets whom. units: the scale, with the pins.
      bound: no packing is lower, bytes. most: a height that is known to do, bytes.
      pruned: see above.
      gaps: by item, ascending ranges [low, high] of its address, units; None: any address.
      target_height: None to minimise the peak; else units, and the sum of what lies above is
        minimised.

    Attributes:
      model: minimises the peak, or what lies above the target height, in units.
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
        self.model = LinearModel("locations")
        self._part, self._near, self._units = part, near, units
        self._most = most // units.unit
        self._peak = self.model.add_variable(
            min(units.up(bound), self._most), self._most, cost=target_height is None, name="peak"
        )
        self._low, self._high = self._ranges(gaps)
        self._address = [
            self.model.add_variable(low // step, high // step, name=f"A[{i}]")
            for i, (low, high, step) in enumerate(
                zip(self._low, self._high, units.step.tolist(), strict=True)
            )
        ]
        for i, (address, step) in enumerate(zip(self._address, units.step.tolist(), strict=True)):
            # A_i + S_i <= peak
            self.model.add_row(
                [address, self._peak], [step, -1], upper=-int(units.need[i]), tag="(8)"
            )
        self._add_gaps(gaps or ())
        if target_height is not None:
            self._add_target_height(target_height)
        self._pairs: list[tuple[int, int, int, int, int, int | None]] = []
        for i, j, below, above in self._meeting() if pruned else self._all_pairs():
            self._add_pair(i, j, below, above, pruned)

    def start(self, offsets: np.ndarray) -> np.ndarray:
        """The point of a packing (bytes)."""
        x = np.zeros(self.model.variables)
        at = offsets // self._units.unit
        x[self._peak] = int((at + self._units.need).max())
        x[self._address] = at // self._units.step
        for i, j, below, above, a, b in self._pairs:
            if b is None:
                x[a] = at[i] + below <= at[j]
            else:  # both hold for pairs that never meet; (6) allows one
                x[a] = at[i] + below <= at[j]
                x[b] = not x[a] and at[j] + above <= at[i]
        return x

    def offsets(self, x: np.ndarray) -> np.ndarray:
        """Bytes, of a checked point."""
        units = np.rint(x[self._address]).astype(np.int64) * self._units.step
        return units * self._units.unit

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

    def _ranges(
        self, gaps: Sequence[Sequence[tuple[int, int]]] | None
    ) -> tuple[list[int], list[int]]:
        """The lowest and highest address of each item, in units."""
        if gaps is not None:
            return [ranges[0][0] for ranges in gaps], [ranges[-1][1] for ranges in gaps]
        low = [0] * len(self._part)
        high = (self._most - self._units.need) // self._units.step * self._units.step
        high = np.maximum(high, 0).tolist()
        for i, at in self._units.pins.items():
            low[i] = high[i] = at // self._units.unit
        return low, high

    def _meeting(self) -> Iterator[tuple[int, int, int, int]]:
        """Pairs i < j that are live together, with the height of i, and of j, where they meet."""
        near, unit = self._near, self._units.unit
        for i in range(len(self._part)):
            for k in range(near.nb_ptr[i], near.nb_ptr[i + 1]):
                j = int(near.nb_idx[k])
                if i < j:
                    yield i, j, int(near.nb_below[k]) // unit, int(near.nb_above[k]) // unit

    def _all_pairs(self) -> Iterator[tuple[int, int, int, int]]:
        """Every pair; heights are 0 where they never meet."""
        meeting = {(i, j): (below, above) for i, j, below, above in self._meeting()}
        for i in range(len(self._part)):
            for j in range(i + 1, len(self._part)):
                yield i, j, *meeting.get((i, j), (0, 0))

    def _add_pair(self, i: int, j: int, below: int, above: int, pruned: bool) -> None:
        low, high, model = self._low, self._high, self.model
        if not pruned:
            a, b = model.add_variables(2, name=lambda k: f"{'ab'[k]}[{i},{j}]")
            self._pairs.append((i, j, below, above, a, b))
            meet = below > 0 or above > 0
            model.add_row([a, b], [1, 1], lower=int(meet), upper=1, tag="(6)")
            # A pair that never meets is the paper's a + b >= 0: either may hold, neither need.
            self._add_below(i, j, below, a, 1, self._most, "(7a)")
            self._add_below(j, i, above, b, 1, self._most, "(7b)")
            return
        if i in self._units.pins and j in self._units.pins:
            return
        can_below = low[i] + below <= high[j]
        can_above = low[j] + above <= high[i] and self._near.twin[j] != i
        if can_below and can_above:
            a = model.add_variable(name=f"a[{i},{j}]")
            self._pairs.append((i, j, below, above, a, None))
            self._add_below(i, j, below, a, 1, high[i] + below - low[j], "(7a)")
            self._add_below(j, i, above, a, 0, high[j] + above - low[i], "(7b)")
        else:
            self._add_below(*((i, j, below) if can_below else (j, i, above)))

    def _add_below(
        self,
        i: int,
        j: int,
        height: int,
        chosen: int | None = None,
        value: int = 1,
        most: int = 0,
        tag: str = "(7) decided",
    ) -> None:
        """A_i + height <= A_j, where the binary `chosen` has that value; `most` undoes it else."""
        step = self._units.step
        columns = [self._address[i], self._address[j]]
        coefficients = [int(step[i]), -int(step[j])]
        if chosen is None:
            self.model.add_row(columns, coefficients, upper=-height, tag=tag)
        elif value:
            upper = most - height
            self.model.add_row([*columns, chosen], [*coefficients, most], upper=upper, tag=tag)
        else:
            self.model.add_row([*columns, chosen], [*coefficients, -most], upper=-height, tag=tag)


def in_order_of_twins(near: Neighbours, offsets: np.ndarray) -> np.ndarray:
    """The same packing with twins by increasing offset: they may change places."""
    result = offsets.copy()
    first = np.arange(len(offsets))
    for i in np.flatnonzero(near.twin >= 0):
        first[i] = first[near.twin[i]]
    for leader in np.unique(first[near.twin >= 0]):
        alike = np.flatnonzero(first == leader)
        result[alike] = np.sort(offsets[alike])
    return result
