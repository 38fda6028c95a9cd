"""Optimizers, by name: their state and one update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
"""Names."""

_RATE = 0.05


def optimizer_state(name: str, params: Any) -> dict[str, Any]:
    """Zeros beside the parameters, as many as the optimizer keeps."""
    zeros = {k: jnp.zeros_like(v) for k, v in params.items()}
    if name == "momentum":
        return {"m": zeros}
    if name in ("adam", "adamw"):
        return {"m": zeros, "v": {k: jnp.zeros_like(v) for k, v in params.items()}}
    return {}


def updated(name: str, params: Any, grads: Any, state: Any, count: Any) -> tuple[Any, Any]:
    """The next parameters and the next state."""
    if name == "sgd":
        return jax.tree.map(lambda p, g: p - jnp.asarray(_RATE, p.dtype) * g, params, grads), state
    if name == "momentum":
        m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
        return jax.tree.map(lambda p, m: p - _RATE * m, params, m), {"m": m}
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], grads)
    number = count.astype(jnp.float32) + 1

    def new(p: Any, m: Any, v: Any) -> Any:
        fixed_m = m / (1 - 0.9**number)
        fixed_v = v / (1 - 0.99**number)
        change = fixed_m / (jnp.sqrt(fixed_v) + 1e-6)
        if name == "adamw":
            change = change + 0.01 * p
        return (p - _RATE * change).astype(p.dtype)

    return jax.tree.map(new, params, m, v), {"m": m, "v": v}


def clipped(grads: Any, most: float = 1.0) -> Any:
    """Gradients scaled so that their global norm is at most `most`."""
    squares = [jnp.sum(g.astype(jnp.float32) ** 2) for g in jax.tree.leaves(grads)]
    norm = jnp.sqrt(jnp.stack(squares).sum())
    scale = jnp.minimum(1.0, most / (norm + 1e-6))
    return jax.tree.map(lambda g: (g * scale).astype(g.dtype), grads)
