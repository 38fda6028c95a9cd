"""Trains any of the models on one synthetic batch: `python -m examples.train --model=unet`.

The models have their published sizes: on a CPU a step of the larger ones takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import app, flags

from examples import training, zoo
from examples.zoo import common


def task(
    model: str, options: training.Options, *, dtype: str = "float32", **sizes: int
) -> training.Task:
    """The model of that name and its synthetic batch, which it learns by heart.

    `sizes` are keyword arguments of the model's `network`, such as `image_size`.
    """
    network = zoo.load(model).network(**sizes)
    train_step, state, batch = training.network_step(network, options, dtype)
    settings = {"model": model, "dtype": dtype, **sizes}
    return training.Task(train_step, state, lambda _: batch, settings)


def main(argv: Sequence[str]) -> None:
    """Trains with the values of the flags."""
    training.start(argv)
    options = training.options()
    made = task(flags.FLAGS.model, options, dtype=flags.FLAGS.dtype)
    training.run(made, options)


if __name__ == "__main__":
    training.define_flags(steps=20, batch_size=8, optimizer="adam")
    flags.DEFINE_enum("model", "lenet", sorted(zoo.MODELS), "Model to train.")
    flags.DEFINE_enum("dtype", "float32", sorted(common.DTYPES), "Dtype of the computation.")
    app.run(main)
