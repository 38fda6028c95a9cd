"""The search between a batch that fits and one that does not, on totals that are given."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.compile.batch_bounds import Bounds
from olla_xla.compile.batch_ways import Batches, BatchWay, NotCompiled

pytestmark = pytest.mark.quick


class Curve(BatchWay):
    """A way whose totals are a function of the batch."""

    name = "curve"

    def __init__(self, total, memory, predicted=None):
        self.lines = []
        super().__init__(Batches(None, memory, self.lines.append))
        self.total, self.guess, self.line = total, predicted or total, {}

    def predicted(self, batch):
        self.work._captured.setdefault(batch, None)
        return self.line.setdefault(batch, self.guess(batch))

    def compiled(self, batch):
        self.work.compiles += 1
        self.work._captured.setdefault(batch, None)
        return self.total(batch)

    def on_line(self):
        return self.line


def answer(way, unit, floor=0, start=8, compiles=50):
    """The largest size, by as many compiles as it takes."""
    bounds = Bounds(way, unit)
    bounds.predict(floor, start, most=2)
    for k in range(compiles):
        if bounds.is_closed(max(bounds.low, floor)):
            break
        size = bounds.next(floor, is_last=k == compiles - 1)
        low, high = max(bounds.low, floor), bounds.high
        assert size % unit == 0 and size > low and (not high or size < high)
        bounds.compile(size)
        assert not high or bounds.high <= high, "what does not fit only comes down"
    return bounds


@given(
    st.integers(0, 500), st.integers(1, 40), st.integers(1, 4), st.integers(1, 2000),
    st.booleans(),
)  # fmt: skip
def test_the_largest_size_is_found(fixed, slope, unit, largest, bent):
    def total(batch):
        return fixed + slope * batch + (slope * batch * batch // 4000 if bent else 0)

    largest *= unit
    way = Curve(total, total(largest) + slope * unit // 2)
    bounds = answer(way, unit)
    assert bounds.low == largest and bounds.high == largest + unit
    assert bounds.doubt(0) == 0.0 and bounds.expected(0) == largest


def test_a_straight_line_takes_two_compiles():
    way = Curve(lambda b: 1000 + 10 * b, 6005)
    bounds = answer(way, 1, compiles=10)
    assert (bounds.low, bounds.high) == (500, 501)
    assert way.work.compiles == 2, "the answer and the one that does not fit"


def test_a_size_that_is_refused_ends_the_search():
    def refused(batch):
        raise NotCompiled("the plan is not run")

    way = Curve(lambda b: b, 100)
    bounds = Bounds(way, 1)
    bounds.predict(0, 8, most=2)
    way.compiled = refused
    assert not bounds.is_closed(0) and bounds.doubt(0) == math.inf
    bounds.compile(bounds.next(0, is_last=False))
    assert bounds.is_closed(0) and bounds.doubt(0) == 0.0
    assert bounds.refused == "the plan is not run" and way.lines[-1].endswith(bounds.refused)


def test_what_is_left_in_doubt():
    bounds = Bounds(Curve(lambda b: b, 100), 2)
    bounds.low, bounds.high = 40, 60
    assert bounds.doubt(0) == pytest.approx(0.5)
    assert bounds.doubt(50) == pytest.approx(0.2), "the previous way's answer fits this way too"
    assert bounds.is_closed(58) and not bounds.is_closed(57)


def test_the_first_size_allows_for_the_error_of_the_way_before():
    """XLA takes a fifth more than predicted: the line is to meet 5000 of 6000 bytes."""
    way = Curve(lambda b: 12 * b, 6000, predicted=lambda b: 10 * b)
    bounds = Bounds(way, 1)
    bounds.predict(0, 8, most=2, off=1.2)
    assert bounds.next(0, is_last=False) == 500
    bounds.compile(500)
    assert bounds.low == 500 and bounds.off() == pytest.approx(1.2)


def test_the_last_compile_goes_below_the_line():
    way = Curve(lambda b: 10 * b, 1000)
    bounds = Bounds(way, 1)
    for size in (200, 150):
        bounds.compile(size)
    assert (bounds.low, bounds.high) == (0, 150)
    assert bounds.next(0, is_last=True) == 90, "100 by the line, less a fifth of the way to 150"
