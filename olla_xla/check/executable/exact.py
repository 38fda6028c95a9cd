"""Which results of fused computations are the same bits by whatever code runs them.

They move elements of any type, compare them, and compute with integers alone, in which additions
end in the same number whatever their order. XLA makes code for a fusion by its kind and its
configuration, and its GPU backend changes both after a module was scheduled
(FusionBlockLevelRewriter: some transposes and sums of integers become Triton's), so of these
results neither is compared. A fusion may have others beside them, and lose those.
"""

from __future__ import annotations

from hlo.module import HloError
from hlo.shapes import ShapeIndex
from hlo.wire import Message, scalar_integer
from olla_xla.check.executable.program import Body, Op

__all__ = ["divides", "exact_results"]

_MOVES = frozenset(
    "bitcast bitcast-convert broadcast compare concatenate constant copy dynamic-slice "
    "dynamic-update-slice get-tuple-element pad parameter reshape reverse select slice transpose "
    "tuple".split()
)
"""Opcodes that round nothing: their result's bits are those of operands, or what tells them."""

_COMPUTES = frozenset(
    "abs add and clamp convert iota maximum minimum multiply negate not or subtract xor".split()
)
"""Opcodes that have one result for integers, whatever they are."""

_INTEGERS = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9})
"""Element types: pred, s8 to s64 and u8 to u64."""

_IDEMPOTENT = frozenset("and maximum minimum or".split())
_FROM_ZERO = frozenset("add xor".split())
"""Reducers whose result depends neither on the order nor on how often the start is taken in: XLA
may take it in once for each thread. It changes nothing where it is zero, in the second ones."""

_SHAPE = 1
"""Field of LiteralProto; in each other one that is there lie numbers, zero bytes where zero."""


def exact_results(body: Body) -> frozenset[ShapeIndex]:
    """The results of a fused computation that are the same by any correct code.

    Returns:
      Indices; () where that holds of all of them.
    """
    exact: set[Op] = set()
    for op in body.ops:  # operands first
        if _is_exact(op) and all(operand in exact for operand in op.operands):
            exact.add(op)
    root = body.result
    if root in exact:
        return frozenset([()])
    if root.opcode != "tuple":
        return frozenset()
    return frozenset((k,) for k, operand in enumerate(root.operands) if operand in exact)


def divides(op: Op) -> bool:
    """Whether an operation divides a scalar integer by a positive constant, or gives the rest."""
    if op.opcode not in ("divide", "remainder") or op.operands[1].opcode != "constant":
        return False
    value = scalar_integer(op.operands[1].proto.literal, op.proto.shape.element_type)
    return value is not None and value > 0 and not op.proto.shape.dimensions


def _is_exact(op: Op) -> bool:
    if op.opcode in _MOVES:
        return True
    if not all(_is_integer(one) for one in (op, *op.operands)):
        return False
    return op.opcode in _COMPUTES or divides(op) or (op.opcode == "reduce" and _is_free(op))


def _is_integer(op: Op) -> bool:
    return op.proto.shape.element_type in _INTEGERS


def _is_free(reduce: Op) -> bool:
    """Whether the result of a reduction of integers does not depend on how they are taken in."""
    (body,) = reduce.called
    step = body.result
    if set(step.operands) != set(body.parameters) or len(body.ops) != 3 or not _is_integer(step):
        return False
    start = reduce.operands[-1]
    return step.opcode in _IDEMPOTENT or (
        step.opcode in _FROM_ZERO and start.opcode == "constant" and _is_zero(start.proto.literal)
    )


def _is_zero(literal: bytes) -> bool:
    """Whether all elements of a literal are zero."""
    message = Message(literal)
    try:
        return not any(any(message.blob(n)) for n in message.numbers() - {_SHAPE})
    except HloError:
        return False
