"""Trains a ResNet on synthetic images: `python -m examples.train_resnet --noplan`.

The defaults (ResNet-18, 32x32 images, 10 classes) suit a CPU; ResNet-50 on the ImageNet shape
is `--depth=50 --image_size=224 --num_classes=1000`.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import app, flags

from examples import training
from olla_xla.bench.zoo import resnet


def train(
    *,
    steps: int,
    batch_size: int,
    optimizer: str,
    plan: bool,
    seed: int = 0,
    depth: int = 18,
    image_size: int = 32,
    num_classes: int = 10,
) -> list[float]:
    """Trains for `steps` steps and returns the loss of each, in nats.

    `depth` is 18 or 50; the images are `image_size` pixels wide and high.
    """
    return training.run_network(
        resnet.network(depth, image_size, num_classes),
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
        depth=int(args.depth),
        image_size=args.image_size,
        num_classes=args.num_classes,
    )


if __name__ == "__main__":
    training.define_flags(steps=20, batch_size=16, optimizer="momentum")
    flags.DEFINE_enum("depth", "18", ["18", "50"], "Layers of the ResNet.")
    flags.DEFINE_integer("image_size", 32, "Width and height of an image.", lower_bound=1)
    flags.DEFINE_integer("num_classes", 10, "Number of classes.", lower_bound=2)
    app.run(main)
