"""Matrix products of bfloat16 operands, in a form that XLA's library for CPUs takes as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental.layout import Layout, with_layout_constraint

_BY_ROWS = Layout((0, 1))


def takes_rows(e: Any) -> bool:
    """Whether a dot_general sums over the rows of two bfloat16 matrices, as a weight's gradient.

    XLA's library for CPUs takes a first operand only where its last dimension is summed over. For
    others XLA converts both operands to float32, before a loop if they do not change in it.
    """
    matrices = all(v.aval.ndim == 2 and v.aval.dtype == "bfloat16" for v in e.invars)
    return matrices and e.params["dimension_numbers"] == (((0,), (0,)), ((), ()))


def product_of_rows(e: Any, operands: Sequence[Any], start: Any) -> Any:
    """The product of which `takes_rows` is true; the smaller operand is copied, transposed.

    Args:
      start: of the piece; the copy depends on it, so that it is not held beyond its iteration.
    """
    left, right = operands
    first = left.size < right.size
    small, other = (left, right) if first else (right, left)
    small, _ = jax.lax.optimization_barrier((small, start))
    made = jax.lax.dot_general(
        with_layout_constraint(small.T, _BY_ROWS),
        other,
        (((1,), (0,)), ((), ())),
        precision=e.params["precision"],
        preferred_element_type=e.params["preferred_element_type"],
    )
    # XLA would fold a transposition of the result into the product, which is then added up in
    # bfloat16 by a plain loop.
    made = with_layout_constraint(made, _BY_ROWS)
    return made if first else made.T
