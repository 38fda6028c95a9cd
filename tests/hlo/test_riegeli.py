import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo.module import HloError
from hlo.riegeli import read_message
from hlo.wire import varint
from olla_xla.memory.snappy import unsnapped

pytestmark = pytest.mark.quick

NAME = "xla.Thing"
_BLOCK = 1 << 16


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def manifest(kinds):
    return field(1, NAME.encode()) + b"".join(field(2, kind) for kind in kinds)


MERGED = field(2, b"")
FIRST_FIELD = field(3, field(1, varint(1 << 3) + varint(1)))


def snapped(data):
    """Snappy: a copy wherever four bytes stood before within reach, else single bytes."""
    out, at, seen = [varint(len(data))], 0, {}
    while at < len(data):
        back = at - seen.get(data[at : at + 4], at)
        seen[data[at : at + 4]] = at
        if not back or at + 4 > len(data):
            out.append(bytes((0, data[at])))
            at += 1
            continue
        size = 4
        while size < 64 and at + size < len(data) and data[at + size] == data[at + size - back]:
            size += 1
        if back < 2048 and size < 12:
            out.append(bytes(((back >> 8) << 5 | (size - 4) << 2 | 1, back & 255)))
        elif back < 1 << 16:
            out.append(bytes(((size - 1) << 2 | 2,)) + back.to_bytes(2, "little"))
        else:
            out.append(bytes(((size - 1) << 2 | 3,)) + back.to_bytes(4, "little"))
        at += size
    return b"".join(out)


def chunk(kind, records, compress):
    sizes, values = b"".join(varint(len(r)) for r in records), b"".join(records)
    if compress:
        parts = [varint(len(part)) + snapped(part) for part in (sizes, values)]
    else:
        parts = [sizes, values]
    data = bytes((ord("s") if compress else 0,)) + varint(len(parts[0])) + b"".join(parts)
    data = data if kind == "r" else b""
    header = bytes(8) + len(data).to_bytes(8, "little") + bytes(8) + kind.encode()
    header += len(records).to_bytes(7, "little") + len(values).to_bytes(8, "little")
    return header + data


def written(records, compress=True):
    """A Riegeli file: 24 bytes before each block of 64 KiB."""
    whole = chunk("s", [], False) + chunk("r", records, compress)
    step, parts = _BLOCK - 24, []
    for at in range(0, len(whole), step):
        head = bytes.fromhex("83af70d10d884a3f") if at == 0 else bytes(8)
        parts += [head + bytes(16), whole[at : at + step]]
    return b"".join(parts)


@given(
    st.lists(st.binary(max_size=300).map(lambda b: b * 3), min_size=1, max_size=4), st.booleans()
)
def test_records_are_merged(records, compress):
    data = written([manifest([MERGED] * len(records)), *records], compress)
    assert read_message(data, NAME, unsnapped) == {(): b"".join(records)}


@pytest.mark.parametrize("compress", [False, True])
def test_a_record_may_be_longer_than_a_block(compress):
    long = bytes(k * k % 251 for k in range(1 << 8)) * (1 << 10)
    data = written([manifest([FIRST_FIELD, MERGED]), long, b"rest"], compress)
    assert len(data) > _BLOCK or compress
    assert read_message(data, NAME, unsnapped) == {(1,): long, (): b"rest"}


def test_copies_reach_far_back():
    far = bytes((k * 7919 >> 3) & 255 for k in range(70_000))
    data = written([manifest([MERGED]), far + far])
    assert read_message(data, NAME, unsnapped) == {(): far + far}


@given(st.binary(max_size=200))
def test_what_is_no_file_is_refused(data):
    with pytest.raises(HloError):
        read_message(data, NAME, unsnapped)


def test_another_message_is_refused():
    with pytest.raises(HloError, match="not a file with one xla.Other"):
        read_message(written([manifest([])]), "xla.Other", unsnapped)


@pytest.mark.parametrize("end", [30, 70, 100, 140])
def test_a_file_that_ends_early_is_refused(end):
    data = written([manifest([MERGED]), b"abcdefgh" * 20])
    with pytest.raises(HloError):
        read_message(data[:end], NAME, unsnapped)


def test_another_compression_is_refused():
    data = bytearray(written([manifest([MERGED]), b"abc"]))
    data[24 + 40 + 40] = ord("b")
    with pytest.raises(HloError, match="compressed"):
        read_message(bytes(data), NAME, unsnapped)
