"""Snappy in a compiled loop gives what the one in Python gives, or refuses as it does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlo import riegeli
from hlo.module import HloError
from hlo.wire import varint
from olla_xla.memory.snappy import unsnapped
from tests.hlo.test_riegeli import snapped


@settings(deadline=None)
@given(st.binary(max_size=400).map(lambda b: b * 3), st.binary(max_size=90))
def test_what_was_compressed_comes_back(repeated, rest):
    data = repeated + rest + repeated
    assert unsnapped(snapped(data)) == data


@pytest.mark.parametrize("size", [60, 61, 256, 257, 70_000])
def test_long_runs_have_their_size_apart(size):
    data = bytes(k * k % 251 for k in range(size))
    width = max((size - 1).bit_length() + 7, 8) // 8
    tag = (59 + width) << 2 if size > 60 else (size - 1) << 2
    head = bytes((tag,)) + ((size - 1).to_bytes(width, "little") if size > 60 else b"")
    assert unsnapped(varint(size) + head + data) == data


def outcome(function, data):
    try:
        return function(data)
    except HloError:
        return None


@settings(deadline=None)
@given(st.data())
def test_what_is_broken_is_refused_alike(drawn):
    whole = snapped(drawn.draw(st.binary(min_size=1, max_size=60)) * 3)
    at = drawn.draw(st.integers(0, len(whole) - 1))
    byte = drawn.draw(st.integers(0, 255))
    for broken in (whole[:at], whole[:at] + bytes((byte,)) + whole[at + 1 :]):
        found = outcome(unsnapped, broken)
        assert found == outcome(riegeli.unsnapped, broken)


def test_a_size_that_nothing_can_come_to():
    with pytest.raises(HloError, match="Snappy"):
        unsnapped(varint(2**60) + b"\0a")
