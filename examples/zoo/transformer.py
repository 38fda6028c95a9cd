"""The original Transformer, an encoder and a decoder, and an XLM-R-size encoder.

Vaswani et al., "Attention Is All You Need" (2017), the base model, and Conneau et al.,
"Unsupervised Cross-lingual Representation Learning at Scale" (2019), XLM-R base.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples.zoo import blocks, common

_embedding_init = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a translation model.

    Attributes:
      layers: blocks in the encoder, and as many in the decoder.
      width: size of the residual stream; a multiple of `heads`.
      heads: attention heads in a block.
      hidden_width: inner size of the feed-forward layers.
      sequence_length: tokens in a source, and in a target, sequence.
      vocabulary_size: number of tokens, shared by the source and the target language.
    """

    layers: int = 6
    width: int = 512
    heads: int = 8
    hidden_width: int = 2048
    sequence_length: int = 256
    vocabulary_size: int = 37000


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Sizes of a masked language model.

    Attributes:
      layers: number of transformer blocks.
      width: size of the residual stream; a multiple of `heads`.
      heads: attention heads in a block.
      hidden_width: inner size of the feed-forward layers.
      sequence_length: tokens in a sequence.
      masked: tokens of a sequence that are masked and predicted.
      vocabulary_size: number of tokens; the last is the mask.
    """

    layers: int = 12
    width: int = 768
    heads: int = 12
    hidden_width: int = 3072
    sequence_length: int = 512
    masked: int = 77
    vocabulary_size: int = 250002


BASE_CONFIG = TransformerConfig()
XLMR_BASE_CONFIG = EncoderConfig()
LABEL_SMOOTHING = 0.1
"""Share of the target distribution that the Transformer's loss spreads over all tokens."""


class Transformer(nn.Module):
    """An encoder-decoder with sinusoidal positions and one embedding matrix for everything.

    The matrix embeds the source and the target and is the output layer, which has no bias.
    There is neither dropout nor padding.

    Attributes:
      config: the sizes.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, inputs: dict[str, jax.Array]) -> jax.Array:
        """Maps int32 `source` and `target`, both `[batch, sequence]`, to logits.

        The logits `[batch, sequence, vocabulary]` are those of the token after each of `target`.
        """
        config = self.config
        embed = nn.Embed(
            config.vocabulary_size,
            config.width,
            embedding_init=nn.initializers.normal(config.width**-0.5),
            name="embed",
        )

        def embedded(tokens: jax.Array) -> jax.Array:
            x = embed(tokens) * config.width**0.5
            positions = blocks.sinusoids(jnp.arange(tokens.shape[1]), config.width)
            return x + positions.astype(x.dtype)

        x = embedded(inputs["source"])
        for index in range(config.layers):
            block = blocks.PostNormBlock(config.heads, config.hidden_width, name=f"encoder{index}")
            x = block(x)
        y = embedded(inputs["target"])
        mask = blocks.causal_mask(y.shape[1])
        for index in range(config.layers):
            block = blocks.PostNormBlock(config.heads, config.hidden_width, name=f"decoder{index}")
            y = block(y, context=x, mask=mask)
        return embed.attend(y)


class MaskedLanguageModel(nn.Module):
    """An encoder with learned positions that predicts masked tokens; no dropout or padding.

    As in XLM-R, the table of positions has two rows more than a sequence has tokens, the first
    two being unused, and the output layer is the token embedding with a bias. The single row of
    token types is that of the published checkpoints.

    Attributes:
      config: the sizes.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, inputs: dict[str, jax.Array]) -> jax.Array:
        """Maps int32 `tokens [batch, sequence]` and `positions [batch, masked]` to logits.

        The logits `[batch, masked, vocabulary]` are those of the tokens at `positions`.
        """
        config = self.config
        length = inputs["tokens"].shape[1]

        def embedding(rows: int, name: str) -> nn.Embed:
            return nn.Embed(rows, config.width, embedding_init=_embedding_init, name=name)

        embed = embedding(config.vocabulary_size, "tokens")
        x = embed(inputs["tokens"])
        x = x + embedding(config.sequence_length + 2, "positions")(jnp.arange(length) + 2)
        x = x + self.param("token_type", _embedding_init, (config.width,)).astype(x.dtype)
        x = nn.LayerNorm(epsilon=1e-5, name="embedding_norm")(x)
        for index in range(config.layers):
            x = blocks.PostNormBlock(
                config.heads, config.hidden_width, blocks.exact_gelu, name=f"block{index}"
            )(x)
        x = jnp.take_along_axis(x, inputs["positions"][..., None], axis=1)
        x = blocks.exact_gelu(nn.Dense(config.width, name="head")(x))
        x = nn.LayerNorm(epsilon=1e-5, name="head_norm")(x)
        bias = self.param("head_bias", nn.initializers.zeros, (config.vocabulary_size,))
        return embed.attend(x) + bias


def smoothed_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy with label smoothing of `logits [..., classes]`, int `labels [...]`."""
    hard = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    uniform = jax.nn.logsumexp(logits, axis=-1) - logits.mean(axis=-1)
    return ((1 - LABEL_SMOOTHING) * hard + LABEL_SMOOTHING * uniform).mean()


def transformer_network(config: TransformerConfig = BASE_CONFIG) -> common.Network:
    """The Transformer with random pairs of sequences."""

    def make_batch(key: jax.Array, batch_size: int) -> common.Batch:
        source_key, target_key = jax.random.split(key)
        length, vocabulary = config.sequence_length, config.vocabulary_size
        source = jax.random.randint(source_key, (batch_size, length), 0, vocabulary, jnp.int32)
        target = jax.random.randint(target_key, (batch_size, length + 1), 0, vocabulary, jnp.int32)
        return {"inputs": {"source": source, "target": target[:, :-1]}, "labels": target[:, 1:]}

    return common.linen_network(Transformer(config), make_batch, smoothed_cross_entropy)


def xlmr_network(config: EncoderConfig = XLMR_BASE_CONFIG) -> common.Network:
    """An XLM-R with random sequences in which `config.masked` random tokens are masked."""
    mask = config.vocabulary_size - 1

    def make_batch(key: jax.Array, batch_size: int) -> common.Batch:
        token_key, position_key = jax.random.split(key)
        shape = (batch_size, config.sequence_length)
        tokens = jax.random.randint(token_key, shape, 0, mask, jnp.int32)
        shuffled = jnp.argsort(jax.random.uniform(position_key, shape), axis=1)
        positions = jnp.sort(shuffled[:, : config.masked], axis=1).astype(jnp.int32)
        labels = jnp.take_along_axis(tokens, positions, axis=1)
        tokens = tokens.at[jnp.arange(batch_size)[:, None], positions].set(mask)
        return {"inputs": {"tokens": tokens, "positions": positions}, "labels": labels}

    return common.linen_network(MaskedLanguageModel(config), make_batch)


transformer = common.Model(transformer_network)
"""The base Transformer with pairs of 256 tokens."""

xlmr_base = common.Model(xlmr_network)
"""XLM-R base with sequences of 512 tokens, 77 of them (15%) masked."""
