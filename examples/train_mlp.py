"""Trains the zoo's MLP on scikit-learn's digits: `python -m examples.train_mlp`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from absl import app

from examples import data, training
from examples.zoo import common, mlp


def task(options: training.Options) -> training.Task:
    """The MLP 64-512-256-10 and the digits."""
    batches = common.image_batches(data.IMAGE_SIZE, 1, data.NUM_CLASSES)
    network = common.linen_network(mlp.MLP(num_classes=data.NUM_CLASSES), batches)
    train_step, state, _ = training.network_step(network, options)

    def predict(state: common.State, inputs: jax.Array) -> jax.Array:
        return network.apply(state["params"], state["batch_stats"], inputs)[0]

    return training.Task(
        train_step,
        state,
        data.shuffled(data.digits().train, options.batch_size, options.seed),
        {"model": "mlp"},
        training.evaluator(predict, data.digits().test),
    )


def main(argv: Sequence[str]) -> None:
    """Trains with the values of the flags."""
    training.start(argv)
    options = training.options()
    training.run(task(options), options)


if __name__ == "__main__":
    training.define_flags(steps=300, batch_size=64, optimizer="adam")
    app.run(main)
