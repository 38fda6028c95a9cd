"""A Llama-style decoder whose layers are one scanned block, rematerialised or not.

Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023) and "Llama 2"
(2023): RMS norm before each half of a block, rotary positions, grouped-query attention, a
gated SiLU layer, no biases, and an output head of its own.
"""

from __future__ import annotations

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.zoo import blocks, common


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a Llama.

    Attributes:
      layers: number of blocks.
      width: size of the residual stream; a multiple of `heads`.
      heads: query heads in a block; a multiple of `key_value_heads`.
      key_value_heads: key and value heads, each shared by `heads / key_value_heads` queries.
      hidden_width: size of the gated layer in a block.
      sequence_length: tokens in a sequence.
      vocabulary_size: number of tokens.
      remat: whether a block's activations are computed again in the backward pass.
    """

    layers: int = 8
    width: int = 512
    heads: int = 8
    key_value_heads: int = 4
    hidden_width: int = 1408
    sequence_length: int = 512
    vocabulary_size: int = 32000
    remat: bool = True

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads")
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"{self.heads} heads are no multiple of {self.key_value_heads} key-value heads"
            )


CONFIG = LlamaConfig()
SAVED_CONFIG = LlamaConfig(remat=False)
TINY_LLAMA_CONFIG = LlamaConfig(
    layers=22, width=2048, heads=32, key_value_heads=4, hidden_width=5632, sequence_length=2048
)
LLAMA2_7B_CONFIG = LlamaConfig(
    layers=32, width=4096, heads=32, key_value_heads=32, hidden_width=11008, sequence_length=4096
)

_kernel_init = nn.initializers.normal(0.02)


def rotate(x: jax.Array, theta: float = 10000.0) -> jax.Array:
    """Rotary position embedding of `x [batch, sequence, heads, head_width]`, same shape."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * frequencies
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = x[..., :half], x[..., half:]
    rotated = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


class Block(nn.Module):
    """Causal grouped-query attention, then a gated SiLU layer, as the body of a scan.

    Attributes:
      config: the sizes.
    """

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        """Maps `[batch, sequence, width]` to the same shape; the second value is nothing."""
        config = self.config
        x = x + self._attention(nn.RMSNorm(epsilon=1e-5, name="attention_norm")(x))
        y = nn.RMSNorm(epsilon=1e-5, name="mlp_norm")(x)
        gate = nn.silu(self._dense(config.hidden_width, "gate")(y))
        hidden = gate * self._dense(config.hidden_width, "up")(y)
        return x + self._dense(config.width, "down")(hidden), None

    def _dense(self, features: int, name: str) -> nn.Dense:
        return nn.Dense(features, use_bias=False, kernel_init=_kernel_init, name=name)

    def _attention(self, x: jax.Array) -> jax.Array:
        config = self.config
        batch, length, width = x.shape
        head_width = width // config.heads
        shared = (batch, length, config.key_value_heads, head_width)
        query = self._dense(width, "query")(x).reshape(batch, length, config.heads, head_width)
        key = self._dense(config.key_value_heads * head_width, "key")(x).reshape(shared)
        value = self._dense(config.key_value_heads * head_width, "value")(x).reshape(shared)
        group = config.heads // config.key_value_heads
        key = jnp.repeat(rotate(key), group, axis=2)
        value = jnp.repeat(value, group, axis=2)
        mask = blocks.causal_mask(length)
        mixed = blocks.dot_product_attention(rotate(query), key, value, mask)
        return self._dense(width, "out")(mixed.reshape(batch, length, width))


class Llama(nn.Module):
    """Token embedding, a scan over the blocks, a norm and the output head.

    The parameters of the blocks are stacked: each has a leading axis of `config.layers`.

    Attributes:
      config: the sizes.
    """

    config: LlamaConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps int32 tokens `[batch, sequence]` to logits `[batch, sequence, vocabulary]`."""
        config = self.config
        embed = nn.Embed(
            config.vocabulary_size, config.width, embedding_init=_kernel_init, name="embed"
        )
        # A scan's body is compiled once, so no common subexpressions join the two passes.
        body = nn.remat(Block, prevent_cse=False) if config.remat else Block
        layers = nn.scan(
            body, variable_axes={"params": 0}, split_rngs={"params": True}, length=config.layers
        )
        x, _ = layers(config, name="blocks")(embed(tokens), None)
        x = nn.RMSNorm(epsilon=1e-5, name="norm")(x)
        head = nn.Dense(
            config.vocabulary_size, use_bias=False, kernel_init=_kernel_init, name="head"
        )
        return head(x)


def network(config: LlamaConfig = CONFIG) -> common.Network:
    """A Llama of `config` with synthetic tokens."""
    batches = common.token_batches(config.sequence_length, config.vocabulary_size)
    return common.linen_network(Llama(config), batches)


llama_scan = common.Model(network)
"""Llama of 8 scanned layers, width 512, sequences of 512 tokens; a layer's input alone is kept."""

llama_scan_saved = common.Model(functools.partial(network, config=SAVED_CONFIG))
"""The same Llama without rematerialisation: the scan keeps all that its gradient reads."""

llama_words = common.Model(
    functools.partial(network, config=LlamaConfig(sequence_length=2048, vocabulary_size=128_256))
)
"""The first, with the vocabulary of Llama 3 and sequences of 2,048 tokens."""
