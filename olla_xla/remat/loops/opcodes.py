"""Opcodes by what they do to elements."""

from __future__ import annotations

PASSING = frozenset("tuple get-tuple-element opt-barrier optimization-barrier domain".split())

MOVES = frozenset(
    "bitcast broadcast concatenate constant copy dynamic-slice dynamic-update-slice iota reshape "
    "reverse slice transpose".split()
)
"""Opcodes that compute nothing."""

EACH = frozenset(
    "abs add and atan2 bitcast-convert cbrt ceil clamp clz compare convert cosine divide erf "
    "exponential exponential-minus-one floor get-tuple-element is-finite log log-plus-one logistic "
    "maximum minimum multiply negate not or pad parameter popcnt power reduce-precision remainder "
    "round-nearest-afz round-nearest-even rsqrt select shift-left shift-right-arithmetic "
    "shift-right-logical sign sine sqrt subtract tan tanh tuple xor".split()
)
"""Opcodes that compute each element by itself: the order of elements does not matter."""
