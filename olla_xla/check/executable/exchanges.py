"""What a collective that sums nothing gives of each of its operands."""

from __future__ import annotations

from collections.abc import Callable

from hlo import xla_pb2
from hlo.device_groups import groups_listed
from olla_xla.check.executable.numbering import END, Numbering, Numbers, hashed
from olla_xla.check.executable.program import Op, leaves

__all__ = ["EXCHANGES"]


def _exchanged(
    numbering: Numbering, op: Op, operands: list[Numbers], effects: list[bytes]
) -> Numbers:
    """A collective that sums nothing: what it gives of an operand is that one's alone."""
    numbers = numbering.plain(op, operands, effects)
    proto = xla_pb2.HloInstructionProto()
    proto.CopyFrom(op.proto)  # without what is not its own
    proto.ClearField("shape")
    made = hashed(groups_listed(proto.SerializeToString(deterministic=True)))
    parts = [part for _, part in leaves(op.shape)]
    if len(parts) != len(operands) or any(len(n) != 1 for n in operands):
        return numbers
    shapes = (
        numbering.shape(o.shape) + numbering.shape(p)
        for o, p in zip(op.operands, parts, strict=True)
    )
    given = (number for read in operands for number in read.values())
    found = [hashed(made + s + END + n) for s, n in zip(shapes, given, strict=True)]
    return {index: n for (index, _), n in zip(leaves(op.shape), found, strict=True)}


EXCHANGES: dict[str, Callable[..., Numbers]] = dict.fromkeys(
    ("all-gather", "collective-broadcast", "collective-permute"), _exchanged
)
