"""What a GPU does by copies alone: instructions that compute nothing, and slices of arrays."""

from __future__ import annotations

from hlo.wire import slice_ranges
from olla_xla.check.executable.program import Op

__all__ = ["copied_slice", "moves_only"]

_STILL = frozenset(("bitcast", "reshape"))
_MOVES = frozenset(
    "broadcast concatenate constant copy dynamic-slice dynamic-update-slice parameter slice "
    "transpose".split()
)
_EXCHANGES = (
    "all-gather all-reduce all-to-all collective-broadcast collective-permute copy reduce-scatter"
).split()
"""Opcodes, their starts included, that copy where no other device takes part."""


def moves_only(op: Op) -> bool:
    """Whether an instruction may be no more than copies."""
    if op.opcode != "fusion":
        return op.opcode in _MOVES or op.opcode.removesuffix("-start") in _EXCHANGES
    root = op.called[0].result
    return all(
        _behind(part).opcode in _MOVES
        for part in (root.operands if root.opcode == "tuple" else (root,))
    )


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
