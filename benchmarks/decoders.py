"""Twelve decoders whose layers are scanned, as they are commonly written.

Each is a model for the command line and `benchmarks loops`: a case such as
`benchmarks.decoders:mha/8/adam/h100`. They differ in what a layer keeps for its gradient.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.library_steps import Built, trained


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A decoder's layers, and their sizes.

    Attributes:
      groups: query heads of a head of keys and values: 1 in multi-head attention.
      rope: whether positions are rotations of queries and keys.
      bias: whether products have biases. fused: whether one product gives queries, keys and values.
      rms: whether norms are of the root mean square, without a mean.
      gated: whether the feed-forward layer is SwiGLU, not GELU.
      library: whether attention is `jax.nn.dot_product_attention`.
      policy: of `jax.checkpoint` around attention, a name in `jax.checkpoint_policies`; "": none.
      dtype: of activations and of the layers' weights as they are used.
      layers, width, heads, length, vocabulary: sizes.
    """

    groups: int = 1
    rope: bool = False
    bias: bool = False
    fused: bool = False
    rms: bool = True
    gated: bool = True
    library: bool = False
    policy: str = ""
    dtype: str = "float32"
    layers: int = 8
    width: int = 512
    heads: int = 8
    length: int = 256
    vocabulary: int = 8000

    def weights(self) -> dict[str, Any]:
        """Shapes of a layer's weights, by name."""
        d, kv = self.width, self.width // self.groups
        products = (
            {"qkv": (d, d + 2 * kv)} if self.fused else {"q": (d, d), "k": (d, kv), "v": (d, kv)}
        )
        products |= {"o": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
        products |= {"gate": (d, 4 * d)} if self.gated else {}
        biases = {f"{k}_bias": shape[1:] for k, shape in products.items()} if self.bias else {}
        return products | biases | {"before": (d,), "between": (d,)}

    def norm(self, x: jax.Array, scale: jax.Array) -> jax.Array:
        """A norm over the last dimension."""
        x = x if self.rms else x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    def attention(self, w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        """Causal attention of normed activations, without its last product."""
        d, kv = self.width, self.width // self.groups
        if self.fused:
            q, k, v = jnp.split(_product(w, "qkv", x), (d, d + kv), -1)
        else:
            q, k, v = (_product(w, name, x) for name in "qkv")
        size = d // self.heads
        q, k, v = (z.reshape(*z.shape[:2], -1, size) for z in (q, k, v))
        if self.rope:
            q, k = _rotated(q), _rotated(k)
        if self.library:
            return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        q = q.reshape(*q.shape[:2], -1, self.groups, size)
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k) / size**0.5
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9).astype(jnp.float32))
        return jnp.einsum("bhgqk,bkhd->bqhgd", weights.astype(x.dtype), v).reshape(x.shape)

    def layer(self, x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        """One layer, as the body of a scan."""
        w = {k: v.astype(x.dtype) for k, v in w.items()}
        attention = self.attention
        if self.policy:
            policy = getattr(jax.checkpoint_policies, self.policy)
            attention = jax.checkpoint(attention, policy=policy, prevent_cse=False)
        x = x + _product(w, "o", attention(w, self.norm(x, w["before"])))
        y = self.norm(x, w["between"])
        y, up = (
            (jax.nn.silu(_product(w, "gate", y)), _product(w, "up", y))
            if self.gated
            else (jax.nn.gelu(_product(w, "up", y)), 1)
        )
        return x + _product(w, "down", y * up), None


def _product(w: dict[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    result = x @ w[name]
    return result + w[f"{name}_bias"] if f"{name}_bias" in w else result


def _rotated(x: jax.Array) -> jax.Array:
    """Rotary embedding of [batch, length, heads, size], halves of a head paired."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def train_step(decoder: Decoder, *, batch_size: int, optimizer: str) -> Built:
    """A train step: (function, shapes of its arguments, keyword arguments of `jax.jit`)."""
    d = decoder
    shapes = {k: jax.ShapeDtypeStruct((d.layers, *s), jnp.float32) for k, s in d.weights().items()}
    embedding = jax.ShapeDtypeStruct((d.vocabulary, d.width), jnp.float32)
    params = {"layers": shapes, "embedding": embedding}

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["embedding"][tokens].astype(d.dtype)
        x, _ = jax.lax.scan(d.layer, x, params["layers"])
        logits = (x @ params["embedding"].T.astype(d.dtype)).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    tokens = jax.ShapeDtypeStruct((batch_size, d.length), jnp.int32)
    return trained(optimizer, loss, params, tokens, shapes=True)


_GPT = Decoder(bias=True, fused=True, rms=False, gated=False)
_LLAMA = Decoder(groups=4, rope=True)

DECODERS = {
    "gpt": _GPT,
    "gpt_library": dataclasses.replace(_GPT, library=True),
    "gpt_bf16": dataclasses.replace(_GPT, dtype="bfloat16"),
    "gpt_separate": dataclasses.replace(_GPT, fused=False, rope=True),
    "gpt_checkpointed": dataclasses.replace(_GPT, policy="nothing_saveable"),
    "rms_gelu_library": Decoder(fused=True, gated=False, library=True),
    "mha_swiglu": Decoder(rope=True),
    "llama": _LLAMA,
    "llama_fused": dataclasses.replace(_LLAMA, fused=True, bias=True),
    "llama_library": dataclasses.replace(_LLAMA, library=True),
    "llama_library_bf16": dataclasses.replace(_LLAMA, library=True, dtype="bfloat16"),
    "llama_checkpointed": dataclasses.replace(_LLAMA, dtype="bfloat16", policy="dots_saveable"),
}
"""By name, of which each is also a function of this module."""

globals().update({k: functools.partial(train_step, found) for k, found in DECODERS.items()})
