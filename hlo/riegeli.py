"""Reads messages from the Riegeli files in which XLA serializes the executables of GPUs and TPUs.

XLA splits a message that may be large into records (its split_proto.proto) and writes them as a
Riegeli file (github.com/google/riegeli, doc/riegeli_records_file_format.md): blocks of 64 KiB, in
them chunks, in these records, compressed by Snappy. Hashes are not checked; what is not a file of
this kind, or is compressed otherwise, is refused.
"""

from collections.abc import Callable, Iterator

from hlo.module import HloError
from hlo.wire import Message, read_varint

Decompress = Callable[[bytes], bytes]
"""Undoes Snappy; raises HloError."""

_SIGNATURE = bytes.fromhex("83af70d10d884a3f")
_BLOCK = 1 << 16
_BLOCK_HEADER, _CHUNK_HEADER = 24, 40
_SIMPLE, _PASSED_OVER = ord("r"), b"smp"  # chunks of records; signature, metadata, padding
_PLAIN, _SNAPPY = 0, ord("s")
_MERGED, _REPLACED = 2, 3  # in split_proto.proto's Record: what its record is to the message


def is_split(data: bytes) -> bool:
    """Whether `data` begins as a Riegeli file, a format in which XLA splits large messages."""
    return data.startswith(_SIGNATURE)


def read_message(data: bytes, name: str, decompress: Decompress) -> dict[tuple[int, ...], bytes]:
    """Reads a protobuf message that XLA has stored in pieces, as records of a Riegeli file.

    Args:
      data: the file. name: of the message, as "xla.gpu.GpuExecutableProto".
      decompress: undoes Snappy, which takes most of the time.

    Returns:
      Path of field numbers to a field that has its own record -> its bytes; and () -> the rest, a
      serialized message. Fields within repeated messages that have their own record are left out.

    Raises:
      HloError: it is no such file, or is written in a way that is not known here.
    """
    records = _records(data, decompress)
    manifest = Message(next(records, b""))
    if manifest.blob(1) != name.encode():
        raise HloError(f"not a file with one {name}")
    parts: dict[tuple[int, ...], bytes] = {}
    for kind, record in zip(manifest.messages(2), records, strict=True):
        if kind.numbers() == {_MERGED}:  # concatenated, serialized messages are one
            parts[()] = parts.get((), b"") + record
        elif kind.numbers() == {_REPLACED}:
            path = kind.message(_REPLACED).messages(1)
            if all(part.numbers() == {1} for part in path):
                parts[tuple(part.integer(1) for part in path)] = record
        else:
            raise HloError(f"{name} is split in a way that is not known")
    return parts


def _records(data: bytes, decompress: Decompress) -> Iterator[bytes]:
    """Yields the records of a Riegeli file in order, decompressed. Raises HloError."""
    if not is_split(data):
        raise HloError("not a Riegeli file")
    begin = 0
    while begin < len(data):
        header, at = _taken(data, begin, _CHUNK_HEADER)
        kind, count = header[24], int.from_bytes(header[25:32], "little")
        chunk, at = _taken(data, at, int.from_bytes(header[8:16], "little"))
        begin = max(at, begin + count)  # a chunk has at least a byte for each of its records
        if kind == _SIMPLE:
            yield from _simple(chunk, count, decompress)
        elif kind not in _PASSED_OVER:
            raise HloError(f"Riegeli chunks of kind {chr(kind)!r} are not known")


def _taken(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    """Reads `size` bytes of content at a position, without block headers: (bytes, end position)."""
    parts = []
    while size:
        if at % _BLOCK == 0:
            at += _BLOCK_HEADER
        part = data[at : at + min(size, _BLOCK - at % _BLOCK)]
        if not part:
            raise HloError("a Riegeli file ends within a chunk")
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts), at


def _simple(chunk: bytes, count: int, decompress: Decompress) -> Iterator[bytes]:
    """Yields the `count` records of a chunk, which stores all their sizes before their values."""
    if not chunk or chunk[0] not in (_PLAIN, _SNAPPY):
        raise HloError("the executable is compressed in a way that is not known")
    length, at = read_varint(chunk, 1)
    parts = chunk[at : at + length], chunk[at + length :]
    if chunk[0] == _SNAPPY:  # each behind its uncompressed size, which Snappy repeats
        parts = tuple(decompress(part[read_varint(part, 0)[1] :]) for part in parts)
    sizes, values = parts
    at = begin = 0
    for _ in range(count):
        size, at = read_varint(sizes, at)
        if begin + size > len(values):
            raise HloError("a Riegeli record extends beyond its chunk")
        yield values[begin : begin + size]
        begin += size
