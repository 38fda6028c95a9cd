"""Trains any of the models on synthetic data: `python -m examples.train --model=unet --noplan`.

The models have their published sizes: on a CPU a step of the larger ones takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import app, flags

from examples import training
from olla_xla.bench import zoo
from olla_xla.bench.zoo import common


def train(
    model: str,
    *,
    steps: int,
    batch_size: int,
    optimizer: str,
    plan: bool,
    seed: int = 0,
    dtype: str = "float32",
    learning_rate: float | None = None,
    **sizes: int,
) -> list[float]:
    """Trains the model of that name for `steps` steps and returns the loss of each.

    `sizes` are keyword arguments of the model's `network`, such as `image_size`. The learning
    rate is that of `common.LEARNING_RATES` when None.
    """
    return training.run_network(
        zoo.load(model).network(**sizes),
        steps=steps,
        batch_size=batch_size,
        optimizer=optimizer,
        plan=plan,
        seed=seed,
        dtype=dtype,
        learning_rate=learning_rate,
    )


def main(argv: Sequence[str]) -> None:
    """Runs `train` with the values of the flags."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    args = flags.FLAGS
    train(
        args.model,
        steps=args.steps,
        batch_size=args.batch_size,
        optimizer=args.optimizer,
        plan=args.plan,
        seed=args.seed,
        dtype=args.dtype,
        learning_rate=args.learning_rate,
    )


if __name__ == "__main__":
    training.define_flags(steps=20, batch_size=8, optimizer="adam")
    flags.DEFINE_enum("model", "lenet", sorted(zoo.MODELS), "Model to train.")
    flags.DEFINE_enum("dtype", "float32", sorted(common.DTYPES), "Dtype of the computation.")
    flags.DEFINE_float("learning_rate", None, "Learning rate, by default one for the optimizer.")
    app.run(main)
