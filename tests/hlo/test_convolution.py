"""Multiply-adds of convolutions against a count of all places."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hlo import xla_pb2
from hlo.convolution import _places


@given(
    extent=st.integers(1, 7),
    size=st.integers(1, 5),
    stride=st.integers(1, 4),
    low=st.integers(-2, 5),
    high=st.integers(-2, 5),
    spread=st.integers(1, 3),
    base=st.integers(1, 3),
)
def test_places(extent, size, stride, low, high, spread, base):
    whole = (extent - 1) * base + 1 + low + high
    out = (whole - ((size - 1) * spread + 1)) // stride + 1
    if out < 1:
        return
    window = xla_pb2.WindowDimension(
        size=size,
        stride=stride,
        padding_low=low,
        padding_high=high,
        window_dilation=spread,
        base_dilation=base,
    )
    read = (p * stride + k * spread - low for p, k in itertools.product(range(out), range(size)))
    expected = sum(x % base == 0 and 0 <= x // base < extent for x in read)
    assert _places(extent, out, window) == expected
