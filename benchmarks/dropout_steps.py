"""Train steps with dropout, whose modules have many loops: a CPU draws each mask in its own."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.library_steps import Built, trained
from benchmarks.schedule import Case

_WIDTH, _RATE = 64, 0.1


def _layers(depth: int, batch_size: int, optimizer: str) -> Built:
    """Dense layers, each followed by dropout, with the mean square as the loss."""

    def loss(params: Any, key: Any, h: Any) -> Any:
        for k, w in enumerate(params):
            kept = jax.random.bernoulli(jax.random.fold_in(key, k), 1 - _RATE, h.shape)
            h = jax.nn.relu(h @ w) * kept
        return jnp.mean(h * h)

    keys = jax.random.split(jax.random.key(0), depth)
    params = [jax.random.normal(k, (_WIDTH, _WIDTH)) * (2 / _WIDTH) ** 0.5 for k in keys]
    x = jax.random.normal(jax.random.key(1), (batch_size, _WIDTH))
    return trained(optimizer, loss, params, jax.random.key(2), x)


def layers_10(*, batch_size: int, optimizer: str) -> Built:
    """Ten layers of width 64."""
    return _layers(10, batch_size, optimizer)


def layers_20(*, batch_size: int, optimizer: str) -> Built:
    """Twenty layers of width 64."""
    return _layers(20, batch_size, optimizer)


def layers_40(*, batch_size: int, optimizer: str) -> Built:
    """Forty layers of width 64."""
    return _layers(40, batch_size, optimizer)


class _Bert(nn.Module):
    """BERT's base encoder (Devlin et al. 2019) with its dropout, and a tied output layer."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 30_522

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps int32 [batch, sequence] to logits [batch, sequence, vocabulary]."""
        dropout = functools.partial(nn.Dropout, _RATE, deterministic=False)
        embed = nn.Embed(self.vocabulary, self.width)
        x = embed(tokens) + nn.Embed(512, self.width)(jnp.arange(tokens.shape[1]))
        x = dropout()(nn.LayerNorm()(x))
        for _ in range(self.layers):
            attention = nn.MultiHeadDotProductAttention(
                self.heads, dropout_rate=_RATE, broadcast_dropout=False, deterministic=False
            )
            x = nn.LayerNorm()(x + dropout()(attention(x)))
            hidden = nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(x)))
            x = nn.LayerNorm()(x + dropout()(hidden))
        return embed.attend(x)


def bert(*, batch_size: int, optimizer: str) -> Built:
    """BERT-base on sequences of 128 tokens."""
    network = _Bert()

    def loss(params: Any, key: Any, tokens: Any, labels: Any) -> Any:
        logits: Any = network.apply(params, tokens, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    tokens = jax.ShapeDtypeStruct((batch_size, 128), jnp.int32)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = jax.eval_shape(network.init, keys, tokens)
    key = jax.eval_shape(lambda: jax.random.key(2))
    return trained(optimizer, loss, params, key, tokens, tokens, shapes=True)


CASES = (
    *(Case(f"{__name__}:layers_{depth}", 32, "sgd", "cpu") for depth in (10, 20, 40)),
    Case(f"{__name__}:bert", 2, "adamw", "cpu"),
)
"""What `benchmarks first_call --dropout` times."""
