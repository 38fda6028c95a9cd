"""VGG-11 without batch normalization, for 224x224 colour images."""

from __future__ import annotations

import flax.linen as nn
import jax

from examples.models import common

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
        """Maps float32 images `[batch, 224, 224, 3]` to logits `[batch, classes]`."""
        for stage in STAGES:
            for features in stage:
                x = nn.relu(nn.Conv(features, (3, 3), padding="SAME")(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(4096)(x))
        x = nn.relu(nn.Dense(4096)(x))
        return nn.Dense(self.num_classes)(x)


def network() -> common.Network:
    """VGG-11 with synthetic images in the ImageNet shape."""
    return common.linen_network(VGG11(), common.image_batches(IMAGE_SIZE, 3, NUM_CLASSES))


def vgg11(*, batch_size: int, optimizer: str) -> common.Built:
    """VGG-11; returns `(step, example_args, jit_kwargs)`, see `common.build`."""
    return common.build(network(), batch_size=batch_size, optimizer=optimizer)


def init(batch_size: int, optimizer: str, seed: int = 0) -> tuple[common.State, common.Batch]:
    """Real `(state, batch)` for the step of `vgg11`, see `common.build_arrays`."""
    return common.build_arrays(network(), batch_size=batch_size, optimizer=optimizer, seed=seed)
