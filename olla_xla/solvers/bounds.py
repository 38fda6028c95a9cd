"""Solvers' bounds: the one place where a bound becomes a whole number of units.

A solver that is stopped early may have no bound yet. What it then returns depends on the solver:
minus infinity, its own infinity (1e20, 1e100), plus infinity or NaN.
"""

from __future__ import annotations

import math

_INFINITE = 1e20
"""From here on a number is some solver's infinity; CP-SAT's integers end at 2**63, or 9.2e18."""

_ROUNDING = 1e-6
"""Units by which a bound in floating-point numbers may be too high."""


def known(bound: float) -> float:
    """The bound if it is finite and no solver's infinity (1e20 or more), else minus infinity."""
    return bound if -_INFINITE < bound < _INFINITE else -math.inf


def whole_units(bound: float) -> int:
    """A lower bound rounded up to a whole number, at least 0; 0 where nothing is known.

    Example:
      >>> whole_units(2.3), whole_units(2.0000001), whole_units(-math.inf)
      (3, 2, 0)
    """
    bound = known(bound)
    return max(math.ceil(bound - _ROUNDING), 0) if math.isfinite(bound) else 0
