"""Comparisons of a value with one chosen from its elements, as with its maximum.

The gradient of a maximum goes where the maximum is: `x == max(x)`. If `x` is computed twice, once
whole for its maximum and again in pieces, the two may differ in the last bit, since XLA chooses
another kernel for another shape. Then the comparison holds nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from olla_xla.pieces.calls import CALLS
from olla_xla.pieces.factors import ELEMENTWISE
from olla_xla.segments.trace import is_variable

_CHOOSING = frozenset(
    """
    broadcast_in_dim clamp concatenate convert_element_type copy cummax cummin dynamic_slice
    dynamic_update_slice expand_dims gather max min neg optimization_barrier pad reduce_max
    reduce_min reduce_precision reduce_window_max reduce_window_min reshape rev scatter scatter-max
    scatter-min scatter_max scatter_min select_n slice sort split squeeze top_k transpose
    """.split()
)
"""Primitives whose results are elements of their operands, as they are or negated."""

_TELLING = CALLS | frozenset("ceil eq eq_to floor ge gt le le_to lt lt_to ne round sign".split())
"""Primitives whose results may be others for operands that differ in the last bit."""


def compares_with_itself(before: Sequence[Any], twice: Set[Any], again: Sequence[Any]) -> bool:
    """Whether a value is computed twice and the two are compared, so that rounding matters.

    What is computed from both copies element by element, as `x - max(x)`, may not be compared with
    anything.

    Args:
      before: equations that run once, before those in pieces, in order. twice: variables that are
        computed before them and again in pieces. again: the equations in pieces, in order.
    """
    first, second = set[Any](), set(twice)
    for e in before:
        if _leads_on(e) and not (first | twice).isdisjoint(_variables(e)):
            first.update(e.outvars)
    for e in again:
        of_first, of_second = (not s.isdisjoint(_variables(e)) for s in (first, second))
        if of_first and of_second and e.primitive.name in _TELLING:
            return True
        if of_first and _leads_on(e):
            first.update(e.outvars)
        if of_second and _leads_on(e):
            second.update(e.outvars)
    return False


def _variables(e: Any) -> set[Any]:
    return set(filter(is_variable, e.invars))


def _leads_on(e: Any) -> bool:
    """Whether elements of the results come from single ones of the operands; of a call they may."""
    name = e.primitive.name
    return name in _CHOOSING or name in ELEMENTWISE or name in CALLS
