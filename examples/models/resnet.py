"""ResNet-18 and ResNet-50 (v1.5: the stride is in the 3x3 convolution of a bottleneck)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax

from examples.models import common

IMAGE_SIZE = 224
NUM_CLASSES = 1000
STAGE_SIZES = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}

_Conv = functools.partial(nn.Conv, use_bias=False)
_BatchNorm = functools.partial(nn.BatchNorm, use_running_average=False, momentum=0.9, epsilon=1e-5)


def _conv3x3(features: int, stride: int) -> nn.Conv:
    return _Conv(features, (3, 3), strides=(stride, stride), padding=((1, 1), (1, 1)))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a residual connection.

    Attributes:
      features: width of the block and number of its output channels.
      stride: stride of the first convolution.
    """

    features: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[batch, height, width, channels]` to `[batch, h/stride, w/stride, features]`."""
        y = nn.relu(_BatchNorm()(_conv3x3(self.features, self.stride)(x)))
        y = _BatchNorm()(_conv3x3(self.features, 1)(y))
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
        y = nn.relu(_BatchNorm()(_conv3x3(self.features, self.stride)(y)))
        y = _BatchNorm()(_Conv(4 * self.features, (1, 1))(y))
        return nn.relu(_shortcut(x, y, self.stride) + y)


def _shortcut(x: jax.Array, y: jax.Array, stride: int) -> jax.Array:
    """`x` itself, or its strided 1x1 projection where the shape of `y` differs."""
    if x.shape == y.shape:
        return x
    projection = _Conv(y.shape[-1], (1, 1), strides=(stride, stride), name="projection")
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
        for stage, blocks in enumerate(self.stage_sizes):
            for index in range(blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                x = self.block(features=64 * 2**stage, stride=stride)(x)
        x = x.mean(axis=(1, 2))
        return nn.Dense(self.num_classes)(x)


def network(
    depth: int, image_size: int = IMAGE_SIZE, num_classes: int = NUM_CLASSES
) -> common.Network:
    """ResNet of `depth` 18 or 50 with synthetic `image_size` x `image_size` x 3 images."""
    if depth not in STAGE_SIZES:
        raise ValueError(f"unknown ResNet depth {depth}; known depths: 18, 50")
    block = Bottleneck if depth >= 50 else BasicBlock
    module = ResNet(STAGE_SIZES[depth], block, num_classes)
    return common.linen_network(module, common.image_batches(image_size, 3, num_classes))


def resnet18(*, batch_size: int, optimizer: str) -> common.Built:
    """ResNet-18; returns `(step, example_args, jit_kwargs)`, see `common.build`."""
    return common.build(network(18), batch_size=batch_size, optimizer=optimizer)


def resnet50(*, batch_size: int, optimizer: str) -> common.Built:
    """ResNet-50; returns `(step, example_args, jit_kwargs)`, see `common.build`."""
    return common.build(network(50), batch_size=batch_size, optimizer=optimizer)


def init(
    batch_size: int, optimizer: str, seed: int = 0, *, depth: int = 50
) -> tuple[common.State, common.Batch]:
    """Real `(state, batch)` for `resnet50` or, with `depth=18`, `resnet18`."""
    return common.build_arrays(
        network(depth), batch_size=batch_size, optimizer=optimizer, seed=seed
    )
