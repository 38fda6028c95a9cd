"""ViT-B/16 and MLP-Mixer-B/16 for 224x224 colour images.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale"
(2020), and Tolstikhin et al., "MLP-Mixer: An all-MLP Architecture for Vision" (2021).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.zoo import blocks, common

IMAGE_SIZE = 224
NUM_CLASSES = 1000
PATCH_SIZE = 16
LAYERS = 12
WIDTH = 768


class Patches(nn.Module):
    """A linear embedding of the patches of an image.

    Attributes:
      width: size of the embedding of a patch.
      patch_size: side of a patch.
    """

    width: int
    patch_size: int = PATCH_SIZE

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images `[batch, height, width, 3]` to `[batch, patches, width]`."""
        window = (self.patch_size, self.patch_size)
        x = nn.Conv(self.width, window, strides=window, padding="VALID")(x)
        return x.reshape(x.shape[0], -1, self.width)


class ViT(nn.Module):
    """A vision transformer that classifies by the output of a class token; no dropout.

    Attributes:
      layers: number of transformer blocks.
      width: size of the residual stream.
      heads: attention heads in a block.
      num_classes: number of logits.
    """

    layers: int = LAYERS
    width: int = WIDTH
    heads: int = 12
    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, 3]` to logits `[batch, classes]`."""
        x = Patches(self.width, name="patches")(x)
        batch, patches, width = x.shape
        token = self.param("class_token", nn.initializers.zeros, (1, 1, width))
        x = jnp.concatenate([jnp.broadcast_to(token, (batch, 1, width)), x], axis=1)
        shape = (1, patches + 1, width)
        x = x + self.param("positions", nn.initializers.normal(0.02), shape)
        for index in range(self.layers):
            x = blocks.PreNormBlock(self.heads, 4 * width, name=f"block{index}")(x)
        x = nn.LayerNorm(epsilon=1e-6, name="norm")(x)
        return nn.Dense(self.num_classes, name="head")(x[:, 0])


class MixerBlock(nn.Module):
    """A feed-forward layer across the patches, then one across the channels.

    Attributes:
      token_width: inner size of the first.
      channel_width: inner size of the second.
    """

    token_width: int
    channel_width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, patches, width]` to the same shape."""
        y = nn.LayerNorm(epsilon=1e-6, name="token_norm")(x).swapaxes(1, 2)
        y = blocks.FeedForward(self.token_width, blocks.exact_gelu, name="tokens")(y)
        x = x + y.swapaxes(1, 2)
        y = nn.LayerNorm(epsilon=1e-6, name="channel_norm")(x)
        return x + blocks.FeedForward(self.channel_width, blocks.exact_gelu, name="channels")(y)


class Mixer(nn.Module):
    """An MLP-Mixer that classifies by the mean over the patches; no dropout.

    Attributes:
      layers: number of blocks.
      width: size of the residual stream.
      token_width: inner size of the layers across the patches.
      channel_width: inner size of the layers across the channels.
      num_classes: number of logits.
    """

    layers: int = LAYERS
    width: int = WIDTH
    token_width: int = 384
    channel_width: int = 3072
    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, 3]` to logits `[batch, classes]`."""
        x = Patches(self.width, name="patches")(x)
        for index in range(self.layers):
            x = MixerBlock(self.token_width, self.channel_width, name=f"block{index}")(x)
        x = nn.LayerNorm(epsilon=1e-6, name="norm")(x)
        return nn.Dense(self.num_classes, name="head")(x.mean(axis=1))


def vit_network(
    image_size: int = IMAGE_SIZE,
    num_classes: int = NUM_CLASSES,
    *,
    layers: int = LAYERS,
    width: int = WIDTH,
    heads: int = 12,
) -> common.Network:
    """A ViT with synthetic images whose side is a multiple of 16."""
    module = ViT(layers, width, heads, num_classes)
    return common.linen_network(module, common.image_batches(image_size, 3, num_classes))


def mixer_network(
    image_size: int = IMAGE_SIZE,
    num_classes: int = NUM_CLASSES,
    *,
    layers: int = LAYERS,
    width: int = WIDTH,
    token_width: int = 384,
    channel_width: int = 3072,
) -> common.Network:
    """An MLP-Mixer with synthetic images whose side is a multiple of 16."""
    module = Mixer(layers, width, token_width, channel_width, num_classes)
    return common.linen_network(module, common.image_batches(image_size, 3, num_classes))


vit_b16 = common.Model(vit_network)
"""ViT-B/16 in the ImageNet shape, 224x224x3 images of 1000 classes."""

mixer_b16 = common.Model(mixer_network)
"""MLP-Mixer-B/16 in the ImageNet shape."""
