"""Trains a GPT on synthetic tokens: `python -m examples.train_transformer --noplan`.

Its train state is an `nnx.State` that holds an nnx model and its `nnx.Optimizer`, in contrast
to the plain dict of the registry functions. The defaults suit a CPU; the `gpt` of
`olla_xla.bench.zoo` is `--layers=4 --width=768 --heads=12 --sequence_length=512
--vocabulary_size=32000`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from absl import app, flags
from flax import nnx

from examples import training
from olla_xla.bench.zoo import common
from olla_xla.bench.zoo.gpt import GPT, GPTConfig

SMALL_CONFIG = GPTConfig(layers=2, width=128, heads=4, sequence_length=64, vocabulary_size=512)


def make_nnx_state(
    config: GPTConfig, optimizer: str, seed: int = 0
) -> tuple[training.Step, nnx.State]:
    """Returns `train_step(state, batch) -> (state, loss)` and its first `nnx.State`.

    The state holds the parameters of the GPT, the optimizer's moments and its step counter.
    """
    transformation = common.make_optimizer(optimizer)

    def build(key: jax.Array) -> tuple[GPT, nnx.Optimizer]:
        model = GPT(config, nnx.Rngs(key))
        return model, nnx.Optimizer(model, transformation, wrt=nnx.Param)

    key = jax.random.key(seed)
    graphdef = nnx.graphdef(nnx.eval_shape(build, key))
    state = jax.jit(lambda key: nnx.state(build(key)))(key)

    def loss_fn(model: GPT, batch: common.Batch) -> jax.Array:
        return common.cross_entropy(model(batch["inputs"]), batch["labels"])

    def train_step(state: nnx.State, batch: common.Batch) -> tuple[nnx.State, jax.Array]:
        model, model_optimizer = nnx.merge(graphdef, state)
        loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
        model_optimizer.update(model, grads)
        return nnx.state((model, model_optimizer)), loss

    return train_step, state


def train(
    *,
    steps: int,
    batch_size: int,
    optimizer: str,
    plan: bool,
    seed: int = 0,
    config: GPTConfig = SMALL_CONFIG,
) -> list[float]:
    """Trains for `steps` steps and returns the loss of each, in nats per token."""
    train_step, state = make_nnx_state(config, optimizer, seed)
    make_batch = common.token_batches(config.sequence_length, config.vocabulary_size)
    batch = make_batch(jax.random.key(seed + 1), batch_size)
    return training.run(train_step, state, batch, steps=steps, plan=plan)


def main(argv: Sequence[str]) -> None:
    """Runs `train` with the values of the flags."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    args = flags.FLAGS
    config = GPTConfig(
        layers=args.layers,
        width=args.width,
        heads=args.heads,
        sequence_length=args.sequence_length,
        vocabulary_size=args.vocabulary_size,
    )
    train(
        steps=args.steps,
        batch_size=args.batch_size,
        optimizer=args.optimizer,
        plan=args.plan,
        seed=args.seed,
        config=config,
    )


def _define_model_flags() -> None:
    """Defines a flag for each size of `GPTConfig`, with the value of `SMALL_CONFIG`."""
    default = SMALL_CONFIG
    flags.DEFINE_integer("layers", default.layers, "Transformer blocks.", lower_bound=1)
    flags.DEFINE_integer("width", default.width, "Size of the residual stream.", lower_bound=1)
    flags.DEFINE_integer("heads", default.heads, "Attention heads in a block.", lower_bound=1)
    flags.DEFINE_integer(
        "sequence_length", default.sequence_length, "Tokens in a sequence.", lower_bound=1
    )
    flags.DEFINE_integer(
        "vocabulary_size", default.vocabulary_size, "Number of tokens.", lower_bound=2
    )


if __name__ == "__main__":
    training.define_flags(steps=60, batch_size=4, optimizer="adam")
    _define_model_flags()
    app.run(main)
