"""What parts of a sum are added to, a piece at a time, and the types in which they are added."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

_HALF = 16  # bits of a bfloat16, which is the upper half of a float32


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """Adds up partial sums, one of each piece of an array, in a type that may be wider than the
    sum's. A float32 accumulator of a bfloat16 sum can be held as two arrays, its upper and lower 16
    bits: no bit is lost, and in the end the result can take the memory of one of them. A whole
    float32 array would be live together with the result while it is cast. `shape`, `dtype`: of the
    sum. `wide`: the type in which its partial sums are added. `in_halves`: whether it is held as
    two arrays; these are integers, which JAX does not differentiate.
    """

    shape: tuple[int, ...]
    dtype: Any
    wide: Any
    in_halves: bool

    @classmethod
    def of(cls, aval: Any, accumulate_dtype: Any, *, in_halves: bool) -> Accumulator:
        """Makes the accumulator of a sum with the shape and dtype of `aval`, added in the type that
        `accumulator` gives. With `in_halves`, a float32 one of a bfloat16 sum is held as two
        arrays, its upper and lower 16 bits; others as one.
        """
        wide = jnp.dtype(accumulator(aval.dtype, accumulate_dtype))
        split = wide == jnp.float32 and aval.dtype == jnp.bfloat16
        return cls(tuple(aval.shape), jnp.dtype(aval.dtype), wide, in_halves and split)

    def zeros(self, zero: Any = 0) -> tuple[Any, ...]:
        """Returns the accumulator's first arrays: one filled with the scalar `zero`, or if
        `in_halves` two of zeros, for the upper and lower 16 bits.
        """
        if not self.in_halves:
            return (jnp.full(self.shape, jnp.asarray(zero).astype(self.wide)),)
        return jnp.zeros(self.shape, jnp.uint16), jnp.zeros(self.shape, jnp.uint16)

    def add(self, held: tuple[Any, ...], part: Any) -> tuple[Any, ...]:
        """Returns the accumulator's new arrays: those in `held` with a partial sum `part` added."""
        total = self.total(held) + part.astype(self.wide)
        if not self.in_halves:
            return (total,)
        bits = jax.lax.bitcast_convert_type(total, jnp.uint32)
        return (bits >> _HALF).astype(jnp.uint16), bits.astype(jnp.uint16)

    def total(self, held: tuple[Any, ...]) -> Any:
        """Returns as one array of type `wide` the sum that the accumulator's arrays `held` hold."""
        if not self.in_halves:
            return held[0]
        upper, lower = (half.astype(jnp.uint32) for half in held)
        return jax.lax.bitcast_convert_type(upper << _HALF | lower, self.wide)


def zero_after(arrays: Sequence[Any]) -> Any:
    """Returns an integer 0 that depends on all of `arrays` but empty ones and random keys, so that
    XLA computes it after them. On a CPU XLA runs what depends on nothing first: accumulators filled
    with a constant 0 would be in memory during all loops before the one that adds to them.
    """
    firsts = [x[(0,) * x.ndim] for x in arrays if x.size and not _is_key(x)]
    known = sum((first != jnp.zeros_like(first)).astype(jnp.int32) for first in firsts)
    return jnp.clip(known, 0, 0) if firsts else 0


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def promoted(one: Any, other: Any) -> Any:
    """Returns what two dtypes promote to by JAX's standard rules, whatever rules the user set."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(one, other)


def accumulator(dtype: Any, accumulate_dtype: Any) -> Any:
    """Returns the dtype in which `dtype` is summed: a float's is promoted by the other."""
    return promoted(dtype, accumulate_dtype) if jnp.issubdtype(dtype, jnp.floating) else dtype


def is_narrow(dtype: Any, accumulate_dtype: Any) -> bool:
    """Whether sums of type `dtype` are added up in a wider type, given `accumulate_dtype`."""
    return accumulator(dtype, accumulate_dtype) != dtype


_BEST = {"argmax": jnp.max, "argmin": jnp.min, "reduce_max": jnp.max, "reduce_min": jnp.min}
_PLACE = {"argmax": jnp.argmax, "argmin": jnp.argmin}


def parts_of(e: Any, operand: Any, made: Any, first: Any) -> list[Any]:
    """Returns what one piece of an array contributes to a reduction over the axis cut into pieces,
    as arrays with a new dimension 0, in which pieces are joined: the piece's result; of argmax or
    argmin the extreme value and its index in the whole axis; of a maximum or minimum of floats the
    result and how many elements equal it, which share its gradient. `e`: the reduction. `operand`,
    `made`: its operand and result in the piece. `first`: the piece's first index in the axis.
    """
    name, axes, parts = e.primitive.name, e.params["axes"], [made]
    if name in _PLACE:
        parts = [_BEST[name](operand, axes), made + jnp.asarray(first).astype(made.dtype)]
    elif name in _BEST and jnp.issubdtype(made.dtype, jnp.floating):
        ties = operand == jnp.expand_dims(made, axes)
        parts.append(ties.sum(axes, dtype=jnp.int32))
    return [x[None] for x in parts]


def part_types(e: Any) -> list[Any]:
    """Returns shapes and dtypes of what one piece contributes to reduction `e` (`parts_of`)."""
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in (*e.invars, *e.outvars)]
    return jax.eval_shape(functools.partial(parts_of, e, first=0), *shapes)


def reduced(e: Any, parts: Sequence[Any]) -> Any:
    """Makes the result of reduction `e` of what its pieces contribute, joined in dimension 0."""
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
    """Returns the maximum or minimum over all pieces (dimension 0) and its tangent, which all equal
    elements share. `given`: (each piece's extreme, how many elements equal it); `moved`: tangents.
    """
    values, ties = given
    best = _extreme(name, values, ties)
    share = jnp.where(values == best, ties, 0)
    return best, (moved[0] * (share / share.sum(0)).astype(best.dtype)).sum(0)
