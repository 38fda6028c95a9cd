"""Removes the values of constants from a module, so that it can be given to other people."""

import hashlib
import re
import struct

from hlo import xla_pb2
from hlo.wire import is_zero

_SMALL = 64
"""Bytes of a literal that is kept, among them the numbers that steer loops and slices."""

_LONG_TEXT = re.compile(r'dense<"0x[0-9A-Fa-f]+">')


def without_constants(module: bytes, salt: bytes) -> bytes:
    """Replaces constants of more than 64 bytes in a serialized HloModuleProto by salted digests.

    Returns the changed module, which XLA does not accept. Equal constants stay equal and different
    ones different, in all modules of one salt, so they can still be compared. Zeros stay zeros.

    Args:
      salt: at most 64 secret bytes, so that nobody can test a guess of a constant by its digest.
    """
    proto = xla_pb2.HloModuleProto.FromString(module)
    every = (i for computation in proto.computations for i in computation.instructions)
    large = [i for i in every if len(i.literal) > _SMALL]
    for instruction in large:
        instruction.literal = _digested(instruction.literal, salt)
    return proto.SerializeToString() if large else module


def _digested(literal: bytes, salt: bytes) -> bytes:
    if is_zero(literal):
        return literal
    digest = hashlib.blake2b(literal, digest_size=32, key=salt).digest()
    shape = xla_pb2.LiteralProto.FromString(literal).shape
    data = xla_pb2.LiteralProto(shape=shape, s64s=struct.unpack("<4q", digest))
    return data.SerializeToString()


def text_without_constants(stablehlo: str) -> str:
    """Replaces the hexadecimal elements of constants in StableHLO text by "left out"."""
    return _LONG_TEXT.sub('dense<"left out">', stablehlo)
