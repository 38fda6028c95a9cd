"""Bytes against added time: the points that a search met, and where more time stops to pay."""

import itertools
from collections.abc import Iterable

_SHOWN = 4  # points of a front at most
_PART = 0.1  # part of the first point's gain a second that the last one's must reach

_LEAST = 0.01
"""Part of the step's time that a point takes at least, where its gain a second is counted."""

Point = tuple[float, int]
"""Predicted seconds added, predicted bytes."""


def front(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points (seconds added, bytes) of which no other is lower in both, by rising time, at most
    four: the first, the last, and those whose loss would cost most. Negative seconds count as 0.
    """
    shown = _undominated(points)
    while len(shown) > _SHOWN:
        lost = [
            (c[0] - b[0]) * (a[1] - b[1])
            for a, b, c in zip(shown, shown[1:], shown[2:], strict=False)
        ]
        shown.pop(1 + lost.index(min(lost)))
    return tuple(shown)


def knee(points: Iterable[Point], step_seconds: float) -> Point:
    """The point (seconds added, bytes) after which more added time saves little memory: of the
    lower convex hull, the last that gains more than a tenth of the first's bytes per second.

    Args:
      points: the one without added time among them. step_seconds: predicted time of the step, of
        which a point counts as taking at least a hundredth.
    """
    hull: list[Point] = []
    for point in _undominated(points):  # of those on the lower hull gains only fall
        while len(hull) > 1 and _gain(hull[-2], point, 0.0) >= _gain(hull[-2], hull[-1], 0.0):
            hull.pop()
        hull.append(point)
    gains = [_gain(a, b, _LEAST * step_seconds) for a, b in itertools.pairwise(hull)]
    last = sum(1 for gain in gains if gain > _PART * gains[0])
    return hull[last]


def _gain(a: Point, b: Point, least: float) -> float:
    return (a[1] - b[1]) / max(b[0] - a[0], least, 1e-12)


def _undominated(points: Iterable[Point]) -> list[Point]:
    kept: list[Point] = []
    for point in sorted((max(seconds, 0.0), size) for seconds, size in points):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept
