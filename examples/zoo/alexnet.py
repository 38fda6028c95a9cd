"""AlexNet for 224x224 colour images.

Krizhevsky, "One Weird Trick for Parallelizing Convolutional Neural Networks" (2014): the
network of Krizhevsky, Sutskever and Hinton (2012) in one tower, without local response
normalization.
"""

from __future__ import annotations

import flax.linen as nn
import jax

from examples.zoo import common

IMAGE_SIZE = 224
NUM_CLASSES = 1000


class AlexNet(nn.Module):
    """Five convolutions, three of them pooled, then 4096-4096-classes; dropout is left out.

    Attributes:
      num_classes: number of logits.
    """

    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, 3]`, at least 63x63, to class logits."""
        x = nn.relu(nn.Conv(64, (11, 11), strides=(4, 4), padding=((2, 2), (2, 2)))(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2))
        x = nn.relu(nn.Conv(192, (5, 5))(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2))
        for features in (384, 256, 256):
            x = nn.relu(nn.Conv(features, (3, 3))(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(4096)(x))
        x = nn.relu(nn.Dense(4096)(x))
        return nn.Dense(self.num_classes)(x)


def network(image_size: int = IMAGE_SIZE, num_classes: int = NUM_CLASSES) -> common.Network:
    """AlexNet with synthetic `image_size` x `image_size` x 3 images."""
    return common.linen_network(
        AlexNet(num_classes), common.image_batches(image_size, 3, num_classes)
    )


alexnet = common.Model(network)
"""AlexNet in the ImageNet shape, 224x224x3 images of 1000 classes."""
