"""Llama-like transformers as a loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs.spec import Transformer

_ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "relu2": lambda x: jax.nn.relu(x) ** 2,
}


def transformer_parameters(body: Transformer, random: np.random.Generator) -> dict[str, Any]:
    """The arrays that are trained; those of the layers are stacked for a scan."""
    d, wide = body.width, 2 * body.width
    shapes = {
        "q": (d, d),
        "k": (d, d),
        "v": (d, d),
        "o": (d, d),
        "gate": (d, wide),
        "up": (d, wide),
    }
    shapes |= {"down": (wide, d)}
    params: dict[str, Any] = {"embed": random.standard_normal((body.classes, d))}
    if not body.tied:
        params["head"] = random.standard_normal((d, body.classes)) / d**0.5
    params["norm"] = np.ones(d)
    for layer in range(body.layers):
        for name, shape in shapes.items():
            params[f"{layer}/{name}"] = random.standard_normal(shape) / shape[0] ** 0.5
        for name in ("norm1", "norm2"):
            params[f"{layer}/{name}"] = 1 + 0.1 * random.standard_normal(d)
    if body.form == "scan":
        stacked = {n: np.stack([params.pop(f"{i}/{n}") for i in range(body.layers)]) for n in
                   [*shapes, "norm1", "norm2"]}  # fmt: skip
        params |= {f"all/{name}": value for name, value in stacked.items()}
    return params


def transformer_batch(body: Transformer, random: np.random.Generator) -> dict[str, Any]:
    """What the step is given anew each time."""
    shape = (body.batch, body.length)
    return {"tokens": random.integers(0, body.classes, shape).astype(np.int32)}


def transformer_loss(body: Transformer, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """Loss, and values for additional results."""
    tokens = batch["tokens"]
    x = params["embed"][tokens]

    def block(x: Any, weights: Any) -> Any:
        return _block(body, weights, x, key)

    if body.recompute:
        block = jax.checkpoint(block)
    first = x
    if body.form == "scan":
        stacked = {n.removeprefix("all/"): v for n, v in params.items() if n.startswith("all/")}
        unroll = max(body.unroll, 1)
        x, _ = jax.lax.scan(lambda x, w: (block(x, w), None), x, stacked, unroll=unroll)
    else:
        for layer in range(body.layers):
            prefix = f"{layer}/"
            own = {n.removeprefix(prefix): v for n, v in params.items() if n.startswith(prefix)}
            x = block(x, own)
    last = _norm(body, x, params["norm"])
    head = params["embed"].T if body.tied else params["head"]
    scores = jax.nn.log_softmax((last @ head).astype(jnp.float32))
    picked = jnp.take_along_axis(scores[:, :-1], tokens[:, 1:, None], -1)
    return -picked.mean(), {"last": last, "middle": first}


def _block(body: Transformer, w: Any, x: Any, key: Any) -> Any:
    b, t, d = x.shape
    heads = max(h for h in range(1, max(body.heads, 1) + 1) if d % (2 * h) == 0 or h == 1)
    y = _norm(body, x, w["norm1"])
    q, k, v = ((y @ w[name]).reshape(b, t, heads, d // heads) for name in "qkv")
    if body.rotary:
        q, k = _rotated(q), _rotated(k)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (d // heads) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    attended = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(x.dtype)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", attended, v).reshape(b, t, d) @ w["o"]
    y = _norm(body, x, w["norm2"])
    z = _ACTIVATIONS[body.activation](y @ w["gate"]) * (y @ w["up"])
    if body.dropout:
        z = jnp.where(jax.random.bernoulli(key, 0.9, z.shape), z / 0.9, 0).astype(z.dtype)
    return x + z @ w["down"]


def _norm(body: Transformer, x: Any, weight: Any) -> Any:
    wide = x.astype(jnp.float32)
    if body.norm == "layer":
        wide = wide - wide.mean(-1, keepdims=True)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * weight


def _rotated(x: Any) -> Any:
    t, half = x.shape[1], x.shape[-1] // 2
    angle = jnp.arange(t)[:, None] / (100.0 ** (jnp.arange(half) / max(half, 1)))
    cos, sin = (f(angle).astype(x.dtype)[None, :, None] for f in (jnp.cos, jnp.sin))
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin, rest], -1)
