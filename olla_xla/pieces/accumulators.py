"""What parts of a sum are added to, a piece at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from olla_xla.pieces.estimate import accumulator

__all__ = ["Accumulator"]

_HALF = 16
"""Bits of a bfloat16, which is the upper half of a float32."""


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """An accumulator of a sum, in the type in which its parts are added.

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
        """The accumulator of a sum of this shape and type; in halves if wanted and possible."""
        wide = jnp.dtype(accumulator(aval.dtype, accumulate_dtype))
        split = wide == jnp.float32 and aval.dtype == jnp.bfloat16
        return cls(tuple(aval.shape), jnp.dtype(aval.dtype), wide, in_halves and split)

    def zeros(self) -> tuple[Any, ...]:
        """Its arrays before anything is added."""
        if not self.in_halves:
            return (jnp.zeros(self.shape, self.wide),)
        return jnp.zeros(self.shape, jnp.uint16), jnp.zeros(self.shape, jnp.uint16)

    def add(self, held: tuple[Any, ...], part: Any) -> tuple[Any, ...]:
        """Its arrays with a part, of the sum's type, added."""
        total = self.total(held) + part.astype(self.wide)
        if not self.in_halves:
            return (total,)
        bits = jax.lax.bitcast_convert_type(total, jnp.uint32)
        return (bits >> _HALF).astype(jnp.uint16), bits.astype(jnp.uint16)

    def total(self, held: tuple[Any, ...]) -> Any:
        """The sum in the wide type."""
        if not self.in_halves:
            return held[0]
        upper, lower = (half.astype(jnp.uint32) for half in held)
        return jax.lax.bitcast_convert_type(upper << _HALF | lower, self.wide)
