"""Decoder-only transformers in Flax nnx: a 4-layer GPT, GPT-2 small, and a GPT of scanned layers.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from examples.zoo import blocks, common


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT.

    Attributes:
      layers: number of transformer blocks.
      width: size of the residual stream; a multiple of `heads`.
      heads: attention heads in a block.
      sequence_length: tokens in a sequence.
      vocabulary_size: number of tokens.
      tied_head: whether the output head is the token embedding, as in GPT-2, or a matrix
        of its own.
      positions: number of learned positions, `sequence_length` when None.
      scan: whether the blocks are one, scanned over stacked parameters, instead of a list.
    """

    layers: int = 4
    width: int = 768
    heads: int = 12
    sequence_length: int = 512
    vocabulary_size: int = 32000
    tied_head: bool = False
    positions: int | None = None
    scan: bool = False


GPT_CONFIG = GPTConfig()
GPT2_SMALL_CONFIG = GPTConfig(layers=12, vocabulary_size=50257, tied_head=True, positions=1024)
GPT_TINY_CONFIG = GPTConfig(layers=2, width=128, heads=4, sequence_length=64, vocabulary_size=1024)
GPT_SCAN_CONFIG = GPTConfig(layers=12, scan=True)

_embedding_init = nnx.initializers.normal(0.02)
_kernel_init = nnx.initializers.normal(0.02)


class Embed(nnx.Embed):
    """A table of learned vectors that yields the dtype its parameter has when it is called."""

    def __init__(self, rows: int, width: int, rngs: nnx.Rngs):
        super().__init__(rows, width, embedding_init=_embedding_init, rngs=rngs)
        self.dtype = None  # the base class fixes the dtype of the initial table


class CausalSelfAttention(nnx.Module):
    """Multi-head causal self-attention without dropout."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        width = config.width
        self.heads = config.heads
        self.qkv = nnx.Linear(width, 3 * width, kernel_init=_kernel_init, rngs=rngs)
        self.out = nnx.Linear(width, width, kernel_init=_kernel_init, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, sequence, width]` to the same shape."""
        batch, length, width = x.shape
        head_width = width // self.heads
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, head_width)
        query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        mixed = blocks.dot_product_attention(query, key, value, blocks.causal_mask(length))
        return self.out(mixed.reshape(batch, length, width))


class Block(nnx.Module):
    """A pre-norm transformer block: attention, then a 4x wide GELU layer."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        width = config.width
        self.attention_norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.attention = CausalSelfAttention(config, rngs)
        self.mlp_norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.mlp_in = nnx.Linear(width, 4 * width, kernel_init=_kernel_init, rngs=rngs)
        self.mlp_out = nnx.Linear(4 * width, width, kernel_init=_kernel_init, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, sequence, width]` to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp_out(jax.nn.gelu(self.mlp_in(self.mlp_norm(x))))


class ScannedBlocks(nnx.Module):
    """Blocks of one structure, one after the other in a loop.

    Each parameter has a leading axis of `config.layers`.
    """

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        make = nnx.vmap(lambda rngs: Block(config, rngs))
        self.stacked = make(rngs.split(config.layers))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, sequence, width]` to the same shape."""
        graphdef, stacked = nnx.split(self.stacked)

        def layer(x: jax.Array, params: common.PyTree) -> tuple[jax.Array, None]:
            return nnx.merge(graphdef, params)(x), None

        # A plain scan: that of nnx would hand the parameters on as results of the loop.
        return jax.lax.scan(layer, x, stacked)[0]


class GPT(nnx.Module):
    """A GPT-2 style language model."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        if config.width % config.heads:
            raise ValueError(f"width {config.width} is not a multiple of {config.heads} heads")
        width, vocabulary = config.width, config.vocabulary_size
        self.tokens = Embed(vocabulary, width, rngs)
        self.positions = Embed(config.positions or config.sequence_length, width, rngs)
        if config.scan:
            self.blocks = nnx.List([ScannedBlocks(config, rngs)])
        else:
            self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.tied_head = config.tied_head
        if not config.tied_head:
            self.head = nnx.Linear(
                width, vocabulary, use_bias=False, kernel_init=_kernel_init, rngs=rngs
            )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps int32 tokens `[batch, sequence]` to logits `[batch, sequence, vocabulary]`."""
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.tokens.attend(x) if self.tied_head else self.head(x)


def network(config: GPTConfig = GPT_CONFIG) -> common.Network:
    """A GPT of `config` with synthetic tokens; its parameters are a plain dict of arrays."""
    abstract_model = nnx.eval_shape(lambda: GPT(config, nnx.Rngs(0)))
    graphdef, abstract_params = nnx.split(abstract_model, nnx.Param)

    def init(key: jax.Array, inputs: jax.Array) -> tuple[common.PyTree, common.PyTree]:
        del inputs  # nnx modules are built from their sizes alone
        return nnx.to_pure_dict(nnx.state(GPT(config, nnx.Rngs(key)), nnx.Param)), {}

    def apply(
        params: common.PyTree, batch_stats: common.PyTree, inputs: jax.Array
    ) -> tuple[jax.Array, common.PyTree]:
        param_state = jax.tree.map(lambda leaf: leaf, abstract_params)
        nnx.replace_by_pure_dict(param_state, params)
        return nnx.merge(graphdef, param_state)(inputs), batch_stats

    batches = common.token_batches(config.sequence_length, config.vocabulary_size)
    return common.Network(init, apply, batches)


gpt = common.Model(network)
"""GPT of 4 layers, width 768, sequences of 512 tokens."""

gpt2_small = common.Model(functools.partial(network, config=GPT2_SMALL_CONFIG))
"""GPT-2 small with sequences of 512 tokens, of the 1024 that it has positions for."""

gpt_scan = common.Model(functools.partial(network, config=GPT_SCAN_CONFIG))
"""GPT of 12 scanned layers, width 768, sequences of 512 tokens; nothing is rematerialised."""

gpt_tiny = common.Model(functools.partial(network, config=GPT_TINY_CONFIG))
"""GPT of 2 layers, width 128, sequences of 64 tokens: small enough for integer programs."""

init = gpt.init
