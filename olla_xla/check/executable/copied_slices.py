"""Slices of arrays that a GPU copies out by themselves: where in the array they begin."""

from __future__ import annotations

from hlo.wire import slice_ranges
from olla_xla.check.executable.program import Op

__all__ = ["copied_slice"]

_STILL = frozenset(("bitcast", "reshape"))


def copied_slice(op: Op) -> tuple[int, int] | None:
    """What an instruction copies that is a slice of an operand, or a fusion of one.

    Returns:
      Number of the operand, and of the first byte in it; None where it is something else.
    """
    found = _behind(op.called[0].result) if op.opcode == "fusion" else op
    if found.opcode != "slice":
        return None
    source = found.operands[0]
    if op.opcode == "fusion":
        source = _behind(source)
        if source.opcode != "parameter":
            return None
    number = source.proto.parameter_number if op.opcode == "fusion" else 0
    shape, first, distance = found.operands[0].shape, 0, 1
    ranges = slice_ranges(found.proto)
    for k in shape.minor_to_major:
        first += ranges[k][0] * distance
        distance *= shape.dimensions[k]
    return number, first * shape.element_bits // 8


def _behind(op: Op) -> Op:
    """What a value is, behind what moves nothing."""
    while op.opcode in _STILL:
        op = op.operands[0]
    return op
