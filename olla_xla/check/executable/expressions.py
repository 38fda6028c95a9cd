"""What a module computes: a digest of its results as expressions of its arguments.

Every value gets a number, the hash of its operation and of its operands' numbers; values with one
number hold the same bits. Order, names, copies, clones and in-place results do not change the
digest; a wrong operand, a lost update or swapped elements of a loop's state do. Fusions are
inlined. Where a fusion's code may change a bit (`exact`), what decides the code is hashed too
(`Numbering.code`). Visible effects (callbacks, random state) are hashed in their order, and
collectives without it.
"""

from collections.abc import Callable

from hlo import xla_pb2
from hlo.device_groups import groups_listed
from hlo.shapes import Shape
from olla_xla.check.executable.numbering import (
    BITCAST,
    END,
    HANDLERS,
    Numbering,
    Numbers,
    hashed,
    named,
)
from olla_xla.check.executable.program import Op, Program, leaves


def program_digest(program: Program, target: str) -> str:
    """Hashes what a module computes, 32 hex digits; each loop as one function of its state."""
    return _FusionNumbering(target).computation(program.entry).hex()


class _FusionNumbering(Numbering):
    """Value numbering that hashes a loop as a whole, and a fusion with its code if it may round."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._bitcasts: dict[bytes, tuple[bytes, bytes]] = {}

    def cast(self, number: bytes, old: Shape, new: Shape) -> bytes:
        """Value number of a bitcast from `old` to `new`; a bitcast and its inverse cancel."""
        lying = self.shape(new)
        first, began = self._bitcasts.get(number, (number, self.shape(old)))
        if lying == began:
            return first
        result = hashed(BITCAST + first + began + lying)
        self._bitcasts[result] = first, began
        return result

    def bitcast(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a bitcast; if it undoes an earlier one, that of the array before both."""
        (number,) = operands[0].values()
        return {(): self.cast(number, op.operands[0].shape, op.shape)}

    def fusion(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a fusion's results, hashed with its code where that may change bits."""
        inside = self.run(op.called[0], operands, effects)
        rounded = {i: n for i, n in inside.items() if not self.is_free(op, i)}
        if not rounded:
            return inside
        made = self.code(op)
        return inside | {i: hashed(made + n) for i, n in rounded.items()}


_PRECISIONS = {10: (5, 10), 11: (8, 23), 12: (11, 52), 16: (8, 7)}
"""Bits of exponent and mantissa of f16, f32, f64 and bf16."""


def _rounded(
    numbering: Numbering, op: Op, operands: list[Numbers], effects: list[bytes]
) -> Numbers:
    """Value numbers of a reduce-precision; on a TPU the operand's, if to its type's own precision.
    Elsewhere that may change a NaN: XLA:CPU gives all NaNs of bf16 the same bits.
    """
    bits = op.proto.exponent_bits, op.proto.mantissa_bits
    if numbering.is_tpu and bits == _PRECISIONS.get(op.shape.element_type):
        return operands[0]
    return numbering.plain(op, operands, effects)


ROUNDING: dict[str, Callable[..., Numbers]] = {"reduce-precision": _rounded}

_STATE = hashed(b"state of a transfer")


def _exchanged(
    numbering: Numbering, op: Op, operands: list[Numbers], effects: list[bytes]
) -> Numbers:
    """Value numbers of a collective without a reduction: each result's by its own operand alone;
    by all of them if these do not pair. Appends to `effects`.
    """
    numbers = numbering.plain(op, operands, effects)
    made = _asked(op)
    parts = [part for _, part in leaves(op.shape)]
    if len(parts) != len(operands) or any(len(n) != 1 for n in operands):
        return numbers
    shapes = (_extents(o.shape) + _extents(p) for o, p in zip(op.operands, parts, strict=True))
    given = (number for read in operands for number in read.values())
    per_operand = [numbering.term(made, s, END, n) for s, n in zip(shapes, given, strict=True)]
    return {index: n for (index, _), n in zip(leaves(op.shape), per_operand, strict=True)}


def _started(
    numbering: Numbering, op: Op, operands: list[Numbers], effects: list[bytes]
) -> Numbers:
    """Value numbers of an all-gather- or permute-start: (operand, result, context) if of one array,
    else those of `plain`. Appends to `effects`.
    """
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
    """A hash of a collective's attributes and device groups, without its shape."""
    proto = xla_pb2.HloInstructionProto()
    proto.CopyFrom(op.proto)  # `plain` has cleared its ids, names and metadata
    proto.ClearField("shape")
    return hashed(groups_listed(proto.SerializeToString(deterministic=True)))


def _extents(shape: Shape) -> bytes:
    """A hash of a shape's element type, extents and bits of an element, without the layout."""
    return hashed(repr((shape.element_type, shape.dimensions, shape.element_bits)).encode())


EXCHANGES: dict[str, Callable[..., Numbers]] = {
    "all-gather": _exchanged,
    "collective-broadcast": _exchanged,
    "collective-permute": _exchanged,
    "all-gather-start": _started,
    "collective-permute-start": _started,
}


_FusionNumbering.handlers = {
    **HANDLERS,
    **EXCHANGES,
    **ROUNDING,
    "bitcast": _FusionNumbering.bitcast,
    "fusion": _FusionNumbering.fusion,
}
