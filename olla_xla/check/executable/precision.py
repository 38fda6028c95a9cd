"""reduce-precision to the precision that a value's type has."""

from __future__ import annotations

from collections.abc import Callable

from olla_xla.check.executable.numbering import Numbering, Numbers
from olla_xla.check.executable.program import Op

_PRECISIONS = {10: (5, 10), 11: (8, 23), 12: (11, 52), 16: (8, 7)}
"""Bits of exponent and mantissa of f16, f32, f64 and bf16."""


def _rounded(
    numbering: Numbering, op: Op, operands: list[Numbers], effects: list[bytes]
) -> Numbers:
    """On a TPU this is its operand. Elsewhere it may change a NaN: XLA:CPU makes one of all in
    bf16.
    """
    bits = op.proto.exponent_bits, op.proto.mantissa_bits
    if numbering.is_tpu and bits == _PRECISIONS.get(op.shape.element_type):
        return operands[0]
    return numbering.plain(op, operands, effects)


ROUNDING: dict[str, Callable[..., Numbers]] = {"reduce-precision": _rounded}
