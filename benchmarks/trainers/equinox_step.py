"""A GPT as one writes it with Equinox: modules, `eqx.filter_value_and_grad`, optax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx  # pyright: ignore[reportMissingImports]
import jax
import jax.numpy as jnp
import optax

from benchmarks.trainers import TrainerStep
from olla_xla.targets.target import Target

_LAYERS, _HEADS, _WIDTH, _LENGTH, _WORDS = 6, 8, 512, 512, 32_000


class Block(eqx.Module):
    """Attention and a perceptron, each after a norm."""

    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    perceptron: eqx.nn.MLP

    def __init__(self, key: Any) -> None:
        attention, perceptron = jax.random.split(key)
        self.norms = [eqx.nn.LayerNorm(_WIDTH), eqx.nn.LayerNorm(_WIDTH)]
        self.attention = eqx.nn.MultiheadAttention(_HEADS, _WIDTH, key=attention)
        self.perceptron = eqx.nn.MLP(
            _WIDTH, _WIDTH, 4 * _WIDTH, 1, activation=jax.nn.gelu, key=perceptron
        )

    def __call__(self, x: Any) -> Any:
        """One sequence, float32 [length, width], to another."""
        mask = jnp.tril(jnp.ones((_LENGTH, _LENGTH), bool))
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y, mask=mask)
        return x + jax.vmap(self.perceptron)(jax.vmap(self.norms[1])(x))


class Gpt(eqx.Module):
    """Embedding, blocks, and the logits of the next token."""

    embedding: eqx.nn.Embedding
    places: Any
    blocks: list[Block]
    head: eqx.nn.Linear
    remat: bool = eqx.field(static=True)

    def __init__(self, key: Any, remat: bool) -> None:
        keys = jax.random.split(key, _LAYERS + 3)
        self.embedding = eqx.nn.Embedding(_WORDS, _WIDTH, key=keys[0])
        self.places = jax.random.normal(keys[1], (_LENGTH, _WIDTH)) * 0.02
        self.blocks = [Block(k) for k in keys[3:]]
        self.head = eqx.nn.Linear(_WIDTH, _WORDS, use_bias=False, key=keys[2])
        self.remat = remat

    def __call__(self, tokens: Any) -> Any:
        """Logits, float32 [length, words], of one sequence."""
        x = jax.vmap(self.embedding)(tokens) + self.places
        for block in self.blocks:
            x = eqx.filter_checkpoint(block)(x) if self.remat else block(x)
        return jax.vmap(self.head)(x)


def step(policy: str, settings: Mapping[str, str], target: Target) -> TrainerStep:
    """See `Trainer.step`; "blocks" has each block under eqx.filter_checkpoint."""
    model = eqx.filter_eval_shape(Gpt, jax.random.key(0), policy == "blocks")
    params, static = eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    rule = optax.adamw(3e-4)

    @eqx.filter_value_and_grad
    def loss(model: Any, tokens: Any) -> Any:
        logits = jax.vmap(model)(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def train_step(params: Any, state: Any, tokens: Any) -> Any:
        value, gradients = loss(eqx.combine(params, static), tokens)
        updates, state = rule.update(gradients, state, params)
        return eqx.apply_updates(params, updates), state, value

    tokens = jax.ShapeDtypeStruct((int(settings["batch_size"]), _LENGTH + 1), jnp.int32)
    arguments = target.place((params, jax.eval_shape(rule.init, params), tokens))
    return TrainerStep(train_step, {"donate_argnums": (0, 1)}, arguments)
