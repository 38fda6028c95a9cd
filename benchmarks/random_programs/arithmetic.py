"""A loss of products and sums, which LLVM rounds once or twice depending on nearby code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs.spec import Arithmetic

SIZES = [(31, 45, 3), (64, 64, 4), (7, 19, 5), (128, 16, 2), (5, 8, 3)]
"""Rows, width and layers: odd, as code for tiles and vectors has an end then, and even."""

OPERATIONS: dict[str, Callable[..., Any]] = {
    "product": lambda a, b, c, w: a * b,
    "half": lambda a, b, c, w: a + b * 0.5,
    "less": lambda a, b, c, w: a - b * c,
    "sine": lambda a, b, c, w: jnp.sin(a * b + c),
    "cosine": lambda a, b, c, w: jnp.cos(a + b),
    "tanh": lambda a, b, c, w: jnp.tanh(a * b - c),
    "negative": lambda a, b, c, w: -a,
    "products": lambda a, b, c, w: a * b + c * a,
    "square": lambda a, b, c, w: a * a,
    "thrice": lambda a, b, c, w: jnp.sin(a * b + c) * jnp.cos(a * b + c) + jnp.sin(a * b + c) * a,
    "where": lambda a, b, c, w: jnp.where(a > b, a * c, b),
    "larger": lambda a, b, c, w: jnp.maximum(a, b * c),
    "dot": lambda a, b, c, w: jnp.tanh(a @ w),
    "bfloat16": lambda a, b, c, w: a.astype(jnp.bfloat16).astype(a.dtype) * b,
}
"""Name -> (three values, a square matrix) -> one more value."""


def arithmetic_parameters(body: Arithmetic, random: np.random.Generator) -> dict[str, Any]:
    """The arrays that are trained: a matrix a layer."""
    shape = body.layers, body.width, body.width
    return {"w": random.standard_normal(shape) / body.width**0.5}


def arithmetic_batch(body: Arithmetic, random: np.random.Generator) -> dict[str, Any]:
    """What the step is given anew each time."""
    return {"x": random.standard_normal((body.rows, body.width))}


def arithmetic_layer(operations: Iterable[tuple[str, Sequence[int]]], h: Any, w: Any) -> Any:
    """What a layer makes of h and a matrix: operations, with the numbers of what each reads."""
    values = [h, jnp.tanh(h @ w)]
    for name, reads in operations:
        values.append(OPERATIONS[name](*(values[k % len(values)] for k in reads), w))
    return jnp.tanh(sum(values[len(values) // 2 :]) * 0.3)


def arithmetic_loss(body: Arithmetic, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """Loss, and values for additional results."""
    operations = [(node.op, (*node.reads, 0, 0)[:3]) for node in body.operations]

    def layer(h: Any, w: Any) -> tuple[Any, None]:
        return arithmetic_layer(operations, h, w).astype(h.dtype), None

    first = batch["x"].astype(params["w"].dtype)
    if body.form == "unrolled":
        last = first
        for w in params["w"][:: -1 if body.reverse else 1]:
            last, _ = layer(last, w)
    else:
        options = {"reverse": body.reverse, "unroll": max(body.unroll, 1)}
        last, _ = jax.lax.scan(layer, first, params["w"], **options)
    return jnp.mean(last * last).astype(jnp.float32), {"last": last}
