"""A multilayer perceptron for 28x28 grey images."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax

from examples.zoo import common

IMAGE_SIZE = 28
NUM_CLASSES = 10
HIDDEN_SIZES = (512, 256)


class MLP(nn.Module):
    """Fully connected layers with ReLU between them.

    Attributes:
      hidden_sizes: widths of the hidden layers.
      num_classes: number of logits.
    """

    hidden_sizes: Sequence[int] = HIDDEN_SIZES
    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        x = x.reshape((x.shape[0], -1))
        for size in self.hidden_sizes:
            x = nn.relu(nn.Dense(size)(x))
        return nn.Dense(self.num_classes)(x)


def network() -> common.Network:
    """The MLP with its synthetic 28x28x1 images of 10 classes."""
    return common.linen_network(MLP(), common.image_batches(IMAGE_SIZE, 1, NUM_CLASSES))


mlp = common.Model(network)
"""MLP 784-512-256-10."""

init = mlp.init
