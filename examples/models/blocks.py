"""Layers shared by several architectures."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def dot_product_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None
) -> jax.Array:
    """Scaled dot-product attention; scores and softmax are float32.

    Args:
      query: `[batch, queries, heads, head_width]`.
      key: `[batch, keys, heads, head_width]`.
      value: `[batch, keys, heads, head_width]`.
      mask: bool, broadcast to `[batch, heads, queries, keys]`: whether a query sees a key.

    Returns:
      `[batch, queries, heads, head_width]`, of the dtype of `value`.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
    scores = scores / query.shape[-1] ** 0.5
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores).astype(value.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def causal_mask(length: int) -> jax.Array:
    """Bool `[length, length]`: a query sees the keys up to its own position."""
    return jnp.tril(jnp.ones((length, length), bool))
