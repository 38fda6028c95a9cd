"""Which operations XLA:CPU's tiled code generator takes; the other one may round otherwise."""

from __future__ import annotations

from olla_xla.check.executable.program import Body, Op

__all__ = ["UNTILED", "ends_in_parts", "is_elementwise"]

UNTILED = frozenset(
    "broadcast concatenate convolution dot dynamic-slice dynamic-update-slice gather pad reduce "
    "reduce-window reverse scatter select-and-scatter slice".split()
)
_ELEMENTWISE = frozenset(
    "abs add and atan2 cbrt ceil clamp compare convert cosine divide erf exponential "
    "exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum multiply "
    "negate not or power remainder rsqrt select sine sqrt subtract tan tanh xor".split()
)
"""Opcodes that XLA's tiled code generator for CPUs never takes, and those that it always takes."""

_TILED_TYPES = frozenset({1, 2, 3, 4, 5, 10, 11, 12, 16})
"""Element types that it takes: pred, s8 to s64, f16, f32, f64 and bf16."""


def ends_in_parts(body: Body) -> bool:
    """Whether its result is a concatenation, perhaps behind operations that can be tiled."""
    waiting, seen = [body.result], set()
    while waiting:
        op = waiting.pop()
        if op.opcode == "concatenate":
            return True
        if op not in seen and op.opcode not in UNTILED:
            waiting += op.operands
        seen.add(op)
    return False


def is_elementwise(op: Op) -> bool:
    """Whether the tiled code generator always takes an operation."""
    return op.opcode in _ELEMENTWISE and op.proto.shape.element_type in _TILED_TYPES
