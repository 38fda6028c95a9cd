"""The growth of a series in its second half, by the median of all pairwise slopes.

Theil, "A rank-invariant method of linear and polynomial regression analysis" (1950); Sen (JASA
1968). A few disturbed samples do not change the median.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence


def slope(counts: Sequence[int], values: Sequence[float]) -> float:
    """The growth of a value for each count, the median slope; 0 for fewer than two samples."""
    points = itertools.combinations(zip(counts, values, strict=True), 2)
    slopes = [(y - b) / (x - a) for (a, b), (x, y) in points if x != a]
    return statistics.median(slopes) if slopes else 0.0


def growth(counts: Sequence[int], values: Sequence[float]) -> float:
    """The growth of a value over the second half of its samples, as a fraction of their median."""
    half = len(counts) // 2
    counts, values = counts[half:], values[half:]
    if len(counts) < 2:
        return 0.0
    return slope(counts, values) * (counts[-1] - counts[0]) / max(statistics.median(values), 1e-12)
