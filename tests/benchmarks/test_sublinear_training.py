"""What is told as falling short of Chen et al.'s figures."""

import pytest

from benchmarks.sublinear_training import PAPER_TIME, TimeRow, misses

pytestmark = pytest.mark.quick


def _row(turns, ratio):
    sizes = dict.fromkeys(
        (f"{kind}_{what}_bytes" for kind in ("plain", "sublinear") for what in ("temp", "total")), 1
    )
    return TimeRow("lstm", 16, turns, 1.0, ratio, ratio, largest_difference=0.0, **sizes)


@pytest.mark.parametrize(
    ("turns", "ratio", "count"), [(5, PAPER_TIME + 0.1, 1), (5, PAPER_TIME, 0), (1, 3.0, 0)]
)
def test_time_is_judged_by_the_median_of_several_runs(turns, ratio, count):
    found = misses([], [_row(turns, ratio)])
    assert len(found) == count
    assert all(f"{ratio:.2f} times the step time" in line for line in found)
