"""What a GPU does by copies alone: instructions that compute nothing, and slices of arrays."""

from __future__ import annotations

from hlo.wire import slice_ranges
from olla_xla.check.executable.element_order import digits
from olla_xla.check.executable.program import Op

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
    """Whether a GPU may run an instruction as copies alone, without computing."""
    if op.opcode != "fusion":
        return op.opcode in _MOVES or op.opcode.removesuffix("-start") in _EXCHANGES
    root = op.called[0].result
    return all(
        _behind(part).opcode in _MOVES
        for part in (root.operands if root.opcode == "tuple" else (root,))
    )


def copied_slice(op: Op) -> tuple[int, int] | None:
    """The slice that a GPU copies for an instruction, if this is a slice or a fusion of one.

    Returns:
      (operand number, offset in bytes of the slice in that operand); None for other instructions.
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
    shape = found.operands[0].shape
    pairs = zip(slice_ranges(found.proto), digits(shape), strict=True)
    first = sum(start * distance for (start, *_), (_, distance) in pairs)
    return number, first * shape.element_bits // 8


def _behind(op: Op) -> Op:
    """The operation behind bitcasts and reshapes."""
    while op.opcode in _STILL:
        op = op.operands[0]
    return op
