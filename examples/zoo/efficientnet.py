"""EfficientNet-B0 for 224x224 colour images.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (2019).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import flax.linen as nn
import jax

from examples.zoo import common

IMAGE_SIZE = 224
NUM_CLASSES = 1000

_Conv = functools.partial(nn.Conv, padding="SAME", use_bias=False)
_BatchNorm = functools.partial(nn.BatchNorm, use_running_average=False, momentum=0.99, epsilon=1e-3)


class Stage(NamedTuple):
    """A run of equal blocks: only the first has the stride and the input width of the stage."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    features: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class MBConv(nn.Module):
    """An inverted bottleneck with a depthwise convolution and squeeze-and-excitation.

    The squeeze has a quarter of the block's input channels. Stochastic depth is left out.

    Attributes:
      kernel: side of the depthwise kernel.
      stride: stride of the depthwise convolution.
      expansion: ratio of the inner to the input channels.
      features: number of output channels.
    """

    kernel: int
    stride: int
    expansion: int
    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to `[batch, h/stride, w/stride, features]`."""
        channels = x.shape[-1]
        inner = channels * self.expansion
        y = x
        if self.expansion != 1:
            y = nn.swish(_BatchNorm()(_Conv(inner, (1, 1), name="expand")(y)))
        depthwise = _Conv(
            inner,
            (self.kernel, self.kernel),
            strides=(self.stride, self.stride),
            feature_group_count=inner,
            name="depthwise",
        )
        y = nn.swish(_BatchNorm()(depthwise(y)))
        scale = y.mean(axis=(1, 2), keepdims=True)
        scale = nn.swish(nn.Conv(channels // 4, (1, 1), name="squeeze")(scale))
        y = y * nn.sigmoid(nn.Conv(inner, (1, 1), name="excite")(scale))
        y = _BatchNorm()(_Conv(self.features, (1, 1), name="project")(y))
        return x + y if x.shape == y.shape else y


class EfficientNetB0(nn.Module):
    """EfficientNet-B0 in training mode; dropout is left out.

    Attributes:
      num_classes: number of logits.
    """

    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, 3]` to logits `[batch, classes]`."""
        x = nn.swish(_BatchNorm()(_Conv(32, (3, 3), strides=(2, 2), name="stem")(x)))
        for stage in STAGES:
            for index in range(stage.blocks):
                stride = stage.stride if index == 0 else 1
                x = MBConv(stage.kernel, stride, stage.expansion, stage.features)(x)
        x = nn.swish(_BatchNorm()(_Conv(1280, (1, 1), name="head")(x)))
        x = x.mean(axis=(1, 2))
        return nn.Dense(self.num_classes)(x)


def network(image_size: int = IMAGE_SIZE, num_classes: int = NUM_CLASSES) -> common.Network:
    """EfficientNet-B0 with synthetic `image_size` x `image_size` x 3 images."""
    return common.linen_network(
        EfficientNetB0(num_classes), common.image_batches(image_size, 3, num_classes)
    )


efficientnet_b0 = common.Model(network)
"""EfficientNet-B0 in the ImageNet shape, 224x224x3 images of 1000 classes."""

init = efficientnet_b0.init
