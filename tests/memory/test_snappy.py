"""Snappy in a compiled loop gives what one in plain Python gives, or refuses as it does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlo.module import HloError
from hlo.wire import read_varint, varint
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


def plain(data):
    """The same, a tag at a time."""
    total, at = read_varint(data, 0)
    out = bytearray()
    end = len(data)
    while at < end:
        tag = data[at]
        kind = tag & 3
        if kind == 0:
            size, at = (tag >> 2) + 1, at + 1
            if size > 60:
                width = size - 60
                size, at = int.from_bytes(data[at : at + width], "little") + 1, at + width
            out += data[at : at + size]
            at += size
            continue
        if kind == 1:
            size, back, at = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at + 1], at + 2
        elif kind == 2:
            size, back, at = (tag >> 2) + 1, data[at + 1] | data[at + 2] << 8, at + 3
        else:
            size, back, at = (tag >> 2) + 1, int.from_bytes(data[at + 1 : at + 5], "little"), at + 5
        start = len(out) - back
        if start >= 0 and back >= size:
            out += out[start : start + size]
        elif back and start >= 0:
            out += (out[start:] * (size // back + 1))[:size]
        else:
            raise HloError("not compressed by Snappy")
    if len(out) != total or at > end:
        raise HloError("not compressed by Snappy")
    return bytes(out)


def outcome(function, data):
    try:
        return function(data)
    except (HloError, IndexError):
        return None


@settings(deadline=None)
@given(st.data())
def test_what_is_broken_is_refused_alike(drawn):
    whole = snapped(drawn.draw(st.binary(min_size=1, max_size=60)) * 3)
    at = drawn.draw(st.integers(0, len(whole) - 1))
    byte = drawn.draw(st.integers(0, 255))
    for broken in (whole[:at], whole[:at] + bytes((byte,)) + whole[at + 1 :]):
        found = outcome(unsnapped, broken)
        assert found == outcome(plain, broken)


def test_a_size_that_nothing_can_come_to():
    with pytest.raises(HloError, match="Snappy"):
        unsnapped(varint(2**60) + b"\0a")
