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
from olla_xla.remat.segments.trace import is_variable

__all__ = ["compares_with_itself"]

_CHOOSING = frozenset(
    """
    broadcast_in_dim clamp concatenate convert_element_type copy cummax cummin dynamic_slice
    dynamic_update_slice expand_dims gather max min neg optimization_barrier pad reduce_max
    reduce_min reduce_precision reduce_window_max reduce_window_min reshape rev scatter scatter-max
    scatter-min scatter_max scatter_min select_n slice sort split squeeze top_k transpose
    """.split()
)
"""Primitives whose results are elements of their operands, as they are or negated."""

_JUMPS = frozenset("ceil eq eq_to floor ge gt le le_to lt lt_to ne round sign".split())
"""Primitives whose results are others for operands that differ in the last bit."""


def compares_with_itself(before: Sequence[Any], twice: Set[Any], again: Sequence[Any]) -> bool:
    """Whether equations compare what is computed a second time with elements of the first.

    Args:
      before: equations that run once, before those in pieces, in order. twice: variables that are
        computed before them and again in pieces. again: the equations in pieces, in order.
    """
    first = _chosen(before, twice)
    second, differences = set(twice), set[Any]()
    for e in again:
        reads = set(filter(is_variable, e.invars))
        name = e.primitive.name
        of_both = not reads.isdisjoint(first) and not reads.isdisjoint(second)
        of_difference = not reads.isdisjoint(differences)
        if (of_both or of_difference) and (name in _JUMPS or name in CALLS):
            return True
        made = set(e.outvars)
        if name in _CHOOSING:
            first |= set() if reads.isdisjoint(first) else made - twice
            second |= set() if reads.isdisjoint(second) else made
            differences |= made if of_difference else set()
        elif name in ELEMENTWISE and (of_both or of_difference):
            differences |= made
    return False


def _chosen(equations: Sequence[Any], of: Set[Any]) -> set[Any]:
    """The variables that hold elements of these, without these."""
    found: set[Any] = set()
    for e in equations:
        if e.primitive.name in _CHOOSING or e.primitive.name in CALLS:
            if any(v in of or v in found for v in filter(is_variable, e.invars)):
                found.update(e.outvars)
    return found
