"""A GPT as one writes it with Flax's NNX, and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import optax

from benchmarks.trainers import TrainerStep
from olla_xla.targets.target import Target


class Sizes(NamedTuple):
    """Of a GPT; length 0: it knows no positions."""

    layers: int
    heads: int
    width: int
    words: int
    length: int = 0


class Block(nnx.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.before = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.between = nnx.LayerNorm(width, rngs=rngs)
        self.wide = nnx.Linear(width, 4 * width, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """Sequences, float32 [batch, length, width], to others."""
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.attention(self.before(x), mask=mask)
        return x + self.narrow(jax.nn.gelu(self.wide(self.between(x))))


class Gpt(nnx.Module):
    """Embedding, blocks, and the logits of the next token.

    Args:
      sizes: of it. remat: whether each block is under nnx.remat.
    """

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs, *, remat: bool = False) -> None:
        width, shape = sizes.width, (sizes.length, sizes.width)
        self.embedding = nnx.Embed(sizes.words, width, rngs=rngs)
        if sizes.length:
            self.places = nnx.Param(jax.random.normal(rngs.params(), shape) * 0.02)
        self.blocks = nnx.List([Block(width, sizes.heads, rngs) for _ in range(sizes.layers)])
        self.head = nnx.Linear(width, sizes.words, use_bias=False, rngs=rngs)
        self.remat = remat

    def __call__(self, tokens: Any) -> Any:
        """Logits, float32 [batch, length, words]."""
        x = self.embedding(tokens)
        if hasattr(self, "places"):
            x = x + self.places[...]
        run = nnx.remat(Block.__call__) if self.remat else Block.__call__
        for block in self.blocks:
            x = run(block, x)
        return self.head(x)


def made(sizes: Sizes, *, remat: bool = False) -> tuple[Gpt, Any]:
    """A model and its optimizer, AdamW."""
    model = Gpt(sizes, nnx.Rngs(0), remat=remat)
    return model, nnx.Optimizer(model, optax.adamw(3e-4), wrt=nnx.Param)


def trained(graph: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A train step: (state, tokens) to (state, loss), of what `nnx.split` gives of `made`."""

    def loss(model: Gpt, tokens: Any) -> Any:
        logits = model(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def train_step(state: Any, tokens: Any) -> Any:
        model, optimizer = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(loss)(model, tokens)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    return train_step


def step(policy: str, settings: Mapping[str, str], target: Target) -> TrainerStep:
    """See `Trainer.step`; "blocks" has each block under nnx.remat."""
    sizes = Sizes(int(settings["layers"]), 8, 512, int(settings["words"]), 512)
    graph, shapes = nnx.split(nnx.eval_shape(lambda: made(sizes, remat=policy == "blocks")))
    batch = jax.ShapeDtypeStruct((int(settings["batch_size"]), sizes.length + 1), jnp.int32)
    return TrainerStep(trained(graph), {"donate_argnums": 0}, target.place((shapes, batch)))
