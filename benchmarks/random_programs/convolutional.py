"""Convolutional nets as a loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs.spec import ConvNet

_CLASSES = 10
_FORM = ("NHWC", "HWIO", "NHWC")


def conv_parameters(body: ConvNet, random: np.random.Generator) -> dict[str, Any]:
    """The arrays that are trained."""
    c = body.channels
    params: dict[str, Any] = {
        "first": random.standard_normal((3, 3, 3, c)) / 5,
        "head": random.standard_normal((c, _CLASSES)) / c**0.5,
    }
    for layer in range(body.layers):
        inputs = 1 if body.kind == "depthwise" else c * (layer + 1 if body.kind == "dense" else 1)
        params[f"{layer}/w"] = random.standard_normal((3, 3, inputs, c)) / (9 * inputs) ** 0.5
        params[f"{layer}/scale"] = 1 + 0.1 * random.standard_normal(c)
        params[f"{layer}/shift"] = 0.1 * random.standard_normal(c)
    return params


def conv_batch(body: ConvNet, random: np.random.Generator) -> dict[str, Any]:
    """What the step is given anew each time."""
    return {
        "x": random.standard_normal((body.batch, body.size, body.size, 3)),
        "y": random.integers(0, _CLASSES, (body.batch,)).astype(np.int32),
    }


def conv_loss(body: ConvNet, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """Loss, and values for additional results."""
    x = jax.nn.relu(_conv(batch["x"].astype(params["first"].dtype), params["first"]))
    first, means, all_before = x, [], [x]

    def layer(x: Any, w: Any, scale: Any, shift: Any) -> tuple[Any, Any]:
        groups = body.channels if body.kind == "depthwise" else 1
        y = _conv(x, w, groups=groups)
        mean, square = y.mean((0, 1, 2)), (y * y).mean((0, 1, 2))
        spread = jax.lax.rsqrt(jnp.maximum(square - mean * mean, 0) + 1e-3)
        return jax.nn.relu((y - mean) * spread * scale + shift), mean

    if body.recompute:
        layer = jax.checkpoint(layer)
    for k in range(body.layers):
        inputs = jnp.concatenate(all_before, -1) if body.kind == "dense" else x
        y, mean = layer(inputs, *(params[f"{k}/{name}"] for name in ("w", "scale", "shift")))
        x = x + y if body.kind == "residual" else y
        all_before.append(x)
        means.append(mean)
    scores = _pooled(body, x).mean((1, 2)) @ params["head"]
    chances = jax.nn.log_softmax(scores.astype(jnp.float32))
    loss = -chances[jnp.arange(body.batch), batch["y"]].mean()
    return loss, {"last": jnp.stack(means) if means else x, "middle": first}


def _conv(x: Any, w: Any, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=_FORM, feature_group_count=groups
    )


def _pooled(body: ConvNet, x: Any) -> Any:
    window, form = (1, 2, 2, 1), "VALID"
    if body.pool == "max":
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, form)
    if body.pool == "mean":
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, window, form) / 4
    return x[:, ::2, ::2]
