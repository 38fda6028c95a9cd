"""Trains a small ResNet on scikit-learn's digits: `python -m examples.train_resnet`.

It is built as those of He et al. (2015) for CIFAR-10, with two stages instead of three, as the
images have 8x8 pixels: `4 * blocks + 2` layers. The running statistics of its batch normalization
are part of the donated state, and are what the held-out part is normalized with.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
from absl import app, flags

from examples import data, training
from examples.zoo import common


class SmallResNet(nn.Module):
    """Two stages of residual blocks; the second halves the image.

    Attributes:
      width: channels of the first stage; the second has twice as many.
      blocks: residual blocks in a stage.
      train: whether to normalize with the batch's statistics or with the running ones.
      num_classes: number of logits.
    """

    width: int = 16
    blocks: int = 1
    train: bool = True
    num_classes: int = data.NUM_CLASSES

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        conv = functools.partial(nn.Conv, use_bias=False)
        norm = functools.partial(
            nn.BatchNorm, use_running_average=not self.train, momentum=0.9, epsilon=1e-5
        )
        x = nn.relu(norm()(conv(self.width, (3, 3))(x)))
        for stage in range(2):
            for index in range(self.blocks):
                features = self.width * (stage + 1)
                stride = 2 if stage > 0 and index == 0 else 1
                y = nn.relu(norm()(conv(features, (3, 3), strides=stride)(x)))
                y = norm()(conv(features, (3, 3))(y))
                if x.shape != y.shape:
                    x = norm()(conv(features, (1, 1), strides=stride)(x))
                x = nn.relu(x + y)
        return nn.Dense(self.num_classes)(x.mean(axis=(1, 2)))


def task(options: training.Options, *, width: int = 16, blocks: int = 1) -> training.Task:
    """A `SmallResNet` of that width and number of blocks in a stage, and the digits."""
    batches = common.image_batches(data.IMAGE_SIZE, 1, data.NUM_CLASSES)
    network = common.linen_network(SmallResNet(width, blocks), batches)
    train_step, state, _ = training.network_step(network, options)

    def predict(state: common.State, inputs: jax.Array) -> jax.Array:
        variables = {"params": state["params"], "batch_stats": state["batch_stats"]}
        logits = SmallResNet(width, blocks, train=False).apply(variables, inputs)
        assert isinstance(logits, jax.Array)  # apply returns a pair only where asked to
        return logits

    return training.Task(
        train_step,
        state,
        data.shuffled(data.digits().train, options.batch_size, options.seed),
        {"model": "small_resnet", "width": width, "blocks": blocks},
        training.evaluator(predict, data.digits().test),
    )


def main(argv: Sequence[str]) -> None:
    """Trains with the values of the flags."""
    training.start(argv)
    options = training.options()
    made = task(options, width=flags.FLAGS.width, blocks=flags.FLAGS.blocks)
    training.run(made, options)


if __name__ == "__main__":
    training.define_flags(steps=200, batch_size=64, optimizer="adam")
    flags.DEFINE_integer("width", 16, "Channels of the first stage.", lower_bound=1)
    flags.DEFINE_integer("blocks", 1, "Residual blocks in each of 2 stages.", lower_bound=1)
    app.run(main)
