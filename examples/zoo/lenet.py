"""LeNet-5 for 28x28 grey images.

LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document Recognition"
(1998), with a softmax for its output.
"""

from __future__ import annotations

import flax.linen as nn
import jax

from examples.zoo import common

IMAGE_SIZE = 28
NUM_CLASSES = 10


class LeNet5(nn.Module):
    """Two convolutions with average pooling and three fully connected layers, tanh between.

    Attributes:
      num_classes: number of logits.
    """

    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, 28, 28, 1]` to logits `[batch, classes]`."""
        x = nn.tanh(nn.Conv(6, (5, 5), padding="SAME")(x))
        x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        x = nn.tanh(nn.Conv(16, (5, 5), padding="VALID")(x))
        x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.tanh(nn.Dense(120)(x))
        x = nn.tanh(nn.Dense(84)(x))
        return nn.Dense(self.num_classes)(x)


def network() -> common.Network:
    """LeNet-5 with its synthetic 28x28x1 images of 10 classes."""
    return common.linen_network(LeNet5(), common.image_batches(IMAGE_SIZE, 1, NUM_CLASSES))


lenet = common.Model(network)
"""LeNet-5."""

init = lenet.init
