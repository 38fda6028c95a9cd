"""Steps, small enough for a CPU, whose largest values can be made a piece at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from benchmarks.trainers import nnx_step
from examples.zoo import common, llama


class Step(NamedTuple):
    """A function, its arguments, and the number of pieces into which it is cut."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    pieces: int = 16


_IMAGES = ("NHWC", "HWIO", "NHWC")
_RNG = np.random.default_rng(0)


def _normal(*shape: int, scale: float = 1.0) -> Any:
    return jnp.asarray(_RNG.normal(size=shape).astype(np.float32) * scale)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _head(tokens: int = 2048, width: int = 128, words: int = 16_384, pieces: int = 16) -> Step:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return _cross_entropy(x @ w, y)

    labels = jnp.asarray(_RNG.integers(0, words, tokens))
    args = _normal(width, words, scale=0.1), _normal(tokens, width), labels
    return Step(jax.value_and_grad(loss, (0, 1)), args, pieces)


def _gpt2_head(pieces: int) -> Step:
    """The same computation as benchmarks/fission/inductor.py."""
    return _head(8192, 768, 50_304, pieces)


def _per_sample() -> Step:
    """Gradients of each sample, clipped and summed, as for differential privacy."""

    def one(w: Any, x: Any, y: Any) -> Any:
        return (jax.nn.gelu(jax.nn.relu(x @ w[0]) @ w[1]).sum() - y) ** 2

    def clipped(w: Any, x: Any, y: Any) -> Any:
        gradients = jax.vmap(jax.grad(one), (None, 0, 0))(w, x, y)
        norms = jnp.sqrt(sum(jnp.sum(g**2, (1, 2)) for g in gradients))
        return [jnp.tensordot(jnp.minimum(1.0, 1 / norms), g, 1) for g in gradients]

    w = [_normal(64, 256, scale=0.1), _normal(256, 128, scale=0.1)]
    return Step(clipped, (w, _normal(512, 64), _normal(512)))


def _patches() -> Step:
    """A network on overlapping patches of an image, and its gradient."""

    def loss(w: Any, image: Any) -> Any:
        def at(row: Any, column: Any) -> Any:
            patch = lax.dynamic_slice(image, (row, column), (16, 16)).reshape(-1)
            return jnp.tanh(jnp.tanh(patch @ w[0]) @ w[1])

        places = jnp.arange(60)
        return (jax.vmap(lambda r: jax.vmap(lambda c: at(r, c))(places))(places) ** 2).mean()

    w = [_normal(256, 512, scale=0.1), _normal(512, 1, scale=0.1)]
    return Step(jax.value_and_grad(loss), (w, _normal(76, 76)), 15)


def _attention() -> Step:
    """Causal attention over a long context, by blocks of queries."""

    def loss(w: Any, x: Any) -> Any:
        q, k, v = ((x @ m).reshape(len(x), 4, -1) for m in w)
        scores = jnp.einsum("qhd,khd->hqk", q, k) / 4
        causal = jnp.tril(jnp.ones((len(x), len(x)), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        return (jnp.einsum("hqk,khd->qhd", weights, v) ** 2).mean()

    w = [_normal(64, 64, scale=0.1) for _ in range(3)]
    return Step(jax.value_and_grad(loss), (w, _normal(2048, 64)))


def _mixer() -> Step:
    def loss(w: Any, x: Any) -> Any:
        for across, along in w:
            y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
            x = x + jnp.swapaxes(jax.nn.gelu(jnp.swapaxes(y, 1, 2) @ across) @ across.T, 1, 2)
            x = x + jax.nn.gelu(x @ along) @ along.T
        return (x**2).mean()

    w = [(_normal(64, 128, scale=0.1), _normal(128, 512, scale=0.1)) for _ in range(4)]
    return Step(jax.value_and_grad(loss), (w, _normal(64, 64, 128)))


def _experts() -> Step:
    """A mixture-of-experts layer: each token goes to the two best of eight."""

    def loss(w: Any, x: Any) -> Any:
        gates, which = lax.top_k(jax.nn.softmax(x @ w["router"]), 2)
        chosen = jnp.einsum("nk,nke->ne", gates, jax.nn.one_hot(which, 8))
        hidden = jax.nn.gelu(jnp.einsum("nd,edf->nef", x, w["up"]))
        made = jnp.einsum("nef,efd->ned", hidden, w["down"])
        return (jnp.einsum("ned,ne->nd", made, chosen) ** 2).mean()

    up, down = (_normal(8, *s, scale=0.1) for s in ((96, 384), (384, 96)))
    w = {"router": _normal(96, 8), "up": up, "down": down}
    return Step(jax.value_and_grad(loss), (w, _normal(2048, 96)))


def _nnx() -> Step:
    """A language model's whole step, with its optimizer."""
    graph, state = nnx.split(nnx_step.made(nnx_step.Sizes(2, 4, 128, 8192)))
    tokens = jnp.asarray(_RNG.integers(0, 8192, (16, 129)))
    return Step(nnx_step.trained(graph), (state, tokens))


def _llama() -> Step:
    """A scanned Llama under `jax.checkpoint`, of whose step the head is cut."""
    config = llama.LlamaConfig(
        layers=4,
        width=128,
        heads=4,
        key_value_heads=2,
        hidden_width=352,
        sequence_length=128,
        vocabulary_size=16_000,
    )
    model = common.Model(lambda: llama.network(config))
    step, _, _ = model(batch_size=16, optimizer="adam")
    return Step(step, tuple(model.init(16, "adam", seed=0)))


def _trained(loss: Callable[..., Any], weights: Any, *given: Any) -> Step:
    """A step of Adam."""
    optimizer = optax.adam(1e-3)

    def step(w: Any, state: Any, *given: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(w, *given)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(w, updates), state, value

    return Step(step, (weights, optimizer.init(weights), *given))


def _mlp(w: Any, x: Any) -> Any:
    return jax.nn.relu(jax.nn.relu(x @ w[0] + w[1]) @ w[2] + w[3])


def _mlp_weights(size: int, width: int = 64) -> list[Any]:
    shapes = (size, width), (width,), (width, width), (width,)
    return [_normal(*s, scale=0.1) for s in shapes]


def _graph_network(nodes: int = 1024, edges: int = 32_768) -> Step:
    """Two rounds of messages along the edges of one large graph, as of jraph's `GraphNetwork`."""
    sent, received = (jnp.asarray(_RNG.integers(0, nodes, edges)) for _ in range(2))

    def loss(w: Any, x: Any, e: Any, y: Any) -> Any:
        for of_edges, of_nodes in w[:-1]:
            e = _mlp(of_edges, jnp.concatenate([e, x[sent], x[received]], 1))
            sums = jax.ops.segment_sum(e, received, nodes)
            x = _mlp(of_nodes, jnp.concatenate([x, sums], 1))
        return ((x @ w[-1] - y) ** 2).mean()

    rounds = [(_mlp_weights(40), _mlp_weights(80)), (_mlp_weights(192), _mlp_weights(128))]
    w = [*rounds, _normal(64, 1, scale=0.1)]
    return _trained(loss, w, _normal(nodes, 16), _normal(edges, 8), _normal(nodes, 1))


def _forces(atoms: int = 64, terms: int = 16) -> Step:
    """A neural potential of distances and angles within all triples, its loss of energy, forces."""

    def energy(w: Any, places: Any) -> Any:
        between = places[:, None] - places
        distance = jnp.sqrt((between**2).sum(-1) + 0.1)
        cosine = jnp.einsum("ijd,ikd->ijk", between, between)
        cosine = cosine / (distance[:, :, None] * distance[:, None])
        near = jnp.exp(-(distance**2))
        angles = (1 + cosine[..., None]) ** jnp.linspace(1.0, 4.0, terms)
        found = (angles * (near[:, :, None] * near[:, None])[..., None]).sum((1, 2))
        return _mlp(w[:-1], found / atoms).sum(0) @ w[-1]

    def loss(w: Any, places: Any, forces: Any) -> Any:
        value, slope = jax.value_and_grad(energy, 1)(w, places)
        return value**2 + ((slope + forces) ** 2).mean()

    w = [*_mlp_weights(terms), _normal(64, scale=0.1)]
    return _trained(loss, w, _normal(atoms, 3, scale=2.0), _normal(atoms, 3))


def _denoiser() -> Step:
    """A U-Net that tells noise from images, with group norms, attention and dropout."""

    def convolved(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=_IMAGES)

    def block(x: Any, w: Any, t: Any, key: Any) -> Any:
        for k, kernel in enumerate(w["kernels"]):
            groups = x.reshape(*x.shape[:3], 8, -1)
            mean = groups.mean((1, 2, 4), keepdims=True)
            spread = groups.var((1, 2, 4), keepdims=True)
            h = jax.nn.silu(((groups - mean) * lax.rsqrt(spread + 1e-5)).reshape(x.shape))
            h = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, k), 0.9, h.shape), h, 0)
            x = convolved(h, kernel) + (t @ w["time"])[:, None, None]
        return x

    def attention(x: Any, w: Any) -> Any:
        q, k, v = jnp.split(x.reshape(len(x), -1, x.shape[-1]) @ w, 3, axis=2)
        scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / 6)
        return x + (scores @ v).reshape(x.shape)

    def loss(w: Any, images: Any, key: Any) -> Any:
        keys = jax.random.split(key, 6)
        noise = jax.random.normal(keys[0], images.shape)
        time = jax.random.uniform(keys[1], (len(images), 1, 1, 1))
        t = jnp.sin(time[:, 0, 0] * jnp.arange(1.0, 17.0))
        x = convolved(jnp.sqrt(1 - time) * images + jnp.sqrt(time) * noise, w["first"])
        high = block(x, w["down"], t, keys[2])
        low = high.reshape(len(x), 16, 2, 16, 2, -1).mean((2, 4))
        low = attention(block(low, w["bottom"], t, keys[3]), w["attention"])
        x = jnp.repeat(jnp.repeat(low, 2, 1), 2, 2)
        x = block(jnp.concatenate([x, high], 3), w["up"], t, keys[4])
        return ((convolved(x, w["last"]) - noise) ** 2).mean()

    def weights(channels: int) -> dict[str, Any]:
        kernels = [_normal(3, 3, c, 32, scale=0.1) for c in (channels, 32)]
        return {"kernels": kernels, "time": _normal(16, 32, scale=0.1)}

    w = {"down": weights(32), "bottom": weights(32), "up": weights(64)}
    w |= {"first": _normal(3, 3, 3, 32, scale=0.2), "last": _normal(3, 3, 32, 3, scale=0.1)}
    w["attention"] = _normal(32, 96, scale=0.2)
    return _trained(loss, w, _normal(32, 32, 32, 3), jax.random.key(0))


def _policy(steps: int = 64, actors: int = 128, width: int = 128) -> Step:
    """An update by clipped ratios (PPO): advantages backwards through time, then four epochs."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-3))

    def of(w: Any, seen: Any) -> tuple[Any, Any]:
        made = _mlp(w[:-1], seen) @ w[-1]
        return jax.nn.log_softmax(made[..., 1:]), made[..., 0]

    def loss(w: Any, seen: Any, acted: Any, before: Any, gain: Any, aim: Any) -> Any:
        logits, value = of(w, seen)
        ratio = jnp.exp(logits[jnp.arange(len(acted)), acted] - before)
        clipped = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain)
        entropy = -(jnp.exp(logits) * logits).sum(-1)
        return (0.5 * (value - aim) ** 2 - clipped - 0.01 * entropy).mean()

    def step(w: Any, state: Any, seen: Any, acted: Any, reward: Any, key: Any) -> Any:
        logits, value = of(w, seen)
        before = jnp.take_along_axis(logits, acted[..., None], -1)[..., 0]
        change = reward[:-1] + 0.99 * value[1:] - value[:-1]
        _, gain = lax.scan(
            lambda c, d: (d + 0.94 * c, d + 0.94 * c), 0 * value[0], change, reverse=True
        )
        parts = seen[:-1], acted[:-1], before[:-1], gain, gain + value[:-1]
        parts = [x.reshape(-1, *x.shape[2:]) for x in parts]

        def epoch(carry: Any, key: Any) -> Any:
            (w, state), order = carry, jax.random.permutation(key, gain.size)
            value, gradient = jax.value_and_grad(loss)(w, *(x[order] for x in parts))
            updates, state = optimizer.update(gradient, state, w)
            return (optax.apply_updates(w, updates), state), value

        return lax.scan(epoch, (w, state), jax.random.split(key, 4))

    w = [*_mlp_weights(32, width), _normal(width, 7, scale=0.1)]
    acted = jnp.asarray(_RNG.integers(0, 6, (steps, actors)))
    given = _normal(steps, actors, 32), acted, _normal(steps, actors), jax.random.key(0)
    return Step(step, (w, optimizer.init(w), *given))


STEPS: dict[str, Callable[[], Step]] = {
    "loss over a vocabulary": _head,
    "clipped per-sample gradients": _per_sample,
    "network on patches": _patches,
    "attention by blocks of queries": _attention,
    "MLP-mixer": _mixer,
    "mixture of experts": _experts,
    "NNX language model with adamw": _nnx,
    "scanned Llama with adam": _llama,
    "messages along edges": _graph_network,
    "energy and forces": _forces,
    "U-Net of a diffusion": _denoiser,
    "update of a policy": _policy,
}
"""By name."""

LARGE: dict[str, Callable[[], Step]] = {
    f"head of GPT-2 in {pieces}": functools.partial(_gpt2_head, pieces) for pieces in (8, 64)
}
"""Others, of minutes, with the numbers of their pieces."""
