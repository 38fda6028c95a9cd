"""Rounding to the precision that a value has already."""

from __future__ import annotations

from hlo.module import Instruction

_BITS = {10: (5, 10), 11: (8, 23), 12: (11, 52), 16: (8, 7)}
"""Bits of exponent and mantissa, by XLA's number of the type: f16, f32, f64, bf16."""


def keeps_precision(i: Instruction) -> bool:
    """Whether a reduce-precision rounds to the precision of its type. JAX marks with such what is
    saved for a backward pass.

    It leaves every number as it is, but on some platforms not every NaN
    (`Platform.keeps_precision`).
    """
    assert i.proto is not None
    bits = _BITS.get(i.shape.element_type)
    return bits is not None and bits == (i.proto.exponent_bits, i.proto.mantissa_bits)
