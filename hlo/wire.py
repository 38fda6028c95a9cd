"""Reads and edits messages in protobuf's wire format without their schema.

Fields keep their order and their bytes, known or not; nothing is dropped or normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from hlo.module import HloError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10


class Message:
    """A parsed protobuf message: a list of fields that can be read and changed without its schema.

    Raises HloError if the bytes are no message.
    """

    def __init__(self, data: bytes) -> None:
        self._fields: list[tuple[int, int, int | bytes | Message]] = []
        at, end = 0, len(data)
        while at < end:
            key, at = read_varint(data, at)
            number, kind = key >> 3, key & 7
            value: int | bytes
            if kind == _VARINT:
                value, at = read_varint(data, at)
            else:
                if kind == _BYTES:
                    length, at = read_varint(data, at)
                elif kind in _FIXED:
                    length = _FIXED[kind]
                else:
                    raise HloError(f"wire type {kind} is not known")
                value, at = data[at : at + length], at + length
            if not number or at > end:
                raise HloError("not a protobuf message")
            self._fields.append((number, kind, value))

    def encode(self) -> bytes:
        """Serializes the message with all changes."""
        parts = []
        for number, kind, value in self._fields:
            parts.append(varint(number << 3 | kind))
            if isinstance(value, int):
                parts.append(varint(value))
                continue
            data = value.encode() if isinstance(value, Message) else value
            if kind == _BYTES:
                parts.append(varint(len(data)))
            parts.append(data)
        return b"".join(parts)

    def numbers(self) -> set[int]:
        """Returns the field numbers that occur in the message."""
        return {number for number, _, _ in self._fields}

    def without(self, numbers: Collection[int]) -> Message:
        """Copies the message without these fields, by number; parsed submessages are shared."""
        other = Message(b"")
        other._fields = [field for field in self._fields if field[0] not in numbers]
        return other

    def keep(self, number: int, wanted: Callable[[Message], bool]) -> None:
        """Removes the submessages in a field for which `wanted` is false. Raises HloError."""
        verdicts = iter([wanted(message) for message in self.messages(number)])
        self._fields = [field for field in self._fields if field[0] != number or next(verdicts)]

    def messages(self, number: int) -> list[Message]:
        """Parses all submessages in a field; changing one changes this message. Raises HloError."""
        submessages = []
        for k, (n, kind, value) in enumerate(self._fields):
            if n != number:
                continue
            if kind != _BYTES:
                raise HloError(f"field {number} is not a message")
            if isinstance(value, bytes):
                value = Message(value)
                self._fields[k] = (n, kind, value)
            assert isinstance(value, Message)
            submessages.append(value)
        return submessages

    def message(self, number: int) -> Message:
        """Returns the submessage in a field. Raises HloError if it does not occur exactly once."""
        submessages = self.messages(number)
        if len(submessages) != 1:
            raise HloError(f"field {number} occurs {len(submessages)} times, not once")
        return submessages[0]

    def blob(self, number: int) -> bytes:
        """Returns the bytes of a field; b"" if it is missing. HloError if it has several values, a
        number, or a message that was parsed (`messages`).
        """
        contents = [v for n, _, v in self._fields if n == number]
        if len(contents) > 1 or not all(isinstance(v, bytes) for v in contents):
            raise HloError(f"field {number} is not one string of bytes")
        return contents[0] if contents else b""  # pyright: ignore[reportReturnType]

    def text(self, number: int) -> str:
        """Returns the text in a field; "" if it is missing. HloError as `blob`, or if no text."""
        try:
            return self.blob(number).decode()
        except UnicodeDecodeError as error:
            raise HloError(f"field {number} is not text") from error

    def set_blob(self, number: int, value: bytes) -> None:
        """Replaces the bytes of a field, but adds none. Raises HloError where `blob` does."""
        self.blob(number)
        self._fields = [
            (n, kind, value if n == number else v) for n, kind, v in self._fields
        ]  # fmt: skip

    def integer(self, number: int) -> int:
        """Returns the integer in a field, 0 if missing. HloError if negative, repeated or bytes."""
        integers = [v for n, _, v in self._fields if n == number]
        if len(integers) > 1 or not all(isinstance(v, int) and v < 2**63 for v in integers):
            raise HloError(f"field {number} is not one integer of at least 0")
        return integers[0] if integers else 0  # pyright: ignore[reportReturnType]

    def signed(self, number: int) -> int:
        """Returns the signed integer in a field, 0 if missing. HloError if repeated or bytes."""
        integers = [v for n, _, v in self._fields if n == number]
        if len(integers) > 1 or not all(isinstance(v, int) for v in integers):
            raise HloError(f"field {number} is not one integer")
        return _signed(integers[0] if integers else 0)  # pyright: ignore[reportArgumentType]

    def set_integer(self, number: int, value: int) -> None:
        """Sets a field to a non-negative integer; 0 removes it. A new value sorts all fields."""
        if self.integer(number) == value:
            return
        self._fields = [f for f in self._fields if f[0] != number]
        if value:
            self._fields.append((number, _VARINT, value))
            self._fields.sort(key=lambda f: f[0])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decodes the protobuf varint at `data[at:]`: (value, position after it). Raises HloError."""
    if at < len(data) and (value := data[at]) < 128:
        return value, at + 1  # as most are
    value = 0
    for k in range(_LONGEST_VARINT):
        if at + k >= len(data):
            break
        byte = data[at + k]
        value |= (byte & 127) << (7 * k)
        if byte < 128:
            return value, at + k + 1
    raise HloError("not a protobuf message")


def packed_integers(data: bytes) -> tuple[int, ...]:
    """Decodes a packed repeated protobuf field of signed integers. Raises HloError."""
    at, integers = 0, []
    while at < len(data):
        value, at = read_varint(data, at)
        integers.append(_signed(value))
    return tuple(integers)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def slice_ranges(instruction: Any) -> tuple[tuple[int, int, int], ...]:
    """Returns (start, limit, stride) per dimension of a slice, an HloInstructionProto; else ()."""
    return tuple((d.start, d.limit, d.stride) for d in instruction.slice_dimensions)


_LITERAL_SHAPE = 1
"""Field of a LiteralProto; all others that are set hold elements, zeros as zero bytes."""

INTEGERS = {
    1: (2, 1, False),
    2: (15, 8, True),
    3: (17, 16, True),
    4: (4, 32, True),
    5: (5, 64, True),
    6: (3, 8, False),
    7: (16, 16, False),
    8: (6, 32, False),
    9: (7, 64, False),
}
"""By XLA's element type, pred, s8 to s64, u8 to u64: field of a literal, bits, whether signed."""


def scalar_integer(literal: bytes, element_type: int) -> int | None:
    """Returns the integer in a serialized LiteralProto of one element (a bool as 0 or 1).
    None for other element types, and if it has no element or several. May raise HloError.
    """
    if element_type not in INTEGERS:
        return None
    number, bits, signed = INTEGERS[element_type]
    data = Message(literal).blob(number)
    if not data:
        return None
    if bits in (8, 16):
        value, end = int.from_bytes(data[: bits // 8], "little"), bits // 8
    else:
        value, end = read_varint(data, 0)
    if end != len(data):
        return None
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def is_zero(literal: bytes) -> bool:
    """Whether all bytes of a serialized literal's elements are zero; False if they cannot be read.
    Raises HloError if it is no message.
    """
    message = Message(literal)
    try:
        return not any(any(message.blob(n)) for n in message.numbers() - {_LITERAL_SHAPE})
    except HloError:
        return False


def varint(value: int) -> bytes:
    """Encodes a non-negative integer as a protobuf varint."""
    parts = bytearray()
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)
