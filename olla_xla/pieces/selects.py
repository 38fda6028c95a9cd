"""Operations of pieces in another form: a scatter as a select, a CPU's product of bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.lax import GatherScatterMode

from olla_xla.pieces.accumulators import promoted

_DROPPING = (GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS)


def is_one_each(e: Any) -> bool:
    """Whether a scatter-add adds to one element of each row, and ignores indices out of range.

    So is the gradient of `jnp.take_along_axis` of one element, as of a label's logit.
    """
    numbers, operand, indices = e.params["dimension_numbers"], e.invars[0].aval, e.invars[1].aval
    along = numbers.inserted_window_dims
    return (
        len(along) == 1
        and numbers.scatter_dims_to_operand_dims == along
        and len(numbers.operand_batching_dims) == operand.ndim - 1
        and indices.size * operand.shape[along[0]] == operand.size
        and e.params["mode"] in _DROPPING
    )


def with_one_added(e: Any, operand: Any, indices: Any, updates: Any) -> Any:
    """The result of a scatter-add for which `is_one_each` is true, by a select, which XLA can fuse.

    A scatter's result is a buffer of its own: of a loss over a vocabulary the largest.
    """
    numbers = e.params["dimension_numbers"]
    (along,) = numbers.inserted_window_dims
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    order = [i for _, i in sorted(pairs)]
    order += [i for i in range(updates.ndim) if i not in order]  # of one element each
    rows = (*operand.shape[:along], 1, *operand.shape[along + 1 :])
    at, added = (jnp.transpose(x, order).reshape(rows) for x in (indices[..., 0], updates))
    dtype = jax.dtypes.canonicalize_dtype(promoted(at.dtype, jnp.int32))
    here = jax.lax.broadcasted_iota(dtype, operand.shape, along) == at.astype(dtype)
    return jnp.where(here, operand + added, operand)


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
