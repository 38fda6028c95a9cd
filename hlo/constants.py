"""Leaves the values of constants out of a module, so that it can be sent to others."""

import hashlib
import re
import struct

from hlo import xla_pb2
from hlo.wire import is_zero

_SMALL = 64
"""Bytes of a literal that is kept, among them the numbers that steer loops and slices."""

_LONG_TEXT = re.compile(r'dense<"0x[0-9A-Fa-f]+">')


def without_constants(module: bytes, salt: bytes) -> bytes:
    """A serialized HloModuleProto with digests instead of the elements of its larger constants.

    Equal constants stay equal and different ones different, in all modules of one salt; zeros stay
    zeros. XLA does not accept the result; code that only compares constants does.

    Args:
      salt: at most 64 bytes that nobody knows, so that no digest tells what a constant was.
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
    """StableHLO text with the elements of constants that are written in hexadecimal removed."""
    return _LONG_TEXT.sub('dense<"left out">', stablehlo)
