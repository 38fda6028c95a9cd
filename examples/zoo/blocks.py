"""Layers shared by the transformers and the other attention networks."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp


def dot_product_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None
) -> jax.Array:
    """Scaled dot-product attention; the softmax is float32.

    Args:
      query: `[batch, queries, heads, head_width]`.
      key: `[batch, keys, heads, head_width]`.
      value: `[batch, keys, heads, head_width]`.
      mask: bool, broadcast to `[batch, heads, queries, keys]`: whether a query sees a key.

    Returns:
      `[batch, queries, heads, head_width]`, of the dtype of `value`.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
    scores = scores / query.shape[-1] ** 0.5
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores).astype(value.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def causal_mask(length: int) -> jax.Array:
    """Bool `[length, length]`: a query sees the keys up to its own position."""
    return jnp.tril(jnp.ones((length, length), bool))


def sinusoids(positions: jax.Array, width: int, theta: float = 10000.0) -> jax.Array:
    """Float32 `[n, width]` of sines, then cosines, of `positions [n]` at falling frequencies."""
    half = width // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions.astype(jnp.float32)[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


class MultiHeadAttention(nn.Module):
    """Multi-head attention with biases and without dropout.

    Attributes:
      heads: number of heads, a divisor of the width of the queries.
    """

    heads: int

    @nn.compact
    def __call__(
        self, x: jax.Array, context: jax.Array | None = None, mask: jax.Array | None = None
    ) -> jax.Array:
        """Maps `x [batch, queries, width]` to the same shape.

        Keys and values come from `context [batch, keys, width]`, or from `x` when None; `mask`
        is that of `dot_product_attention`.
        """
        context = x if context is None else context
        width = x.shape[-1]
        head_width = width // self.heads

        def project(y: jax.Array, name: str) -> jax.Array:
            y = nn.Dense(width, name=name)(y)
            return y.reshape(*y.shape[:2], self.heads, head_width)

        query, key, value = project(x, "query"), project(context, "key"), project(context, "value")
        mixed = dot_product_attention(query, key, value, mask)
        return nn.Dense(width, name="out")(mixed.reshape(x.shape))


class FeedForward(nn.Module):
    """Two fully connected layers.

    Attributes:
      hidden_width: size of the inner layer.
      activation: the function between the layers.
    """

    hidden_width: int
    activation: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., width]` to the same shape."""
        y = self.activation(nn.Dense(self.hidden_width, name="in")(x))
        return nn.Dense(x.shape[-1], name="out")(y)


def exact_gelu(x: jax.Array) -> jax.Array:
    """GELU by the error function rather than its tanh approximation."""
    return nn.gelu(x, approximate=False)


class PreNormBlock(nn.Module):
    """A transformer block whose attention and feed-forward layer each have a norm before them.

    Attributes:
      heads: attention heads.
      hidden_width: inner size of the feed-forward layer.
    """

    heads: int
    hidden_width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, sequence, width]` to the same shape."""
        y = nn.LayerNorm(epsilon=1e-6, name="attention_norm")(x)
        x = x + MultiHeadAttention(self.heads, name="attention")(y)
        y = nn.LayerNorm(epsilon=1e-6, name="mlp_norm")(x)
        return x + FeedForward(self.hidden_width, exact_gelu, name="mlp")(y)


class PostNormBlock(nn.Module):
    """A transformer block with a norm after each residual sum, as in the original Transformer.

    Attributes:
      heads: attention heads.
      hidden_width: inner size of the feed-forward layer.
      activation: the function inside the feed-forward layer.
    """

    heads: int
    hidden_width: int
    activation: Callable[[jax.Array], jax.Array] = nn.relu

    @nn.compact
    def __call__(
        self, x: jax.Array, context: jax.Array | None = None, mask: jax.Array | None = None
    ) -> jax.Array:
        """Maps `x [batch, sequence, width]` to the same shape.

        With `context [batch, keys, width]` the block also attends to it, after itself; `mask`
        is that of the attention to itself.
        """
        attended = MultiHeadAttention(self.heads, name="attention")(x, mask=mask)
        x = nn.LayerNorm(epsilon=1e-5, name="attention_norm")(x + attended)
        if context is not None:
            attended = MultiHeadAttention(self.heads, name="cross_attention")(x, context)
            x = nn.LayerNorm(epsilon=1e-5, name="cross_attention_norm")(x + attended)
        y = FeedForward(self.hidden_width, self.activation, name="mlp")(x)
        return nn.LayerNorm(epsilon=1e-5, name="mlp_norm")(x + y)
