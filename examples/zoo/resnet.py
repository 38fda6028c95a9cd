"""ResNet-18 and ResNet-50 for images, ResNet3D-18 for videos.

He et al., "Deep Residual Learning for Image Recognition" (2015), v1.5: the stride is in the 3x3
convolution of a bottleneck. Tran et al., "A Closer Look at Spatiotemporal Convolutions for
Action Recognition" (2017), R3D-18.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax

from examples.zoo import common

IMAGE_SIZE = 224
NUM_CLASSES = 1000
VIDEO_FRAMES = 16
VIDEO_SIZE = 112
VIDEO_CLASSES = 400
STAGE_SIZES = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}

_Conv = functools.partial(nn.Conv, use_bias=False)
_BatchNorm = functools.partial(nn.BatchNorm, use_running_average=False, momentum=0.9, epsilon=1e-5)


def _conv3(features: int, stride: int, rank: int) -> nn.Conv:
    """A convolution of 3 along each of `rank` axes: 3x3 or 3x3x3."""
    return _Conv(features, (3,) * rank, strides=(stride,) * rank, padding=((1, 1),) * rank)


class BasicBlock(nn.Module):
    """Two 3x3, or for videos 3x3x3, convolutions with a residual connection.

    Attributes:
      features: width of the block and number of its output channels.
      stride: stride of the first convolution.
    """

    features: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to `[batch, h/stride, w/stride, features]`.

        A video has an axis of frames before the height, and the stride applies to it too.
        """
        rank = x.ndim - 2
        y = nn.relu(_BatchNorm()(_conv3(self.features, self.stride, rank)(x)))
        y = _BatchNorm()(_conv3(self.features, 1, rank)(y))
        return nn.relu(_shortcut(x, y, self.stride) + y)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a residual connection.

    Attributes:
      features: width of the block; it has `4 * features` output channels.
      stride: stride of the 3x3 convolution.
    """

    features: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to `[batch, h/stride, w/stride, 4*features]`."""
        y = nn.relu(_BatchNorm()(_Conv(self.features, (1, 1))(x)))
        y = nn.relu(_BatchNorm()(_conv3(self.features, self.stride, 2)(y)))
        y = _BatchNorm()(_Conv(4 * self.features, (1, 1))(y))
        return nn.relu(_shortcut(x, y, self.stride) + y)


def _shortcut(x: jax.Array, y: jax.Array, stride: int) -> jax.Array:
    """`x` itself, or its strided 1x1 projection where the shape of `y` differs."""
    if x.shape == y.shape:
        return x
    rank = x.ndim - 2
    projection = _Conv(y.shape[-1], (1,) * rank, strides=(stride,) * rank, name="projection")
    return _BatchNorm(name="projection_norm")(projection(x))


class ResNet(nn.Module):
    """A residual network in training mode.

    Attributes:
      stage_sizes: number of blocks in each stage; the width doubles from stage to stage.
      block: `BasicBlock` or `Bottleneck`.
      num_classes: number of logits.
    """

    stage_sizes: Sequence[int]
    block: type[BasicBlock] | type[Bottleneck]
    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, 3]` to logits `[batch, classes]`."""
        x = _Conv(64, (7, 7), strides=(2, 2), padding=((3, 3), (3, 3)))(x)
        x = nn.relu(_BatchNorm()(x))
        padding = ((1, 1), (1, 1))  # documented to be allowed, although annotated as str
        x = nn.max_pool(x, (3, 3), (2, 2), padding)  # pyright: ignore[reportArgumentType]
        return _stages(x, self.stage_sizes, self.block, self.num_classes)


class ResNet3D(nn.Module):
    """A residual network of 3x3x3 convolutions in training mode.

    Attributes:
      stage_sizes: number of blocks in each stage; the width doubles from stage to stage.
      num_classes: number of logits.
    """

    stage_sizes: Sequence[int]
    num_classes: int = VIDEO_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 videos `[batch, frames, height, width, 3]` to logits `[batch, classes]`."""
        padding = ((1, 1), (3, 3), (3, 3))
        x = _Conv(64, (3, 7, 7), strides=(1, 2, 2), padding=padding)(x)
        x = nn.relu(_BatchNorm()(x))
        return _stages(x, self.stage_sizes, BasicBlock, self.num_classes)


def _stages(
    x: jax.Array,
    stage_sizes: Sequence[int],
    block: type[BasicBlock] | type[Bottleneck],
    num_classes: int,
) -> jax.Array:
    """The blocks, a mean over all positions and the classifier, within a module's call."""
    for stage, count in enumerate(stage_sizes):
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(features=64 * 2**stage, stride=stride)(x)
    x = x.mean(axis=tuple(range(1, x.ndim - 1)))
    return nn.Dense(num_classes)(x)


def network(
    depth: int = 50, image_size: int = IMAGE_SIZE, num_classes: int = NUM_CLASSES
) -> common.Network:
    """ResNet of `depth` 18 or 50 with synthetic `image_size` x `image_size` x 3 images."""
    if depth not in STAGE_SIZES:
        raise ValueError(f"unknown ResNet depth {depth}; known depths: 18, 50")
    block = Bottleneck if depth >= 50 else BasicBlock
    module = ResNet(STAGE_SIZES[depth], block, num_classes)
    return common.linen_network(module, common.image_batches(image_size, 3, num_classes))


def video_network(
    frames: int = VIDEO_FRAMES, image_size: int = VIDEO_SIZE, num_classes: int = VIDEO_CLASSES
) -> common.Network:
    """ResNet3D-18 with synthetic videos of `frames` x `image_size` x `image_size` x 3."""
    batches = common.image_batches(image_size, 3, num_classes, frames=frames)
    return common.linen_network(ResNet3D(STAGE_SIZES[18], num_classes), batches)


resnet18 = common.Model(functools.partial(network, 18))
"""ResNet-18 in the ImageNet shape, 224x224x3 images of 1000 classes."""

resnet50 = common.Model(functools.partial(network, 50))
"""ResNet-50 in the ImageNet shape."""

resnet_tiny = common.Model(
    lambda: common.linen_network(ResNet((1, 1), BasicBlock, 10), common.image_batches(16, 3, 10))
)
"""A ResNet of two blocks and 16x16x3 images: small enough for integer programs."""

resnet3d18 = common.Model(video_network)
"""ResNet3D-18 in the Kinetics-400 shape, 16x112x112x3 videos of 400 classes."""

init = common.Model(network).init
