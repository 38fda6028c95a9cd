"""Operators of random graphs that multiply matrices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.random_programs.environment import Operator


def _matmul(env: Any, node: Any, values: Any) -> list[Any]:
    return [values[0] @ env.weight(node.k)]


def _dense(env: Any, node: Any, values: Any) -> list[Any]:
    return [jnp.tanh(values[0] @ env.weight(node.k) + values[1])]


def _wide(env: Any, node: Any, values: Any) -> list[Any]:
    """A product with several weights side by side, split again: four values of one size."""
    both = jnp.concatenate([env.weight(node.k + k) for k in range(4)], 1)
    i, f, g, o = jnp.split(values[0] @ both, 4, -1)
    cell = jax.nn.sigmoid(f) * values[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return [cell, jax.nn.sigmoid(o) * jnp.tanh(cell)]


def _gram(env: Any, node: Any, values: Any) -> list[Any]:
    a, b, c = values[:3]
    return [jnp.einsum("rc,sc,sd->rd", a, b, c) / (a.shape[0] * a.shape[1] ** 0.5)]


def _attention(env: Any, node: Any, values: Any) -> list[Any]:
    q, k, v = (values[i] @ env.weight(node.k + i) for i in range(3))
    scores = jnp.einsum("rc,sc->rs", q, k) / q.shape[1] ** 0.5
    return [jnp.einsum("rs,sc->rc", jax.nn.softmax(scores, -1), v)]


def _conv(env: Any, node: Any, values: Any) -> list[Any]:
    """A convolution along the rows, with the columns as channels."""
    kernel = jnp.stack([env.weight(node.k + k) for k in range(3)])
    found = jax.lax.conv_general_dilated(
        values[0][None], kernel * 0.6, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    return [found[0]]


def _conv2d(env: Any, node: Any, values: Any) -> list[Any]:
    """A convolution over rows and columns, with one channel."""
    kernel = env.weight(node.k)[:3, :3].reshape(3, 3, 1, 1)
    found = jax.lax.conv_general_dilated(
        values[0][None, :, :, None],
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return [found[0, :, :, 0] + values[1]]


def _outer(env: Any, node: Any, values: Any) -> list[Any]:
    return [values[0].mean(1)[:, None] * values[1].mean(0)[None] + 0.5 * values[2]]


LINEAR: dict[str, Operator] = {
    "matmul": _matmul,
    "dense": _dense,
    "wide": _wide,
    "gram": _gram,
    "attention": _attention,
    "conv": _conv,
    "conv2d": _conv2d,
    "outer": _outer,
}
"""Name -> operator."""
