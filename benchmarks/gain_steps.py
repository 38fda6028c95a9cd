"""Train steps of the ledger of gains that no other benchmark has.

Each is a function of a batch size and an optimizer, as `--model=package.module:function` takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.library_steps import Built, trained
from benchmarks.remedy_steps import STEPS


class _Lstm(nn.Module):
    """Two LSTM layers of 256 units, unrolled; a head of 2,000 at every eighth step."""

    steps: int = 48

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cells = [nn.LSTMCell(256), nn.LSTMCell(256)]
        widths = (x.shape[-1], 256)
        states = [
            cell.initialize_carry(jax.random.key(0), (x.shape[0], width))
            for cell, width in zip(cells, widths, strict=True)
        ]
        total = jnp.zeros(())
        for step in range(self.steps):
            h = x[:, step]
            for k, cell in enumerate(cells):
                states[k], h = cell(states[k], h)
            last = step % 8 == 7
            out = nn.Dense(2000, name=f"o{step}")(h) if last else h.sum(-1, keepdims=True)
            total += out.mean()
        return total


def unrolled_lstm(*, batch_size: int, optimizer: str) -> Built:
    """An unrolled LSTM of 2 x 48 steps; gradients are clipped by their norm, the rest is AdamW."""
    del optimizer
    model = _Lstm()
    x = jax.ShapeDtypeStruct((batch_size, model.steps, 64), jnp.float32)
    weights = jax.eval_shape(lambda x: model.init(jax.random.key(0), x), x)
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def step(weights: Any, state: Any, x: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(model.apply)(weights, x)
        updates, state = rule.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    return step, (weights, jax.eval_shape(rule.init, weights), x), {"donate_argnums": (0, 1)}


def library_decoder(*, batch_size: int, optimizer: str) -> Built:
    """A scan over eight layers with `jax.nn.dot_product_attention`; norms have no scale."""
    layers, width, vocabulary = 8, 512, 8000
    shapes = {"qkv": (width, 3 * width), "out": (width, width)}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    stacked = {k: jax.ShapeDtypeStruct((layers, *s), jnp.float32) for k, s in shapes.items()}
    embedding = jax.ShapeDtypeStruct((vocabulary, width), jnp.float32)
    weights = {"layers": stacked, "embedding": embedding}

    def norm(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        q, k, v = (
            z.reshape(*z.shape[:2], 8, -1) for z in jnp.split(norm(x) @ w["qkv"], 3, axis=-1)
        )
        attention = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        x = x + attention @ w["out"]
        return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"], None

    def loss(weights: Any, tokens: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(layer, weights["embedding"][tokens], weights["layers"])
        logits = norm(x) @ weights["embedding"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    tokens = jax.ShapeDtypeStruct((batch_size, 256), jnp.int32)
    return trained(optimizer, loss, weights, tokens, shapes=True)


def cached_decoder(*, batch_size: int, optimizer: str, over: Any = jax.lax.scan) -> Built:
    """One token through a scan over 16 layers, which takes keys and values and gives them anew."""
    del optimizer
    layers, width, heads, length = 16, 512, 8, 2048
    cache = jax.ShapeDtypeStruct((layers, batch_size, length, heads, width // heads), jnp.bfloat16)
    weights = jax.ShapeDtypeStruct((layers, width, 4 * width), jnp.bfloat16)

    def step(caches: Any, weights: jax.Array, x: jax.Array, at: jax.Array) -> Any:
        def layer(x: jax.Array, given: Any) -> Any:
            (keys, values), w = given
            q, k, v, out = jnp.split(w, 4, -1)
            row = (batch_size, 1, heads, width // heads)
            keys, values = (
                jax.lax.dynamic_update_slice(cache, (x @ w).reshape(row), (0, at, 0, 0))
                for cache, w in ((keys, k), (values, v))
            )
            q = (x @ q).reshape(batch_size, heads, -1)
            scores = jnp.einsum("bhd,bthd->bht", q, keys).astype(jnp.float32)
            scores = jax.nn.softmax(jnp.where(jnp.arange(length) <= at, scores, -1e9))
            mixed = jnp.einsum("bht,bthd->bhd", scores.astype(x.dtype), values)
            return x + mixed.reshape(x.shape) @ out, (keys, values)

        return over(layer, x, (caches, weights))

    x = jax.ShapeDtypeStruct((batch_size, width), jnp.bfloat16)
    at = jax.ShapeDtypeStruct((), jnp.int32)
    return step, ((cache, cache), weights, x, at), {"donate_argnums": 0}


def stacked_decoder(*, batch_size: int, optimizer: str) -> Built:
    """The same without a scan: each layer's keys and values are sliced, and stacked again."""

    def over(layer: Any, x: jax.Array, given: Any) -> Any:
        made = []
        for n in range(16):
            x, new = layer(x, jax.tree.map(lambda a, n=n: a[n], given))
            made.append(new)
        return x, jax.tree.map(lambda *new: jnp.stack(new), *made)

    return cached_decoder(batch_size=batch_size, optimizer=optimizer, over=over)


def written_states(*, batch_size: int, optimizer: str) -> Built:
    """A scan that writes each state into an array, and reads all of them: 48 of 256 x 512."""
    del batch_size, optimizer
    states = jax.ShapeDtypeStruct((48, 256, 512), jnp.float32)

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        def step(c: jax.Array, given: Any) -> tuple[jax.Array, None]:
            k, x = given
            scores = jax.nn.softmax(jnp.einsum("tmd,md->tm", c, x), axis=0)
            state = jnp.tanh(jnp.einsum("tm,tmd->md", scores, c) @ weights + x)
            return jax.lax.dynamic_update_index_in_dim(c, state, k, 0), None

        c, _ = jax.lax.scan(step, jnp.zeros(states.shape), (jnp.arange(48), x))
        return (c**2).mean()

    weights = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    return jax.grad(loss), (weights, states), {}


def fsdp_transformer(devices: Sequence[Any]) -> Built:
    """Six layers of width 1,024 in bfloat16, 16 x 1,024 tokens: rows of all over the devices."""
    width, length, heads, batch, words = 1024, 1024, 8, 16, 8192
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d", None))

    def norm(x: jax.Array) -> jax.Array:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def layer(w: Any, x: jax.Array) -> jax.Array:
        q, k, v = (
            z.reshape(*z.shape[:2], heads, -1).transpose(0, 2, 1, 3)
            for z in jnp.split(norm(x) @ w["qkv"], 3, -1)
        )
        past = jnp.tril(jnp.ones((length, length), bool))
        scores = jnp.where(past, q @ k.swapaxes(-1, -2) / 8, -1e9).astype(jnp.float32)
        mixed = jax.nn.softmax(scores).astype(x.dtype) @ v
        x = x + mixed.transpose(0, 2, 1, 3).reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]

    def loss(weights: Any, text: jax.Array) -> jax.Array:
        x = weights["words"][text].astype(jnp.bfloat16)
        for w in weights["layers"]:
            x = layer(jax.tree.map(lambda w: w.astype(jnp.bfloat16), w), x)
        logits = (x @ weights["words"].T.astype(jnp.bfloat16)).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), text[..., None], -1).mean()

    def step(weights: Any, mean: Any, square: Any, text: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, text)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
        square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, square, grads)
        weights = jax.tree.map(
            lambda w, m, v: w - 0.1 * m / (jnp.sqrt(v) + 1e-8), weights, mean, square
        )
        return weights, mean, square, value

    def shape(*dimensions: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dimensions, jnp.float32, sharding=rows)

    sizes = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}
    one = {name: shape(a * width, b * width) for name, (a, b) in sizes.items()}
    weights = {"words": shape(words, width), "layers": [one] * 6}
    text = jax.ShapeDtypeStruct((batch, length), jnp.int32, sharding=rows)
    return step, (weights, weights, weights, text), {"donate_argnums": (0, 1, 2)}


def branching_layers(*, batch_size: int, optimizer: str) -> Built:
    """The gradient of a scan over 40 layers, each with a branch of two products and one of one."""
    del optimizer

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            deep, flat = (lambda x: jnp.tanh(jnp.tanh(x @ w) @ w)), (lambda x: jnp.sin(x @ w))
            return jax.lax.cond(x[0, 0] > 0, deep, flat, x), None

        return (jax.lax.scan(layer, x, weights)[0] ** 2).sum()

    shapes = (40, 768, 768), (batch_size, 768)
    return jax.grad(loss), tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes), {}


def remedy_step(name: str) -> Built:
    """A step of `benchmarks remedies`, as it was written."""
    found = next(step for step in STEPS if step.name == name)
    return found.function, found.arguments, {"donate_argnums": found.donated}


def masked_layers(*, batch_size: int, optimizer: str) -> Built:
    """A scan over 12 residual layers with a ReLU, which keeps the signs that it met."""
    del optimizer
    layers, width = 12, 512

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, given: Any) -> tuple[jax.Array, None]:
            first, bias, second = given
            return x + jax.nn.relu(x @ first + bias) @ second, None

        return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()

    shapes = (layers, width, 4 * width), (layers, 4 * width), (layers, 4 * width, width)
    weights = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.grad(loss), (weights, jax.ShapeDtypeStruct((batch_size, width), jnp.float32)), {}
