"""Trains the MLP on synthetic 28x28 images: `python -m examples.train_mlp --noplan`."""

from __future__ import annotations

from collections.abc import Sequence

from absl import app, flags

from examples import training
from olla_xla.bench.zoo import mlp


def train(*, steps: int, batch_size: int, optimizer: str, plan: bool, seed: int = 0) -> list[float]:
    """Trains for `steps` steps and returns the loss of each, in nats."""
    return training.run_network(
        mlp.network(),
        steps=steps,
        batch_size=batch_size,
        optimizer=optimizer,
        plan=plan,
        seed=seed,
    )


def main(argv: Sequence[str]) -> None:
    """Runs `train` with the values of the flags."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    args = flags.FLAGS
    train(
        steps=args.steps,
        batch_size=args.batch_size,
        optimizer=args.optimizer,
        plan=args.plan,
        seed=args.seed,
    )


if __name__ == "__main__":
    training.define_flags(steps=100, batch_size=64, optimizer="adam")
    app.run(main)
