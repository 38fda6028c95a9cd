"""Rounding to the precision that a value has already."""

from __future__ import annotations

from hlo.module import Instruction

_BITS = {10: (5, 10), 11: (8, 23), 12: (11, 52), 16: (8, 7)}
"""Bits of exponent and mantissa, by XLA's number of the type: f16, f32, f64, bf16."""


def keeps_precision(i: Instruction) -> bool:
    """Whether a reduce-precision keeps all bits of exponent and mantissa that its type has.

    JAX marks values saved for a backward pass by such ones. They leave every number as it is, but
    on some platforms not every NaN (`Platform.keeps_precision`).
    """
    assert i.proto is not None
    bits = _BITS.get(i.shape.element_type)
    return bits is not None and bits == (i.proto.exponent_bits, i.proto.mantissa_bits)
