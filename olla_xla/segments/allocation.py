"""The segment budget whose gradient takes the fewest bytes in XLA: Chen et al. 2016, section 5.1.

The estimate by which segments are cut differs from what buffer assignment makes of them. So the
gradient is lowered with the segments of each budget, and its exact bytes are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from olla_xla.errors import InputError
from olla_xla.memory.own_jit import own_jit
from olla_xla.segments.equations import bytes_of, has_gradient, inexact, is_variable, replaced

Allocation = Callable[[jax.stages.Lowered], int]
"""Bytes that a lowered gradient takes."""


def xla_temp_bytes(lowered: jax.stages.Lowered) -> int:
    """Compiles a lowered gradient; returns the bytes of XLA's temporary buffers in the executable.
    Raises InputError if the backend does not report them.
    """
    analysis = lowered.compile().memory_analysis()
    if analysis is None:
        raise InputError(
            "this backend does not report how much memory an executable needs; give budget=BYTES"
        )
    return analysis.temp_size_in_bytes


def least_budget(
    functions: Mapping[int, Callable[..., Sequence[Any]]],
    values: Sequence[Any],
    allocation: Allocation,
) -> int:
    """Returns the key of `functions` whose gradient takes the fewest bytes; the first of equals.
    `functions`: segment budget in bytes -> the function, cut into segments with that budget.
    `values`: arguments of each, arrays or their shapes; the gradient is taken in all of
    floating-point or complex type. `allocation`: gives the bytes of a lowered gradient. Raises
    InputError if the gradient cannot be lowered or compiled by itself.
    """
    shapes = [jax.ShapeDtypeStruct(jnp.shape(v), v.dtype) for v in values]
    try:
        return min(functions, key=lambda b: allocation(_gradient(functions[b], shapes)))
    except (NameError, TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"cannot find the exact budget ({reason}); give budget=BYTES") from error


def _gradient(
    function: Callable[..., Sequence[Any]], shapes: Sequence[jax.ShapeDtypeStruct]
) -> jax.stages.Lowered:
    """Lowers `function`'s gradient, from arguments and cotangents to results and gradients."""
    places = inexact(shapes)

    def split(*values: Any) -> tuple[list[Any], list[Any]]:
        results = function(*values)
        smooth = [has_gradient(r) for r in results]
        return (
            [r for r, s in zip(results, smooth, strict=True) if s],
            [r for r, s in zip(results, smooth, strict=True) if not s],
        )

    def gradient(values: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        def smooth(moving: Sequence[Any]) -> Any:
            return split(*replaced(values, places, moving))

        results, pull, others = jax.vjp(smooth, [values[k] for k in places], has_aux=True)
        return results, others, pull(list(cotangents))

    results, _ = jax.eval_shape(split, *shapes)
    return own_jit(gradient).lower(shapes, results)


_FUSED = frozenset(
    """
    abs add and broadcast_in_dim convert_element_type copy div eq erf exp exp2 expm1 ge gt
    integer_pow is_finite le log log1p logistic lt max min mul ne neg not one_minus_square or pow
    reshape rsqrt select_n sign sqrt square squeeze sub tanh transpose xor
    """.split()
)
"""Primitives that XLA fuses into the kernels that read them."""


def kept_bytes(
    function: Callable[..., Sequence[Any]], values: Sequence[Any], *, fused: bool
) -> int:
    """Returns the bytes of the residuals that the gradient of `function` in all floating-point or
    complex arguments keeps, arguments not counted. `values`: the arguments, arrays or their shapes.
    `fused`: leave out residuals that XLA recomputes, in the kernels that read them, from others and
    arguments. XLA cannot do so across the ends of a `jax.checkpoint`.
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
    return sum(map(bytes_of, made))


def _forward(
    function: Callable[..., Sequence[Any]], shapes: Sequence[jax.ShapeDtypeStruct]
) -> Callable[..., Any]:
    """Returns a function of `function`'s arguments that runs its forward pass and returns the VJP
    function, a pytree whose leaves are the residuals.
    """
    places = inexact(shapes)

    def forward(*values: Any) -> Any:
        def results(moving: Sequence[Any]) -> list[Any]:
            return list(filter(has_gradient, function(*replaced(values, places, moving))))

        _, pull = jax.vjp(results, [values[k] for k in places])
        return pull

    return forward
