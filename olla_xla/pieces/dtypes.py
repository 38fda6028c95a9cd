"""Types in which sums are added and positions are counted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def promoted(one: Any, other: Any) -> Any:
    """The type that two types promote to by NumPy's rules, whatever promotion the user allows."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(one, other)


def accumulator(dtype: Any, accumulate_dtype: Any) -> Any:
    """The type in which the parts of a sum of type `dtype` are added."""
    return promoted(dtype, accumulate_dtype) if jnp.issubdtype(dtype, jnp.floating) else dtype


def is_narrow(dtype: Any, accumulate_dtype: Any) -> bool:
    """Whether a sum of type `dtype` is accumulated in a wider type."""
    return accumulator(dtype, accumulate_dtype) != dtype
