"""Byte sizes made small before a solver sees them, and turned back afterwards."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.solvers.bounds import whole_units


@dataclasses.dataclass(frozen=True, eq=False)
class Scale:
    """A unit for byte sizes in a model: a peak of `v` units stands for `base + unit * v` bytes.

    Attributes:
      unit: bytes, the greatest common divisor of all sizes.
      base: bytes live at every step: the least transient bytes of any operator.
      sizes: int64 [m] in units. transient: int64 [n] in units beyond `base`, not negative.
      most: units, no order has a larger peak.
    """

    unit: int
    base: int
    sizes: NDArray[np.int64]
    transient: NDArray[np.int64]
    most: int

    @classmethod
    def of(cls, g: GraphArrays) -> Scale:
        """The scale of a graph with the largest unit that represents every sum exactly."""
        base = int(g.transient.min()) if g.n else 0
        extra = g.transient - base
        unit = math.gcd(*g.bytes.tolist(), *extra.tolist()) or 1
        sizes, extra = g.bytes // unit, extra // unit
        return cls(unit, base, sizes, extra, int(sizes.sum() + extra.max(initial=0)))

    def to_bytes(self, units: float) -> int:
        """A peak in bytes, from units; never below 0, as in `lifetimes.peak_bytes`."""
        return max(self.base + self.unit * round(units), 0)

    def to_bytes_up(self, units: float) -> int:
        """A solver's lower bound in bytes, from units, which are rounded up to a whole number."""
        return self.to_bytes(whole_units(units))

    def to_units(self, peak_bytes: int) -> int:
        """The least number of units that is no less than a peak in bytes, and not below 0."""
        return max(-((self.base - peak_bytes) // self.unit), 0)
