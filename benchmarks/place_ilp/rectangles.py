"""A solver-free model of places: rectangles fixed in time that move up and down.

The rectangles of one block move together, and no two overlap. Either the highest end of any block
is minimised, or the amount that exceeds a target height. A backend that supports rectangles solves
the model directly.
"""

from __future__ import annotations

import dataclasses

__all__ = ["Rectangle", "RectangleModel"]


@dataclasses.dataclass(frozen=True)
class Rectangle:
    """Over times [start, stop), `height` units from its block's address on."""

    block: int
    start: int
    stop: int
    height: int


@dataclasses.dataclass(frozen=True)
class RectangleModel:
    """A model; all but times are in units.

    Attributes:
      step: by block, its address is a multiple of it.
      low, high: by block, the range of its address.
      need: by block, from its address to its end.
      rectangles: none overlap.
      ordered: (i, j): block i lies no higher than j.
      bound: no solution has a lower peak. most: the peak is no higher.
      start: by block, its address in a known solution; or None.
      gaps: by block, ascending ranges [low, high] that hold its address; None: from low to high.
      target_height: None to minimise the peak; else the sum over all blocks of what lies above the
        target height.
    """

    step: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    need: tuple[int, ...]
    rectangles: tuple[Rectangle, ...]
    ordered: tuple[tuple[int, int], ...]
    bound: int
    most: int
    start: tuple[int, ...] | None = None
    gaps: tuple[tuple[tuple[int, int], ...], ...] | None = None
    target_height: int | None = None
