"""Numbers of collectives without a reduction, for each operand by itself."""

from __future__ import annotations

from collections.abc import Callable

from hlo import xla_pb2
from hlo.device_groups import groups_listed
from hlo.shapes import Shape
from olla_xla.check.executable.numbering import END, Numbering, Numbers, hashed, named
from olla_xla.check.executable.program import Op, leaves

_STATE = hashed(b"state of a transfer")


def _exchanged(
    numbering: Numbering, op: Op, operands: list[Numbers], effects: list[bytes]
) -> Numbers:
    """A collective without a reduction: each result depends on its own operand alone."""
    numbers = numbering.plain(op, operands, effects)
    made = _asked(op)
    parts = [part for _, part in leaves(op.shape)]
    if len(parts) != len(operands) or any(len(n) != 1 for n in operands):
        return numbers
    shapes = (_extents(o.shape) + _extents(p) for o, p in zip(op.operands, parts, strict=True))
    given = (number for read in operands for number in read.values())
    found = [numbering.term(made, s, END, n) for s, n in zip(shapes, given, strict=True)]
    return {index: n for (index, _), n in zip(leaves(op.shape), found, strict=True)}


def _started(
    numbering: Numbering, op: Op, operands: list[Numbers], effects: list[bytes]
) -> Numbers:
    """The start of such a collective of one array: (operand, result, state of the transfer)."""
    numbers = numbering.plain(op, operands, effects)
    parts = [index for index, _ in leaves(op.shape)]
    if len(operands) != 1 or len(operands[0]) != 1 or not {(0,), (1,)} <= set(parts):
        return numbers
    (number,) = operands[0].values()
    (whole,) = numbers.values()
    shapes = _extents(op.operands[0].shape) + _extents(op.shape.at((1,)))
    state = {i: numbering.term(_STATE, whole, named(i)) for i in parts}
    return state | {(0,): number, (1,): numbering.term(_asked(op), shapes, END, number)}


def _asked(op: Op) -> bytes:
    """A number for a collective's attributes, its device groups among them."""
    proto = xla_pb2.HloInstructionProto()
    proto.CopyFrom(op.proto)  # `plain` has cleared its ids, names and metadata
    proto.ClearField("shape")
    return hashed(groups_listed(proto.SerializeToString(deterministic=True)))


def _extents(shape: Shape) -> bytes:
    """A number for element type and extents, without the layout."""
    return hashed(repr((shape.element_type, shape.dimensions, shape.element_bits)).encode())


EXCHANGES: dict[str, Callable[..., Numbers]] = {
    "all-gather": _exchanged,
    "collective-broadcast": _exchanged,
    "collective-permute": _exchanged,
    "all-gather-start": _started,
    "collective-permute-start": _started,
}
