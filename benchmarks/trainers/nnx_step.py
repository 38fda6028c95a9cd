"""A GPT as one writes it with Flax's NNX, and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import optax

from benchmarks.trainers import TrainerStep
from olla_xla.targets.target import Target

_LAYERS, _HEADS, _WIDTH, _LENGTH, _WORDS = 6, 8, 512, 512, 32_000


class Block(nnx.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.before = nnx.LayerNorm(_WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(_HEADS, _WIDTH, decode=False, rngs=rngs)
        self.between = nnx.LayerNorm(_WIDTH, rngs=rngs)
        self.wide = nnx.Linear(_WIDTH, 4 * _WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(4 * _WIDTH, _WIDTH, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """Sequences, float32 [batch, length, width], to others."""
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.attention(self.before(x), mask=mask)
        return x + self.narrow(jax.nn.gelu(self.wide(self.between(x))))


class Gpt(nnx.Module):
    """Embedding, blocks, and the logits of the next token."""

    def __init__(self, remat: bool, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(_WORDS, _WIDTH, rngs=rngs)
        self.places = nnx.Param(jax.random.normal(rngs.params(), (_LENGTH, _WIDTH)) * 0.02)
        self.blocks = nnx.List([Block(rngs) for _ in range(_LAYERS)])
        self.head = nnx.Linear(_WIDTH, _WORDS, use_bias=False, rngs=rngs)
        self.remat = remat

    def __call__(self, tokens: Any) -> Any:
        """Logits, float32 [batch, length, words]."""
        x = self.embedding(tokens) + self.places[...]
        run = nnx.remat(Block.__call__) if self.remat else Block.__call__
        for block in self.blocks:
            x = run(block, x)
        return self.head(x)


def step(policy: str, settings: Mapping[str, str], target: Target) -> TrainerStep:
    """See `Trainer.step`; "blocks" has each block under nnx.remat."""

    def made() -> Any:
        model = Gpt(policy == "blocks", nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(3e-4), wrt=nnx.Param)

    graph, shapes = nnx.split(nnx.eval_shape(made))

    def loss(model: Gpt, tokens: Any) -> Any:
        logits = model(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def train_step(state: Any, tokens: Any) -> Any:
        model, optimizer = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(loss)(model, tokens)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    tokens = jax.ShapeDtypeStruct((int(settings["batch_size"]), _LENGTH + 1), jnp.int32)
    return TrainerStep(train_step, {"donate_argnums": 0}, target.place((shapes, tokens)))
