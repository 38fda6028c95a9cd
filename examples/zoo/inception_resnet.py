"""Inception-ResNet-v2 for 299x299 colour images.

Szegedy et al., "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning"
(2016), with the stem and the widths of the authors' published code.
"""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.zoo import common

IMAGE_SIZE = 299
NUM_CLASSES = 1000

_pool = functools.partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding="VALID")


class ConvNorm(nn.Module):
    """A convolution without bias, batch normalization and ReLU.

    Attributes:
      features: number of output channels.
      kernel: height and width of the kernel.
      stride: of the convolution. padding: "SAME" or "VALID".
    """

    features: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: str = "SAME"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to as many `features`."""
        strides = (self.stride, self.stride)
        x = nn.Conv(self.features, self.kernel, strides, self.padding, use_bias=False)(x)
        return nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-3)(x))


Layer = tuple[int, tuple[int, int]]
"""Output channels of a convolution, and its kernel."""


def _chain(x: jax.Array, layers: tuple[Layer, ...], stride: int = 1) -> jax.Array:
    """Convolutions one after the other; the last with a stride, and then unpadded."""
    for number, (features, kernel) in enumerate(layers):
        last = stride > 1 and number == len(layers) - 1
        x = ConvNorm(features, kernel, stride if last else 1, "VALID" if last else "SAME")(x)
    return x


class Residual(nn.Module):
    """Branches of convolutions, whose concatenated channels are added to the input, scaled.

    Attributes:
      branches: each a chain of convolutions. scale: of what is added. activate: ReLU at the end.
    """

    branches: tuple[tuple[Layer, ...], ...]
    scale: float
    activate: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to the same."""
        mixed = jnp.concatenate([_chain(x, layers) for layers in self.branches], axis=-1)
        x = x + self.scale * nn.Conv(x.shape[-1], (1, 1))(mixed)
        return nn.relu(x) if self.activate else x


class Reduction(nn.Module):
    """Branches of convolutions with stride 2, and a pooled one, concatenated.

    Attributes:
      branches: each a chain of convolutions.
    """

    branches: tuple[tuple[Layer, ...], ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to about half the height and width."""
        strided = [_chain(x, layers, stride=2) for layers in self.branches]
        return jnp.concatenate([*strided, _pool(x)], axis=-1)


_1, _3, _5 = (1, 1), (3, 3), (5, 5)
BLOCK_35 = (((32, _1),), ((32, _1), (32, _3)), ((32, _1), (48, _3), (64, _3)))
BLOCK_17 = (((192, _1),), ((128, _1), (160, (1, 7)), (192, (7, 1))))
BLOCK_8 = (((192, _1),), ((192, _1), (224, (1, 3)), (256, (3, 1))))
REDUCTION_A = (((384, _3),), ((256, _1), (256, _3), (384, _3)))
REDUCTION_B = (
    ((256, _1), (384, _3)),
    ((256, _1), (288, _3)),
    ((256, _1), (288, _3), (320, _3)),
)
MIXED = (((96, _1),), ((48, _1), (64, _5)), ((64, _1), (96, _3), (96, _3)))


class InceptionResNet(nn.Module):
    """Inception-ResNet-v2 in training mode; dropout and the auxiliary classifier are left out.

    Attributes:
      blocks: how many blocks of each of the three kinds.
      num_classes: number of logits.
    """

    blocks: tuple[int, int, int] = (10, 20, 10)
    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, 3]` to logits `[batch, classes]`."""
        x = ConvNorm(32, _3, 2, "VALID")(x)
        x = ConvNorm(64, _3)(ConvNorm(32, _3, 1, "VALID")(x))
        x = ConvNorm(192, _3, 1, "VALID")(ConvNorm(80)(_pool(x)))
        x = _pool(x)
        pooled = nn.avg_pool(x, (3, 3), padding="SAME", count_include_pad=False)
        pooled = ConvNorm(64)(pooled.astype(x.dtype))  # its counts are float32
        x = jnp.concatenate([*(_chain(x, layers) for layers in MIXED), pooled], axis=-1)
        for _ in range(self.blocks[0]):
            x = Residual(BLOCK_35, 0.17)(x)
        x = Reduction(REDUCTION_A)(x)
        for _ in range(self.blocks[1]):
            x = Residual(BLOCK_17, 0.1)(x)
        x = Reduction(REDUCTION_B)(x)
        for number in range(1, self.blocks[2] + 1):
            last = number == self.blocks[2]
            x = Residual(BLOCK_8, 1.0 if last else 0.2, activate=not last)(x)
        x = ConvNorm(1536)(x).mean(axis=(1, 2))
        return nn.Dense(self.num_classes)(x)


def network(
    image_size: int = IMAGE_SIZE,
    num_classes: int = NUM_CLASSES,
    blocks: tuple[int, int, int] = (10, 20, 10),
) -> common.Network:
    """Inception-ResNet-v2 with synthetic `image_size` x `image_size` x 3 images."""
    return common.linen_network(
        InceptionResNet(blocks, num_classes), common.image_batches(image_size, 3, num_classes)
    )


inception_resnet = common.Model(network)
"""Inception-ResNet-v2 in the ImageNet shape, 299x299x3 images of 1000 classes."""
