"""Trains a GPT on the bytes of Python's help topics: `python -m examples.train_transformer`.

Its train state is an `nnx.State` that holds an nnx model and its `nnx.Optimizer`, in contrast
to the plain dict of the zoo's models. The defaults suit a CPU; the sizes of the zoo's `gpt` are
`--layers=4 --width=768 --heads=12 --sequence_length=512`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
from absl import app, flags
from flax import nnx

from examples import data, training
from examples.zoo import common
from examples.zoo.gpt import GPT, GPTConfig

SMALL_CONFIG = GPTConfig(
    layers=2, width=128, heads=4, sequence_length=64, vocabulary_size=data.NUM_BYTES
)


def make_nnx_state(
    config: GPTConfig, optimizer: str, seed: int = 0, learning_rate: float | None = None
) -> tuple[training.Step, training.Predict, nnx.State]:
    """Returns `train_step(state, batch) -> (state, loss)`, `predict` and the first `nnx.State`.

    `predict(state, inputs) -> logits`. The state holds the parameters of the GPT, the optimizer's
    moments and its step counter.
    """
    transformation = common.make_optimizer(optimizer, learning_rate)

    def build(key: jax.Array) -> tuple[GPT, nnx.Optimizer]:
        model = GPT(config, nnx.Rngs(key))
        return model, nnx.Optimizer(model, transformation, wrt=nnx.Param)

    key = jax.random.key(seed)
    graphdef = nnx.graphdef(nnx.eval_shape(build, key))
    first = jax.jit(lambda key: nnx.state(build(key)), compiler_options=training.INIT_OPTIONS)

    def loss_fn(model: GPT, batch: common.Batch) -> jax.Array:
        return common.cross_entropy(model(batch["inputs"]), batch["labels"])

    def train_step(state: nnx.State, batch: common.Batch) -> tuple[nnx.State, jax.Array]:
        model, model_optimizer = nnx.merge(graphdef, state)
        loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
        model_optimizer.update(model, grads)
        return nnx.state((model, model_optimizer)), loss

    def predict(state: nnx.State, inputs: jax.Array) -> jax.Array:
        model, _ = nnx.merge(graphdef, state)
        return model(inputs)

    return train_step, predict, first(key)


def bits(scores: training.Scores) -> str:
    """The scores as bits per byte and accuracy of the next byte."""
    bits_per_byte = scores.loss / math.log(2)
    return f"{bits_per_byte:.4f} bits per byte, next-byte accuracy {scores.accuracy:.2%}"


def task(options: training.Options, *, config: GPTConfig = SMALL_CONFIG) -> training.Task:
    """A GPT of `config`, whose vocabulary is the 256 bytes, and the help topics."""
    train_step, predict, state = make_nnx_state(
        config, options.optimizer, options.seed, options.learning_rate
    )
    text, length = data.text(), config.sequence_length
    return training.Task(
        train_step,
        state,
        data.random_windows(text.train, options.batch_size, length, options.seed),
        {"model": "gpt", **dataclasses.asdict(config)},
        training.evaluator(predict, data.all_windows(text.test, length)),
        bits,
    )


def main(argv: Sequence[str]) -> None:
    """Trains with the values of the flags."""
    training.start(argv)
    values = flags.FLAGS.flag_values_dict()
    sizes = {name: values[name] for name in ("layers", "width", "heads", "sequence_length")}
    options = training.options()
    made = task(options, config=dataclasses.replace(SMALL_CONFIG, **sizes))
    training.run(made, options)


def _define_model_flags() -> None:
    """Defines flags for the sizes of `GPTConfig`, with the values of `SMALL_CONFIG`."""
    default = SMALL_CONFIG
    flags.DEFINE_integer("layers", default.layers, "Transformer blocks.", lower_bound=1)
    flags.DEFINE_integer("width", default.width, "Size of the residual stream.", lower_bound=1)
    flags.DEFINE_integer("heads", default.heads, "Attention heads in a block.", lower_bound=1)
    flags.DEFINE_integer(
        "sequence_length", default.sequence_length, "Bytes in a sequence.", lower_bound=1
    )


if __name__ == "__main__":
    training.define_flags(steps=300, batch_size=16, optimizer="adam")
    _define_model_flags()
    app.run(main)
