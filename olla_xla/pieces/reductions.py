"""Reductions along the axis that is cut and are no sums, from one part of each piece."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

_BEST = {"argmax": jnp.max, "argmin": jnp.min, "reduce_max": jnp.max, "reduce_min": jnp.min}
_PLACE = {"argmax": jnp.argmax, "argmin": jnp.argmin}


def parts_of(e: Any, operand: Any, made: Any, first: Any) -> list[Any]:
    """What one piece contributes to a reduction (sum, max, argmax, ...) over the cut axis.

    Of an extreme also how many elements are equal to it: they share its gradient.

    Args:
      operand, made: of the equation in the piece. first: index of its first element in the axis.
    """
    name, axes, found = e.primitive.name, e.params["axes"], [made]
    if name in _PLACE:
        found = [_BEST[name](operand, axes), made + jnp.asarray(first).astype(made.dtype)]
    elif name in _BEST and jnp.issubdtype(made.dtype, jnp.floating):
        ties = operand == jnp.expand_dims(made, axes)
        found.append(ties.sum(axes, dtype=jnp.int32))
    return [x[None] for x in found]


def part_types(e: Any) -> list[Any]:
    """Shapes and dtypes of the arrays that `parts_of` gives for an equation."""
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in (*e.invars, *e.outvars)]
    return jax.eval_shape(functools.partial(parts_of, e, first=0), *shapes)


def reduced(e: Any, parts: Sequence[Any]) -> Any:
    """The result of a reduction, from the `parts_of` all pieces in order, along dimension 0."""
    name = e.primitive.name
    if name in _PLACE:
        best = _PLACE[name](parts[0], 0, keepdims=True)
        return jnp.take_along_axis(parts[1], best, 0)[0]
    if len(parts) == 2:
        return _extreme(name, *parts)
    free = {k: None for k in ("out_sharding",) if k in e.params}
    return e.primitive.bind(parts[0], **{**e.params, **free, "axes": (0,)})


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _extreme(name: str, values: Any, ties: Any) -> Any:
    del ties
    return _BEST[name](values, 0)


@_extreme.defjvp
def _extreme_jvp(name: str, given: Any, moved: Any) -> Any:
    """Each element of all pieces that is equal to the extreme has the same share, as with JAX."""
    values, ties = given
    best = _extreme(name, values, ties)
    share = jnp.where(values == best, ties, 0)
    return best, (moved[0] * (share / share.sum(0)).astype(best.dtype)).sum(0)
