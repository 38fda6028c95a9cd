"""Operators of random graphs that move, reduce and order values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.random_programs.environment import Operator


def _split(env: Any, node: Any, values: Any) -> list[Any]:
    low, high = jnp.split(values[0], 2, axis=node.k % 2)
    return [jnp.concatenate([high, low], node.k % 2), jnp.concatenate([low, jnp.tanh(high)], -1)]


def _concat(env: Any, node: Any, values: Any) -> list[Any]:
    axis = node.k % 2
    both = jnp.concatenate([values[0], values[1]], axis)
    half = both.shape[axis] // 2
    start = half // 2
    return [jax.lax.slice_in_dim(both, start, start + half, axis=axis)]


def _slices(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = values[:2]
    shift = 1 + node.k % (a.shape[0] - 1)
    return [jnp.concatenate([a[shift:], jnp.tanh(b[:shift])])]


def _pad(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = values[:2]
    shift = 1 + node.k % (a.shape[1] - 1)
    return [b + jnp.pad(a[:, shift:], ((0, 0), (shift, 0))) * 0.5]


def _transpose(env: Any, node: Any, values: Any) -> list[Any]:
    a = values[0]
    turned = a.T.reshape(a.shape)
    return [turned if node.k % 2 else jnp.flip(turned, 0)]


def _roll(env: Any, node: Any, values: Any) -> list[Any]:
    return [jnp.roll(values[0], 1 + node.k, node.k % 2)]


def _center(env: Any, node: Any, values: Any) -> list[Any]:
    return [values[0] - values[1].mean(node.k % 2, keepdims=True)]


def _normalize(env: Any, node: Any, values: Any) -> list[Any]:
    a = values[0].astype(jnp.float32)
    return [a * jax.lax.rsqrt((a * a).mean(-1, keepdims=True) + 1e-5)]


def _softmax(env: Any, node: Any, values: Any) -> list[Any]:
    return [jax.nn.softmax(values[0], node.k % 2) * values[1]]


def _log_softmax(env: Any, node: Any, values: Any) -> list[Any]:
    return [0.2 * jax.nn.log_softmax(values[0], -1)]


def _cumsum(env: Any, node: Any, values: Any) -> list[Any]:
    a = values[0]
    return [jnp.cumsum(a, node.k % 2) / a.shape[node.k % 2]]


def _sort(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = values[:2]
    if node.k % 2:
        return [jnp.sort(a, -1)]
    return [jnp.take_along_axis(b, jnp.argsort(a, 0), 0)]


def _gather(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = values[:2]
    index = (jnp.abs(b[:, 0].astype(jnp.float32)) * 100).astype(jnp.int32) % a.shape[0]
    return [a[index]]


def _scatter(env: Any, node: Any, values: Any) -> list[Any]:
    a, b, c = values[:3]
    index = (jnp.abs(c[:, 0].astype(jnp.float32)) * 100).astype(jnp.int32) % a.shape[0]
    return [a.at[index].add(0.5 * b)]


def _set(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = values[:2]
    rows = max(1, a.shape[0] // 4)
    start = (jnp.abs(b[0, 0].astype(jnp.float32)) * 10).astype(jnp.int32) + node.k
    part = jnp.tanh(jax.lax.slice_in_dim(b, 0, rows))
    return [jax.lax.dynamic_update_slice(a, part, (start % a.shape[0], jnp.int32(0)))]


def _top(env: Any, node: Any, values: Any) -> list[Any]:
    best, _ = jax.lax.top_k(values[0], max(1, values[0].shape[1] // 2))
    return [values[1] + best.mean(-1, keepdims=True)]


def _largest(env: Any, node: Any, values: Any) -> list[Any]:
    """The largest of each row or column and where it is, beside a slice of the same."""
    a, b = values[:2]
    axis = node.k % 2
    at = jnp.argmax(a, axis, keepdims=True)
    here = jnp.arange(a.shape[axis]).reshape((-1, 1) if axis == 0 else (1, -1)) == at
    first = jax.lax.slice_in_dim(a, 0, 1, axis=1)
    return [jnp.where(here, a, 0.5 * b), b + 0.3 * first * jnp.cos(at.astype(a.dtype))]


ARRAYS: dict[str, Operator] = {
    "split": _split,
    "concat": _concat,
    "slices": _slices,
    "pad": _pad,
    "transpose": _transpose,
    "roll": _roll,
    "center": _center,
    "normalize": _normalize,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "cumsum": _cumsum,
    "sort": _sort,
    "gather": _gather,
    "scatter": _scatter,
    "set": _set,
    "top": _top,
    "largest": _largest,
}
"""Name -> operator."""
