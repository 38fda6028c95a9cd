"""Layers over stacked weights, as a loss: in a loop with counters, running means and branches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs.environment import Environment
from benchmarks.random_programs.graph import OPERATORS
from benchmarks.random_programs.spec import Layered

LAYERED_FORMS = ("scan", "reverse", "fori", "scan_jit", "unrolled", "unrolled_jit")
LAYOUTS = ("plain", "shared", "transposed", "both", "last", "joined", "backwards")
"""How the stack is kept: as it is read, one matrix for all layers and no bias, turned, read both
ways, layers along the last dimension, one matrix beside another, the last layer first."""
BRANCHES = ("", "cond", "switch", "data", "early")
"""What a layer does: always the same, or by its number, by its number's rest, by what it reads, or
until it is done, and then nothing more."""
CARRIES = ("count", "mean", "best", "early", "rows", "chosen")
"""What a loop carries beside: a small integer that stops at a limit, a running mean, a maximum,
whether something was reached, an array of which each layer writes its row, one chosen by data."""
RECOMPUTED = ("", "all", "dots", "apart")
"""What `jax.checkpoint` makes a layer compute again: nothing, all, all but products, and all behind
barriers."""

_MOST = 3


def layered_parameters(body: Layered, random: np.random.Generator) -> dict[str, Any]:
    """The arrays that are trained: one stack of matrices, and a bias a layer."""
    layers, width = body.layers, body.width
    if body.layout == "shared":
        return {"w": random.standard_normal((width, width)) / width**0.5}
    w = random.standard_normal((layers, width, width)) / width**0.5
    if body.layout == "last":
        w = np.moveaxis(w, 0, -1)
    elif body.layout == "joined":
        w = w.transpose(1, 0, 2).reshape(width, layers * width)
    return {"w": w, "b": 0.1 * random.standard_normal((layers, width))}


def layered_batch(body: Layered, random: np.random.Generator) -> dict[str, Any]:
    """What the step is given anew each time."""
    return {
        "x": random.standard_normal((body.rows, body.width)),
        "some": np.asarray(max(2 * body.layers // 3, 1), np.int32),
    }


def layered_loss(body: Layered, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """Loss, and values for additional results."""
    stacks = () if body.layout == "shared" else (_stack(body, params["w"]), params["b"])
    x = batch["x"].astype(params["w"].dtype)

    def layer(carry: Any, number: Any, *stacked: Any) -> tuple[Any, Any]:
        h = carry["h"]
        w, b = stacked or (params["w"], 0)

        def apply(h: Any) -> Any:
            return _layer(body, h, x, w, b)

        new = _branched(body, h, number, apply, {**carry, "some": batch["some"]})
        carry, new = _carried(body, {**carry, "h": new})
        carry, new = _rows(body, carry, number, new)
        return {**carry, "h": new}, new.mean()

    if body.recompute:
        policy = jax.checkpoint_policies.dots_saveable if body.recompute == "dots" else None
        layer = jax.checkpoint(layer, policy=policy, prevent_cse=body.recompute == "apart")
    if body.form in ("scan_jit", "unrolled_jit"):
        layer = jax.jit(layer)
    carry = {"h": x, **_start(body, x.dtype)}
    numbers = jnp.arange(body.layers)
    if body.form in ("unrolled", "unrolled_jit"):
        means = []
        for k in range(body.layers):
            carry, mean = layer(carry, numbers[k], *(stack[k] for stack in stacks))
            means.append(mean)
        means = jnp.stack(means)
    elif body.form == "fori":
        carry = jax.lax.fori_loop(
            0, body.layers, lambda k, c: layer(c, k, *(stack[k] for stack in stacks))[0], carry
        )
        means = carry["h"].mean(0)
    else:
        carry, means = jax.lax.scan(
            lambda c, xs: layer(c, *xs),
            carry,
            (numbers, *stacks),
            reverse=body.form == "reverse",
            unroll=max(body.unroll, 1),
        )
    h = carry["h"].astype(jnp.promote_types(x.dtype, jnp.float32))
    loss = (h * h).mean()
    for name in ("m", "best"):
        if name in carry:
            loss = loss + 0.1 * carry[name].astype(h.dtype)
    kept = [carry[name] for name in ("rows", "chosen") if name in carry]
    for array in kept:
        loss = loss + 0.1 * jnp.sin(array.astype(h.dtype)).mean()
    return loss, {"last": carry["h"], "middle": means, **({"kept": kept} if kept else {})}


def _stack(body: Layered, w: Any) -> Any:
    """The weights with the layers first."""
    if body.layout == "last":
        return jnp.moveaxis(w, -1, 0)
    if body.layout == "joined":
        return w.reshape(body.width, body.layers, body.width).transpose(1, 0, 2)
    if body.layout == "transposed":
        return w.transpose(0, 2, 1)
    return w[::-1] if body.layout == "backwards" else w


def _layer(body: Layered, h: Any, x: Any, w: Any, b: Any) -> Any:
    env = Environment([w], None, OPERATORS)
    product = h @ w
    if body.cast:
        product = (h.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(h.dtype)
    moved = jnp.tanh(product + b)
    new = 0.5 * (moved + env.run(body.nodes, [x, moved]))  # Whatever the nodes read.
    return (new @ w.T if body.layout == "both" else new).astype(h.dtype)


def _branched(body: Layered, h: Any, number: Any, layer: Any, carry: Any) -> Any:
    if body.branch == "cond":
        return jax.lax.cond(number < carry["some"], layer, lambda h: h, h)
    if body.branch == "data":
        return jax.lax.cond(h.mean() > 0, layer, lambda h: jnp.sin(h) * 0.5, h)
    if body.branch == "switch":
        return jax.lax.switch(number % 3, (layer, lambda h: 0.9 * h, jnp.tanh), h)
    if body.branch == "early" and "done" in carry:
        return jax.lax.cond(carry["done"], lambda h: h, layer, h)
    return layer(h)


def _start(body: Layered, dtype: Any) -> dict[str, Any]:
    start = {
        "count": ("n", jnp.int32(0)),
        "mean": ("m", jnp.zeros((), dtype)),
        "best": ("best", jnp.full((), -10, dtype)),
        "early": ("done", jnp.bool_(False)),
        "rows": ("rows", jnp.zeros((body.layers, body.rows, body.width), dtype)),
        "chosen": ("chosen", jnp.ones((body.rows, body.layers + 1, body.width), dtype)),
    }
    return dict(start[name] for name in body.carries)


def _carried(body: Layered, carry: Any) -> tuple[Any, Any]:
    """(the carry with its counter and means advanced, the layer's result changed by them)."""
    carry, h = dict(carry), carry["h"]
    if "n" in carry:
        carry["n"] = jnp.where(carry["n"] < _MOST, carry["n"] + 1, _MOST)
        h = (0.2 * h / (1 - 0.9 ** carry["n"])).astype(h.dtype)
    if "m" in carry:
        carry["m"] = (0.9 * carry["m"] + 0.1 * (h * h).mean()).astype(h.dtype)
        h = h * (1 + 0.1 * carry["m"])
    if "best" in carry:
        carry["best"] = jnp.maximum(carry["best"], h.mean())
    if "done" in carry:
        carry["done"] = carry["done"] | (jnp.abs(h).mean() < 0.35)
    return carry, h


def _rows(body: Layered, carry: Any, number: Any, h: Any) -> tuple[Any, Any]:
    """(the carry with a row of its arrays written, the layer's result changed by what it reads)."""
    carry, put = dict(carry), jax.lax.dynamic_update_index_in_dim
    if "rows" in carry:  # read before its row is written
        h = (h + 0.1 * jnp.sin(carry["rows"]).sum(0)).astype(h.dtype)
        carry["rows"] = put(carry["rows"], h, number, 0)
    if "chosen" in carry:  # read after
        at = (100 * jnp.abs(h.astype(jnp.float32)).mean()).astype(jnp.int32) % (body.layers + 2)
        carry["chosen"] = put(carry["chosen"], jnp.tanh(h), at, 1)
        h = (h + 0.1 * jnp.cos(carry["chosen"]).max(1)).astype(h.dtype)
    return carry, h
