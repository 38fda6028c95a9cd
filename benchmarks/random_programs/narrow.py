"""Operators of random graphs by way of other types, random numbers and empty arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.random_programs.environment import Operator


def _int4(env: Any, node: Any, values: Any) -> list[Any]:
    """Rounded to four bits and back; the gradient goes past."""
    a, b = values[:2]
    narrow = jnp.clip(jnp.round(4 * jax.lax.stop_gradient(a)), -8, 7).astype(jnp.int4)
    return [narrow.astype(a.dtype) * 0.25 + 0.1 * b]


def _int8(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = (jax.lax.stop_gradient(v) for v in values[:2])
    left, right = ((32 * jnp.tanh(v)).astype(jnp.int8) for v in (a, b))
    return [values[2] + (left // 2 + right // 2).astype(a.dtype) / 64]


def _mask(env: Any, node: Any, values: Any) -> list[Any]:
    a, b, c = values[:3]
    mask = (a > 0) ^ (b > 0.1)
    return [jnp.where(mask, c, 0.3 * a), jnp.where(~mask & (c > 0), b, 0.1)]


def _complex(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = (v.astype(jnp.float32) for v in values[:2])
    z = jax.lax.complex(a, b)
    if node.k % 2:
        z = jnp.fft.ifft(jnp.fft.fft(z, axis=1) * jnp.complex64(0.5 + 0.5j), axis=1)
    z = z * jnp.conj(z[::-1]) * 0.5
    return [z.real, z.imag]


def _bits(env: Any, node: Any, values: Any) -> list[Any]:
    wide = jax.lax.stop_gradient(values[0]).astype(jnp.float32)
    bits = jax.lax.bitcast_convert_type(wide, jnp.uint32)
    mixed = (bits ^ (bits >> 7)) & jnp.uint32(0xFFFF)
    return [values[1] + mixed.astype(jnp.float32) / 2**17]


def _dropout(env: Any, node: Any, values: Any) -> list[Any]:
    kept = jax.random.bernoulli(env.draw(), 0.8, values[0].shape)
    return [jnp.where(kept, values[0] / 0.8, 0)]


def _noise(env: Any, node: Any, values: Any) -> list[Any]:
    return [values[0] + 0.1 * jax.random.normal(env.draw(), values[0].shape)]


def _empty(env: Any, node: Any, values: Any) -> list[Any]:
    """By way of an array without elements and a scalar."""
    a = values[0]
    nothing = jnp.tanh(a[:0] * 2)
    return [jnp.concatenate([nothing, a]) + nothing.sum() + 0.1 * a.max()]


def _half(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = (v.astype(jnp.bfloat16 if node.k % 2 else jnp.float16) for v in values[:2])
    return [(a * b + a).astype(jnp.float32) * 0.5]


TYPES: dict[str, Operator] = {
    "int4": _int4,
    "int8": _int8,
    "mask": _mask,
    "complex": _complex,
    "bits": _bits,
    "dropout": _dropout,
    "noise": _noise,
    "empty": _empty,
    "half": _half,
}
"""Name -> operator."""
