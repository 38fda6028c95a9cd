"""MobileNetV2 and MNASNet, both of width 1.0, for 224x224 colour images.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018), and Tan et al.,
"MnasNet: Platform-Aware Neural Architecture Search for Mobile" (2018), its B1 model without
squeeze-and-excitation.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax

from examples.zoo import common
from examples.zoo.efficientnet import Stage

IMAGE_SIZE = 224
NUM_CLASSES = 1000

MOBILENET_V2_STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(3, 3, 2, 6, 32),
    Stage(4, 3, 2, 6, 64),
    Stage(3, 3, 1, 6, 96),
    Stage(3, 3, 2, 6, 160),
    Stage(1, 3, 1, 6, 320),
)
MNASNET_STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(3, 3, 2, 3, 24),
    Stage(3, 5, 2, 3, 40),
    Stage(3, 5, 2, 6, 80),
    Stage(2, 3, 1, 6, 96),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class ConvNorm(nn.Module):
    """A convolution without bias and batch normalization.

    Attributes:
      features: number of output channels.
      kernel: side of the kernel.
      stride: stride of the convolution.
      depthwise: whether each output channel sees only its own input channel.
    """

    features: int
    kernel: int = 1
    stride: int = 1
    depthwise: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to `[batch, h/stride, w/stride, features]`."""
        side = self.kernel // 2
        x = nn.Conv(
            self.features,
            (self.kernel, self.kernel),
            strides=(self.stride, self.stride),
            padding=((side, side), (side, side)),
            feature_group_count=self.features if self.depthwise else 1,
            use_bias=False,
        )(x)
        return nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5)(x)


class InvertedResidual(nn.Module):
    """A 1x1 expansion, a depthwise convolution and a linear 1x1 projection.

    Attributes:
      kernel: side of the depthwise kernel.
      stride: stride of the depthwise convolution.
      expansion: ratio of the inner to the input channels; no expansion layer when 1.
      features: number of output channels.
      activation: the function between the convolutions.
    """

    kernel: int
    stride: int
    expansion: int
    features: int
    activation: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to `[batch, h/stride, w/stride, features]`."""
        inner = x.shape[-1] * self.expansion
        y = x
        if self.expansion != 1:
            y = self.activation(ConvNorm(inner, name="expand")(y))
        depthwise = ConvNorm(inner, self.kernel, self.stride, depthwise=True, name="depthwise")
        y = self.activation(depthwise(y))
        y = ConvNorm(self.features, name="project")(y)
        return x + y if self.stride == 1 and x.shape == y.shape else y


class MobileNet(nn.Module):
    """A stem, stages of inverted residuals and a head, in training mode; no dropout.

    Attributes:
      stages: the blocks.
      activation: the function after each convolution but the projections.
      num_classes: number of logits.
    """

    stages: tuple[Stage, ...]
    activation: Callable[[jax.Array], jax.Array]
    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, 3]` to logits `[batch, classes]`."""
        x = self.activation(ConvNorm(32, 3, 2, name="stem")(x))
        for stage in self.stages:
            for index in range(stage.blocks):
                stride = stage.stride if index == 0 else 1
                x = InvertedResidual(
                    stage.kernel, stride, stage.expansion, stage.features, self.activation
                )(x)
        x = self.activation(ConvNorm(1280, name="head")(x))
        x = x.mean(axis=(1, 2))
        return nn.Dense(self.num_classes)(x)


def mobilenet_v2_network(
    image_size: int = IMAGE_SIZE, num_classes: int = NUM_CLASSES
) -> common.Network:
    """MobileNetV2 with synthetic `image_size` x `image_size` x 3 images."""
    module = MobileNet(MOBILENET_V2_STAGES, nn.relu6, num_classes)
    return common.linen_network(module, common.image_batches(image_size, 3, num_classes))


def mnasnet_network(image_size: int = IMAGE_SIZE, num_classes: int = NUM_CLASSES) -> common.Network:
    """MNASNet with synthetic `image_size` x `image_size` x 3 images."""
    module = MobileNet(MNASNET_STAGES, nn.relu, num_classes)
    return common.linen_network(module, common.image_batches(image_size, 3, num_classes))


mobilenet_v2 = common.Model(mobilenet_v2_network)
"""MobileNetV2 in the ImageNet shape, 224x224x3 images of 1000 classes."""

mnasnet = common.Model(mnasnet_network)
"""MNASNet-B1 in the ImageNet shape."""
