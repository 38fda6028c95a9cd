"""The location program with given lifetimes: equations (6), (7), (8) and (15) of the paper.
Addresses A, a peak, and for a pair (i, j) that is live together a binary a, "i lies below j", or
else j below i:

   (8) A_i + S_i <= peak        (7a) A_i + S_i - A_j <= (1 - a) M
                                (7b) A_j + S_j - A_i <= a M

M is no larger than a pair needs, a pair whose pins or twins decide it has no binary, and by (15)
pairs that never meet have no rows.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import SolverError
from olla_xla.place.exact.model import Model as Neighbours
from olla_xla.place.exact.model import model_of, overlapping_pairs
from olla_xla.place.items import Items
from olla_xla.solvers.linear import LinearModel, SolverLimits, Status
from olla_xla.solvers.solve import solve, whole_units

_MOST_PAIRS, _A_SECOND = 400_000, 40_000
"""Pairs that are live together in the largest program that is built; how many a second builds."""


def buildable(part: Items, seconds: float) -> bool:
    """Whether an integer program for a part is not too large, and likely built in `seconds`."""
    return overlapping_pairs(part) // 2 <= min(_MOST_PAIRS, _A_SECOND * seconds)


def lowered(
    part: Items, offsets: NDArray[np.int64], least: int, limits: SolverLimits, backend: str
) -> tuple[NDArray[np.int64], int, tuple[int, int]]:
    """Lowers a packing by an integer program of all of a part's items.

    Args:
      part: items that are independent of others. offsets: a packing of them, bytes.
      least: bytes; no lower packing is of use. limits: of building and solving. backend: solver.

    Returns:
      (offsets, never higher; a proven lower bound on the height, or 0 if it is at most `least`;
        (variables, rows) of the program).

    Raises:
      SolverError: the solver failed, or is not licensed for a program of this size.
    """
    until = time.monotonic() + limits.time_limit
    near = model_of(part)
    begin = in_order_of_twins(near, offsets)
    units = Units(part, begin, {})
    built = LocationIlp(part, near, units, bound=least, most=int((begin + part.need).max()))
    built.model.start = built.start(begin)
    left = max(until - time.monotonic(), 1e-3)
    result = solve(built.model, dataclasses.replace(limits, time_limit=left), [backend])
    if result.status is Status.ERROR:
        raise SolverError(result.failures[0])
    proven = whole_units(result.bound) * units.unit
    size = built.model.variables, built.model.rows
    return built.offsets(result.point()), proven if proven > least else 0, size


class Units:
    """A scale that turns bytes of a packing problem into small integers, multiples of one unit.

    Args:
      part: the items. offsets: with which a solver starts, bytes. pins: item -> offset, bytes.

    Attributes:
      unit: bytes that one unit stands for. step: int64 [items] units that divide its address.
      need: int64 [items] units from its address to its end.
      pins: item -> offset in bytes, those of pinned items of `part` among them.
    """

    def __init__(self, part: Items, offsets: NDArray[np.int64], pins: Mapping[int, int]) -> None:
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

    def only(self, chosen: NDArray[np.int64]) -> Units:
        """Copies this scale for the items `chosen` (numbers) alone, without any pinned offset."""
        scale = copy.copy(self)
        scale.pins, scale.step, scale.need = {}, self.step[chosen], self.need[chosen]
        return scale

    def up(self, size: int) -> int:
        """Converts bytes to units (of `unit` bytes), rounded up."""
        return -(-size // self.unit)


class LocationIlp:
    """The integer program for the addresses of an independent part's items; its `model` minimises
    the peak, in units.

    Args:
      part: its items. near: which items overlap in time. units: the scale, with the pins.
      bound: no packing is lower, bytes. most: the height of a known packing, bytes.
    """

    _cost = 1
    """Of the peak."""

    def __init__(
        self, part: Items, near: Neighbours, units: Units, *, bound: int, most: int
    ) -> None:
        self.model = LinearModel("locations")
        self._part, self._near, self._units = part, near, units
        self._most = most // units.unit
        self._peak = self.model.add_variable(
            min(units.up(bound), self._most), self._most, cost=self._cost, name="peak"
        )
        self._low, self._high = self._ranges()
        steps = units.step.tolist()
        self._address = [
            self.model.add_variable(low // step, high // step, name=f"A[{i}]")
            for i, (low, high, step) in enumerate(zip(self._low, self._high, steps, strict=True))
        ]
        for i, (address, step) in enumerate(zip(self._address, steps, strict=True)):
            # A_i + S_i <= peak
            self.model.add_row(
                [address, self._peak], [step, -1], upper=-int(units.need[i]), tag="(8)"
            )
        self._pairs: list[tuple[int, int, int, int]] = []
        self._add_pairs()

    def start(self, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Computes the values of all variables, float64, for a packing (offsets in bytes)."""
        x = np.zeros(self.model.variables)
        at = offsets // self._units.unit
        x[self._peak] = int((at + self._units.need).max())
        x[self._address] = at // self._units.step
        for i, j, below, a in self._pairs:
            x[a] = at[i] + below <= at[j]
        return x

    def offsets(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Reads offsets, int64 [items] bytes, from a solver's values of all variables."""
        units = np.rint(x[self._address]).astype(np.int64) * self._units.step
        return units * self._units.unit

    def _ranges(self) -> tuple[list[int], list[int]]:
        """Computes the lowest and the highest address of each item, in units of `Units`."""
        low = [0] * len(self._part)
        high = (self._most - self._units.need) // self._units.step * self._units.step
        high = np.maximum(high, 0).tolist()
        for i, at in self._units.pins.items():
            low[i] = high[i] = at // self._units.unit
        return low, high

    def _meeting(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields (i, j, least distance from i up to j if i lies below, from j up to i if j does),
        in units of `Units`, for the pairs i < j of items that are live together.
        """
        near, unit = self._near, self._units.unit
        for i in range(len(self._part)):
            for k in range(near.nb_ptr[i], near.nb_ptr[i + 1]):
                j = int(near.nb_idx[k])
                if i < j:
                    yield i, j, int(near.nb_below[k]) // unit, int(near.nb_above[k]) // unit

    def _add_pairs(self) -> None:
        low, high, model = self._low, self._high, self.model
        for i, j, below, above in self._meeting():
            if i in self._units.pins and j in self._units.pins:
                continue
            can_below = low[i] + below <= high[j]
            can_above = low[j] + above <= high[i] and self._near.twin[j] != i
            if can_below and can_above:
                a = model.add_variable(name=f"a[{i},{j}]")
                self._pairs.append((i, j, below, a))
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
        """Adds the row A_i + height <= A_j on addresses A (in units): item i lies below item j.
        If `chosen`, a binary variable, is given, the row holds where that is `value`; elsewhere it
        is relaxed by `most` units. `tag` names the row.
        """
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


def in_order_of_twins(near: Neighbours, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exchanges the offsets of identical items (in lifetime, sizes and alignment; not pinned) so
    that they rise with the items' numbers: returns a new packing's offsets, of the same height.
    """
    result = offsets.copy()
    first = np.arange(len(offsets))
    for i in np.flatnonzero(near.twin >= 0):
        first[i] = first[near.twin[i]]
    for leader in np.unique(first[near.twin >= 0]):
        alike = np.flatnonzero(first == leader)
        result[alike] = np.sort(offsets[alike])
    return result
