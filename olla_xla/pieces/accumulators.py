"""What parts of a sum are added to, a piece at a time, and the types in which they are added."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

_HALF = 16
"""Bits of a bfloat16, which is the upper half of a float32."""


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """Adds up the parts of a sum in a type that may be wider than the sum's.

    A float32 accumulator of a bfloat16 sum can be held as two arrays, its upper and lower 16 bits:
    no bit is lost, and in the end the result can take the memory of one of them. A whole float32
    array would be live together with the result while it is cast.

    Attributes:
      shape, dtype: of the sum. wide: the type in which its parts are added.
      in_halves: whether it is held as two arrays; these are integers, which JAX does not
        differentiate.
    """

    shape: tuple[int, ...]
    dtype: Any
    wide: Any
    in_halves: bool

    @classmethod
    def of(cls, aval: Any, accumulate_dtype: Any, *, in_halves: bool) -> Accumulator:
        """The accumulator of a sum of shape and type `aval`; in halves if wanted and possible."""
        wide = jnp.dtype(accumulator(aval.dtype, accumulate_dtype))
        split = wide == jnp.float32 and aval.dtype == jnp.bfloat16
        return cls(tuple(aval.shape), jnp.dtype(aval.dtype), wide, in_halves and split)

    def zeros(self, zero: Any = 0) -> tuple[Any, ...]:
        """The initial arrays, all 0: filled with `zero` (a 0 computed late) unless in halves."""
        if not self.in_halves:
            return (jnp.full(self.shape, jnp.asarray(zero).astype(self.wide)),)
        return jnp.zeros(self.shape, jnp.uint16), jnp.zeros(self.shape, jnp.uint16)

    def add(self, held: tuple[Any, ...], part: Any) -> tuple[Any, ...]:
        """Returns the new accumulator arrays: `held` with `part`, of the sum's shape, added."""
        total = self.total(held) + part.astype(self.wide)
        if not self.in_halves:
            return (total,)
        bits = jax.lax.bitcast_convert_type(total, jnp.uint32)
        return (bits >> _HALF).astype(jnp.uint16), bits.astype(jnp.uint16)

    def total(self, held: tuple[Any, ...]) -> Any:
        """The sum that the accumulator arrays `held` stand for, as one array of type `wide`."""
        if not self.in_halves:
            return held[0]
        upper, lower = (half.astype(jnp.uint32) for half in held)
        return jax.lax.bitcast_convert_type(upper << _HALF | lower, self.wide)


def zero_after(arrays: Sequence[Any]) -> Any:
    """An integer 0 that depends on `arrays`, so that XLA computes it after them.

    On a CPU XLA runs what depends on nothing first: accumulators of plain zeros would be in memory
    during the loops before their own.
    """
    firsts = [x[(0,) * x.ndim] for x in arrays if x.size and not _is_key(x)]
    known = sum((first != jnp.zeros_like(first)).astype(jnp.int32) for first in firsts)
    return jnp.clip(known, 0, 0) if firsts else 0


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def promoted(one: Any, other: Any) -> Any:
    """The type that two types promote to by NumPy's rules, whatever promotion the user allows."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(one, other)


def accumulator(dtype: Any, accumulate_dtype: Any) -> Any:
    """The dtype in which parts of a sum of type `dtype` are added; for floats it may be wider."""
    return promoted(dtype, accumulate_dtype) if jnp.issubdtype(dtype, jnp.floating) else dtype


def is_narrow(dtype: Any, accumulate_dtype: Any) -> bool:
    """Whether a sum of type `dtype` is accumulated in a wider type."""
    return accumulator(dtype, accumulate_dtype) != dtype


_BEST = {"argmax": jnp.max, "argmin": jnp.min, "reduce_max": jnp.max, "reduce_min": jnp.min}
_PLACE = {"argmax": jnp.argmax, "argmin": jnp.argmin}


def parts_of(e: Any, operand: Any, made: Any, first: Any) -> list[Any]:
    """Arrays that one piece contributes to a reduction (sum, max, argmax, ...) over the cut axis.

    Each has a new dimension 0. Of an extreme, one counts the elements equal to it, which share its
    gradient. `e`: the reduction. `operand`, `made`: its operand and result in the piece. `first`:
    index of the piece's first element in the axis.
    """
    name, axes, found = e.primitive.name, e.params["axes"], [made]
    if name in _PLACE:
        found = [_BEST[name](operand, axes), made + jnp.asarray(first).astype(made.dtype)]
    elif name in _BEST and jnp.issubdtype(made.dtype, jnp.floating):
        ties = operand == jnp.expand_dims(made, axes)
        found.append(ties.sum(axes, dtype=jnp.int32))
    return [x[None] for x in found]


def part_types(e: Any) -> list[Any]:
    """Shapes and dtypes of the arrays that `parts_of` returns for a reduction equation."""
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in (*e.invars, *e.outvars)]
    return jax.eval_shape(functools.partial(parts_of, e, first=0), *shapes)


def reduced(e: Any, parts: Sequence[Any]) -> Any:
    """The result of reduction `e`; `parts`: arrays of `parts_of`, pieces along dimension 0."""
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
    """The JVP of `_extreme`: all elements equal to the extreme share its tangent, as in JAX."""
    values, ties = given
    best = _extreme(name, values, ties)
    share = jnp.where(values == best, ties, 0)
    return best, (moved[0] * (share / share.sum(0)).astype(best.dtype)).sum(0)
