"""VGG-11 without batch normalization, for 224x224 colour images.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition"
(2014), configuration A.
"""

from __future__ import annotations

import flax.linen as nn
import jax

from examples.zoo import common

IMAGE_SIZE = 224
NUM_CLASSES = 1000
STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class VGG11(nn.Module):
    """Configuration A of VGG: 3x3 convolutions in five pooled stages, then 4096-4096-classes.

    Dropout is left out.

    Attributes:
      num_classes: number of logits.
    """

    num_classes: int = NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, 3]` to logits `[batch, classes]`."""
        for stage in STAGES:
            for features in stage:
                x = nn.relu(nn.Conv(features, (3, 3), padding="SAME")(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(4096)(x))
        x = nn.relu(nn.Dense(4096)(x))
        return nn.Dense(self.num_classes)(x)


def network(image_size: int = IMAGE_SIZE, num_classes: int = NUM_CLASSES) -> common.Network:
    """VGG-11 with synthetic `image_size` x `image_size` x 3 images."""
    return common.linen_network(
        VGG11(num_classes), common.image_batches(image_size, 3, num_classes)
    )


vgg11 = common.Model(network)
"""VGG-11 in the ImageNet shape, 224x224x3 images of 1000 classes."""

init = vgg11.init
