"""Which of XLA's code generators for CPUs a fusion is for; they may round differently.

The first makes tiles, of elementwise operators, and of what only moves elements if that can be
tiled. All the rest become loops: where a concatenation is at the end, one for each of its operands.
Where a product is added to something, LLVM decides between one rounding and two, by the code that
it is given. (XLA's backends/cpu/codegen/fusion_emitter.cc and tiled/tiled_fusion_emitter.cc; the
names of the kernels of jaxlib 0.12.0.1 agree.)
"""

from __future__ import annotations

import enum

from hlo.module import Computation

__all__ = ["CodeGenerator", "code_generator"]

_TILED = frozenset(
    "parameter abs add and atan2 cbrt ceil clamp compare convert cosine divide erf exponential "
    "exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum multiply "
    "negate not or power remainder rsqrt select sine sqrt subtract tan tanh xor".split()
)
_LOOPED = frozenset(
    "broadcast concatenate convolution dot dynamic-slice dynamic-update-slice gather pad reduce "
    "reduce-window reverse scatter select-and-scatter slice".split()
)
_TYPES = frozenset({1, 2, 3, 4, 5, 10, 11, 12, 16})
"""pred, s8 to s64, f16, f32, f64, bf16."""


class CodeGenerator(enum.Enum):
    """Tiles, a loop, a loop for each part of a concatenation, or any that XLA finds to do."""

    TILES = enum.auto()
    LOOP = enum.auto()
    PARTS = enum.auto()
    ANY = enum.auto()


def code_generator(body: Computation) -> CodeGenerator:
    """The code generator of a fused computation."""
    if any(i.opcode in _LOOPED for i in body.instructions):
        return CodeGenerator.PARTS if _ends_in_parts(body) else CodeGenerator.LOOP
    if all(i.opcode in _TILED and i.shape.element_type in _TYPES for i in body.instructions):
        return CodeGenerator.TILES
    return CodeGenerator.ANY


def _ends_in_parts(body: Computation) -> bool:
    """Whether there is a concatenation before the end, or only elementwise operators after it."""
    waiting, seen = [body.root], set()
    while waiting:
        i = waiting.pop()
        if i is None or i in seen:
            continue
        seen.add(i)
        if i.opcode == "concatenate":
            return True
        if i.opcode not in _LOOPED:
            waiting += i.operands
    return False
