"""What a gradient keeps from its forward pass for its backward pass, by its trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from olla_xla.segments.trace import bytes_of, is_variable

_FUSED = frozenset(
    """
    abs add and broadcast_in_dim convert_element_type copy div eq erf exp exp2 expm1 ge gt
    integer_pow is_finite le log log1p logistic lt max min mul ne neg not one_minus_square or pow
    reshape rsqrt select_n sign sqrt square squeeze sub tanh transpose xor
    """.split()
)
"""Primitives that XLA fuses into the kernels that read them."""


def kept_bytes(
    function: Callable[..., Sequence[Any]],
    values: Sequence[Any],
    *,
    fused: bool,
) -> int:
    """Bytes that a function's gradient keeps for its backward pass, arguments not counted.

    Args:
      function: of arrays, gives arrays; differentiated in all arguments.
      values: what it is called with: arrays or their shapes.
      fused: leave out what XLA recomputes, in the kernels that read it, from what is kept anyway.
        XLA cannot do so across the ends of a `jax.checkpoint`.
    """
    shapes = [jax.ShapeDtypeStruct(jnp.shape(v), v.dtype) for v in values]
    jaxpr = jax.make_jaxpr(_forward(function, shapes))(*shapes).jaxpr
    given = {*jaxpr.invars, *jaxpr.constvars}
    kept = {v for v in jaxpr.outvars if is_variable(v)}
    made = {v for v in kept if v not in given}
    if fused:
        reads = {e.outvars[0]: e.invars for e in jaxpr.eqns if e.primitive.name in _FUSED}
        there = kept | given
        made = {
            v
            for v in made
            if v not in reads or any(is_variable(u) and u not in there for u in reads[v])
        }
    return sum(bytes_of(v.aval) for v in made)


def _forward(
    function: Callable[..., Sequence[Any]], shapes: Sequence[jax.ShapeDtypeStruct]
) -> Callable[..., Any]:
    """The forward pass; its results are what the backward pass reads."""
    smooth = [jnp.issubdtype(s.dtype, jnp.inexact) for s in shapes]

    def forward(*values: Any) -> Any:
        def results(moving: Sequence[Any]) -> list[Any]:
            given = iter(moving)
            whole = (next(given) if s else v for s, v in zip(smooth, values, strict=True))
            made = function(*whole)
            return [r for r in made if jnp.issubdtype(jnp.result_type(r), jnp.inexact)]

        _, pull = jax.vjp(results, [v for s, v in zip(smooth, values, strict=True) if s])
        return pull

    return forward
