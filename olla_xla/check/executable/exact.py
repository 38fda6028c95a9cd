"""Which results of fused computations have the same bits whatever code computes them.

They move elements of any type, compare them, or compute with integers, whose sums do not depend on
the order of additions. XLA chooses a fusion's code by its kind and configuration. Its GPU backend
changes both after scheduling (FusionBlockLevelRewriter: some transposes and sums of integers become
Triton's), so neither is compared for these results. A fusion may have other results, and lose them.
"""

from hlo.shapes import ShapeIndex
from hlo.wire import INTEGERS, is_zero, scalar_integer
from olla_xla.check.executable.program import Body, Op

_MOVES = frozenset(
    "bitcast bitcast-convert broadcast compare concatenate constant copy dynamic-slice "
    "dynamic-update-slice get-tuple-element pad parameter reshape reverse select slice transpose "
    "tuple".split()
)
"""Opcodes that round nothing: their results are operands' elements, literals or comparisons."""

_COMPUTES = frozenset(
    "abs add and clamp compare convert iota maximum minimum multiply negate not or select sign "
    "subtract xor".split()
)
"""Opcodes that are exact on integers."""

_IDEMPOTENT = frozenset("and maximum minimum or".split())
_FROM_ZERO = frozenset("add xor".split())
"""Reducers whose result depends neither on the order nor on how often the initial value is applied:
XLA may apply it once for each thread. Those of the second set need an initial value of zero."""


def exact_results(body: Body) -> frozenset[ShapeIndex]:
    """Indices of a fusion's results whose bits surely do not depend on how it is compiled.

    These are tuple indices of the root; just () where all results are exact.
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


def _divides(op: Op) -> bool:
    """Whether an operation is a scalar integer division or remainder by a positive constant."""
    if op.opcode not in ("divide", "remainder") or op.operands[1].opcode != "constant":
        return False
    value = scalar_integer(op.operands[1].proto.literal, op.proto.shape.element_type)
    return value is not None and value > 0 and not op.proto.shape.dimensions


def _is_exact(op: Op) -> bool:
    if op.opcode in _MOVES:
        return True
    return is_whole(op) or (op.opcode == "reduce" and _is_of_integers(op) and _is_free(op))


def is_whole(op: Op) -> bool:
    """Whether each element of an operation's result is surely computed from integers, exactly."""
    return (op.opcode in _COMPUTES or _divides(op)) and _is_of_integers(op)


def _is_of_integers(op: Op) -> bool:
    """Whether an operation's result and operands are booleans or integers of 8 bits or more."""
    return all(one.proto.shape.element_type in INTEGERS for one in (op, *op.operands))


def _is_free(reduce: Op) -> bool:
    """Whether a reduce of integers surely gives the same result in any order of its steps."""
    (body,) = reduce.called
    step = body.result
    if set(step.operands) != set(body.parameters) or len(body.ops) != 3:
        return False
    if not _is_of_integers(step):
        return False
    start = reduce.operands[-1]
    return step.opcode in _IDEMPOTENT or (
        step.opcode in _FROM_ZERO and start.opcode == "constant" and is_zero(start.proto.literal)
    )
