"""Which of XLA's code generators for CPUs a fusion is for; they may round differently.

One makes tiles. XLA tries it first: it takes elementwise operators, and what only moves elements if
that can be tiled. The other makes loops, of all the rest. Where a product is added to something,
LLVM decides between one rounding and two, by the code that it is given. (XLA's
backends/cpu/codegen/fusion_emitter.cc and tiled/tiled_fusion_emitter.cc; the names of the kernels
of jaxlib 0.12.0.1 agree.)
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

__all__ = ["CodeGenerator", "code_generator", "holds_slices"]

_TILED = frozenset(
    "parameter abs add and atan2 cbrt ceil clamp compare convert cosine divide erf exponential "
    "exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum multiply "
    "negate not or power remainder rsqrt select sine sqrt subtract tan tanh xor".split()
)
_SLICES = frozenset("concatenate dynamic-slice dynamic-update-slice slice".split())
_LOOPED = _SLICES | frozenset(
    "broadcast convolution dot gather pad reduce reduce-window reverse scatter "
    "select-and-scatter".split()
)
_TYPES = frozenset({1, 2, 3, 4, 5, 10, 11, 12, 16})
"""pred, s8 to s64, f16, f32, f64, bf16."""


class CodeGenerator(enum.Enum):
    """Of a fusion: tiles, loops, or whichever XLA finds to do."""

    TILES = enum.auto()
    LOOPS = enum.auto()
    EITHER = enum.auto()


def code_generator(steps: Iterable[tuple[str, int]]) -> CodeGenerator:
    """The code generator of a fused computation, by opcode and element type of its instructions."""
    steps = tuple(steps)
    if any(opcode in _LOOPED for opcode, _ in steps):
        return CodeGenerator.LOOPS
    if all(opcode in _TILED and element_type in _TYPES for opcode, element_type in steps):
        return CodeGenerator.TILES
    return CodeGenerator.EITHER


def holds_slices(opcodes: Iterable[str]) -> bool:
    """Whether a fused computation cuts arrays, which only loops can."""
    return not _SLICES.isdisjoint(opcodes)
