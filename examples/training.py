"""The command-line flags and the loop shared by the example trainers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
from absl import flags

from olla_xla.bench.zoo import common

PyTree = Any
Step = Callable[[PyTree, PyTree], tuple[PyTree, jax.Array]]


def define_flags(*, steps: int, batch_size: int, optimizer: str) -> None:
    """Defines `--plan`, `--steps`, `--batch_size`, `--optimizer` and `--seed`.

    The arguments are the defaults of the flags of the same name; `--plan` is on by default.
    """
    flags.DEFINE_bool("plan", True, "Run the step through olla_xla.plan, else through jax.jit.")
    flags.DEFINE_integer("steps", steps, "Number of train steps.", lower_bound=1)
    flags.DEFINE_integer("batch_size", batch_size, "Examples in a batch.", lower_bound=1)
    flags.DEFINE_enum("optimizer", optimizer, sorted(common.OPTIMIZERS), "Optimizer.")
    flags.DEFINE_integer("seed", 0, "Seed of the parameters and the synthetic batch.")


def jit_step(train_step: Step, *, plan: bool) -> Step:
    """Returns `train_step` with its state donated: planned if `plan`, else only jitted."""
    if plan:
        import olla_xla

        return olla_xla.plan(train_step, donate_argnums=(0,))
    return jax.jit(train_step, donate_argnums=(0,))


def run(
    train_step: Step, state: PyTree, batch: PyTree, *, steps: int, plan: bool, reports: int = 10
) -> list[float]:
    """Repeats `train_step(state, batch) -> (state, loss)` on one batch, printing the loss.

    Args:
      train_step: a plain function, not jitted.
      state: the arrays of the first state; they are donated, so use them no more.
      batch: the arrays of the batch.
      steps: number of steps.
      plan: whether the step goes through `olla_xla.plan` or `jax.jit`.
      reports: about how many losses to print.

    Returns:
      The loss before each of the steps, in nats.
    """
    step = jit_step(train_step, plan=plan)
    every = max(1, steps // reports)
    losses: list[float] = []
    start = time.perf_counter()
    for index in range(steps):
        state, loss = step(state, batch)
        losses.append(float(loss))
        if index % every == 0 or index == steps - 1:
            seconds = time.perf_counter() - start
            print(f"step {index:5d}  loss {losses[-1]:9.5f}  {seconds:7.2f} s", flush=True)
    return losses


def run_network(
    network: common.Network,
    *,
    steps: int,
    batch_size: int,
    optimizer: str,
    plan: bool,
    seed: int,
    dtype: str = "float32",
    learning_rate: float | None = None,
) -> list[float]:
    """Trains `network` on its synthetic batch and returns the losses, as `run` does."""
    transformation = common.make_optimizer(optimizer, learning_rate)
    train_step = common.make_train_step(common.with_dtype(network, dtype), transformation)
    state, batch = common.build_arrays(
        network, batch_size=batch_size, optimizer=optimizer, seed=seed
    )
    return run(train_step, state, batch, steps=steps, plan=plan)
