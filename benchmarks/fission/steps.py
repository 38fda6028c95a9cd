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


STEPS: dict[str, Callable[[], Step]] = {
    "loss over a vocabulary": _head,
    "clipped per-sample gradients": _per_sample,
    "network on patches": _patches,
    "attention by blocks of queries": _attention,
    "MLP-mixer": _mixer,
    "mixture of experts": _experts,
    "NNX language model with adamw": _nnx,
    "scanned Llama with adam": _llama,
}
"""By name."""

LARGE: dict[str, Callable[[], Step]] = {
    f"head of GPT-2 in {pieces}": functools.partial(_gpt2_head, pieces) for pieces in (8, 64)
}
"""Others, of minutes, with the numbers of their pieces."""
