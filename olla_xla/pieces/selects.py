"""A scatter that adds one element to each row, as a select."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import GatherScatterMode

from olla_xla.pieces.dtypes import promoted

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
