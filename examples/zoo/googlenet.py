"""GoogLeNet (Inception v1) for 224x224 colour images.

Szegedy et al., "Going Deeper with Convolutions" (2014), in the batch-normalized form that
torchvision has: convolutions without bias, 3x3 ones in place of 5x5. The two auxiliary
classifiers are left out.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.zoo import common

IMAGE_SIZE = 224
NUM_CLASSES = 1000


class Widths(NamedTuple):
    """Output channels of the convolutions of an inception block, named as in the paper."""

    conv1x1: int
    reduce3x3: int
    conv3x3: int
    reduce5x5: int
    conv5x5: int
    pool: int


STAGES = (
    (Widths(64, 96, 128, 16, 32, 32), Widths(128, 128, 192, 32, 96, 64)),
    (
        Widths(192, 96, 208, 16, 48, 64),
        Widths(160, 112, 224, 24, 64, 64),
        Widths(128, 128, 256, 24, 64, 64),
        Widths(112, 144, 288, 32, 64, 64),
        Widths(256, 160, 320, 32, 128, 128),
    ),
    (Widths(256, 160, 320, 32, 128, 128), Widths(384, 192, 384, 48, 128, 128)),
)
"""The inception blocks, in stages that a pooling layer separates."""

_pool = functools.partial(nn.max_pool, window_shape=(3, 3), padding="SAME")


class ConvNorm(nn.Module):
    """A convolution, batch normalization and ReLU.

    Attributes:
      features: number of output channels.
      kernel: side of the kernel.
      stride: stride of the convolution.
    """

    features: int
    kernel: int = 1
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to `[batch, h/stride, w/stride, features]`."""
        side = self.kernel // 2
        x = nn.Conv(
            self.features,
            (self.kernel, self.kernel),
            strides=(self.stride, self.stride),
            padding=((side, side), (side, side)),
            use_bias=False,
        )(x)
        return nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-3)(x))


class Inception(nn.Module):
    """Four branches, 1x1, 3x3, "5x5" and pooling, whose channels are concatenated.

    Attributes:
      widths: channels of the convolutions.
    """

    widths: Widths

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to the same but for the channels."""
        widths = self.widths
        branches = [
            ConvNorm(widths.conv1x1)(x),
            ConvNorm(widths.conv3x3, 3)(ConvNorm(widths.reduce3x3)(x)),
            ConvNorm(widths.conv5x5, 3)(ConvNorm(widths.reduce5x5)(x)),
            ConvNorm(widths.pool)(_pool(x, strides=(1, 1))),
        ]
        return jnp.concatenate(branches, axis=-1)


class GoogLeNet(nn.Module):
    """GoogLeNet in training mode; dropout and the auxiliary classifiers are left out.

    Attributes:
      num_classes: number of logits.
    """

    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, 3]` to logits `[batch, classes]`."""
        x = _pool(ConvNorm(64, 7, 2)(x), strides=(2, 2))
        x = ConvNorm(192, 3)(ConvNorm(64)(x))
        for stage in STAGES:
            x = _pool(x, strides=(2, 2))
            for widths in stage:
                x = Inception(widths)(x)
        x = x.mean(axis=(1, 2))
        return nn.Dense(self.num_classes)(x)


def network(image_size: int = IMAGE_SIZE, num_classes: int = NUM_CLASSES) -> common.Network:
    """GoogLeNet with synthetic `image_size` x `image_size` x 3 images."""
    return common.linen_network(
        GoogLeNet(num_classes), common.image_batches(image_size, 3, num_classes)
    )


googlenet = common.Model(network)
"""GoogLeNet in the ImageNet shape, 224x224x3 images of 1000 classes."""
