"""The command-line flags and the loop shared by the example trainers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging

import olla_xla
from examples.checkpoint import Checkpoints
from examples.data import Arrays
from examples.zoo import common

flags.disclaim_key_flags()  # `--help` lists the flags below as those of the trainer

PyTree = Any
Step = Callable[[PyTree, PyTree], tuple[PyTree, jax.Array]]
Predict = Callable[[PyTree, jax.Array], jax.Array]

TEST_BATCH_SIZE = 512
"""Most examples of the held-out part that are evaluated at once."""

INIT_OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 1}
"""Compiler options for the first state: it runs once, and is slow to compile at the default, 3."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How to train; a flag for each, see `define_flags`.

    Attributes:
      steps: train steps, including those before the checkpoint that a run resumes from.
      batch_size: examples in a batch.
      optimizer: one of `common.OPTIMIZERS`.
      learning_rate: that of `common.LEARNING_RATES` when None.
      seed: of the parameters and the order of the data.
      plan: whether the step goes through `olla_xla.plan` or `jax.jit`.
      checkpoint: directory to resume from and to save to, or None.
      save_every: steps between checkpoints; 0 saves at the end only.
    """

    steps: int
    batch_size: int
    optimizer: str
    learning_rate: float | None = None
    seed: int = 0
    plan: bool = True
    checkpoint: str | None = None
    save_every: int = 0


def define_flags(*, steps: int, batch_size: int, optimizer: str) -> None:
    """Defines a flag for each of `Options`; the arguments are defaults."""
    flags.DEFINE_integer("steps", steps, "Number of train steps.", lower_bound=1)
    flags.DEFINE_integer("batch_size", batch_size, "Examples in a batch.", lower_bound=1)
    flags.DEFINE_enum("optimizer", optimizer, sorted(common.OPTIMIZERS), "Optimizer.")
    flags.DEFINE_float("learning_rate", None, "Learning rate, by default one for the optimizer.")
    flags.DEFINE_integer("seed", 0, "Seed of the parameters and the batches.", lower_bound=0)
    flags.DEFINE_bool("plan", True, "Run the step through olla_xla.plan, else through jax.jit.")
    flags.DEFINE_string("checkpoint", None, "Directory to resume from and to save to.")
    flags.DEFINE_integer(
        "save_every", 0, "Steps between checkpoints; 0: only at the end.", lower_bound=0
    )


def options() -> Options:
    """The values of the flags."""
    values: dict[str, Any] = flags.FLAGS.flag_values_dict()
    return Options(**{field.name: values[field.name] for field in dataclasses.fields(Options)})


def start(argv: Sequence[str]) -> None:
    """Refuses what is left on the command line; has orbax log no more than warnings."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    if flags.FLAGS.verbosity <= logging.INFO:
        logging.get_absl_logger().setLevel("WARNING")


class Scores(NamedTuple):
    """Means over the held-out part: the loss, in nats, and the part that was predicted right."""

    loss: float
    accuracy: float


def percent(scores: Scores) -> str:
    """The scores as they are printed for a classifier."""
    return f"loss {scores.loss:.5f}, accuracy {scores.accuracy:.2%}"


class Result(NamedTuple):
    """The loss before each step of this run, in nats, and the scores after the last."""

    losses: list[float]
    scores: Scores | None


@dataclasses.dataclass(frozen=True)
class Task:
    """What to train.

    Attributes:
      train_step: `(state, batch) -> (state, loss)`, a plain function, not jitted.
      state: the arrays of the first state; they are donated, so use them no more.
      batch: the number of a step, from 0, -> its batch.
      settings: what decides the results beside the options, as JSON values.
      evaluate: the scores of a state, or None where nothing is held out.
      describe: scores -> what to print of them.
    """

    train_step: Step
    state: PyTree
    batch: Callable[[int], PyTree]
    settings: Mapping[str, Any]
    evaluate: Callable[[PyTree], Scores] | None = None
    describe: Callable[[Scores], str] = percent


def jit_step(train_step: Step, *, plan: bool) -> Step:
    """Returns `train_step` with its state donated: planned if `plan`, else only jitted."""
    if plan:
        return olla_xla.plan(train_step, donate_argnums=(0,))
    return jax.jit(train_step, donate_argnums=(0,))


def run(task: Task, options: Options, *, reports: int = 10) -> Result:
    """Trains, printing about `reports` losses and then the scores on the held-out part.

    With a checkpoint directory the run goes on after the latest checkpoint, with the losses of a
    run that was never interrupted, bit for bit.
    """
    step = jit_step(task.train_step, plan=options.plan)
    decisive = ("batch_size", "optimizer", "learning_rate", "seed")
    settings = {name: getattr(options, name) for name in decisive} | dict(task.settings)
    every = max(1, options.steps // reports)
    losses: list[float] = []
    start = time.perf_counter()
    with Checkpoints(options.checkpoint, settings) as checkpoints:
        first, state = checkpoints.restore(task.state)
        if first:
            print(f"resumed after {first} steps from {options.checkpoint}", flush=True)
        for index in range(first, options.steps):
            state, loss = step(state, task.batch(index))
            losses.append(float(loss))
            if index % every == 0 or index == options.steps - 1:
                seconds = time.perf_counter() - start
                print(f"step {index:5d}  loss {losses[-1]:9.5f}  {seconds:7.2f} s", flush=True)
            if options.save_every and (index + 1) % options.save_every == 0:
                checkpoints.save(index + 1, state)
        checkpoints.save(max(first, options.steps), state)
    scores = None if task.evaluate is None else task.evaluate(state)
    if scores is not None:
        seconds = time.perf_counter() - start
        print(f"held out: {task.describe(scores)}  {seconds:7.2f} s", flush=True)
    return Result(losses, scores)


def evaluator(predict: Predict, test: Arrays) -> Callable[[PyTree], Scores]:
    """Returns `state -> scores` of a classifier, or of a model of the next token.

    Args:
      predict: `(state, inputs) -> logits`, the classes in the last axis.
      test: the held-out part; its labels are shaped as the logits without their last axis.
    """

    @jax.jit
    def sums(state: PyTree, batch: PyTree) -> tuple[jax.Array, jax.Array]:
        logits, labels = predict(state, batch["inputs"]), batch["labels"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.sum(), jnp.sum(logits.argmax(-1) == labels)

    def evaluate(state: PyTree) -> Scores:
        loss, right = 0.0, 0
        count = len(test["labels"])
        for rows in np.array_split(np.arange(count), -(-count // TEST_BATCH_SIZE)):
            part_loss, part_right = sums(state, {name: x[rows] for name, x in test.items()})
            loss, right = loss + float(part_loss), right + int(part_right)
        return Scores(loss / test["labels"].size, right / test["labels"].size)

    return evaluate


def network_step(
    network: common.Network, options: Options, dtype: str = "float32"
) -> tuple[Step, common.State, common.Batch]:
    """The step of a network of the zoo, its first state and its synthetic batch."""
    transformation = common.make_optimizer(options.optimizer, options.learning_rate)
    train_step = common.make_train_step(common.with_dtype(network, dtype), transformation)

    def build(seed: Any) -> tuple[common.State, common.Batch]:
        size, optimizer = options.batch_size, options.optimizer
        return common.build_arrays(network, batch_size=size, optimizer=optimizer, seed=seed)

    return train_step, *jax.jit(build, compiler_options=INIT_OPTIONS)(options.seed)
