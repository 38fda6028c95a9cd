"""Steady-state cost of a call: a planned function against `jax.jit`'s, on a many-leaf state.

    python -m benchmarks.calls --leaves=500

Prints microseconds per call of both, and their ratio. Both run the same donated step, which does
little arithmetic, so the difference is the overhead of a call. The two alternate, and the ratio is
the median of the ratios of neighbouring turns, so that other load on the machine affects both.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import olla_xla

_LEAVES = flags.DEFINE_integer("leaves", 500, "Arrays in the donated state.", lower_bound=1)
_CALLS = flags.DEFINE_integer("calls", 50, "Calls per turn.", lower_bound=1)
_TURNS = flags.DEFINE_integer("turns", 30, "Turns of each function.", lower_bound=1)
_TIME_LIMIT = flags.DEFINE_float("time_limit", 2.0, "Seconds of planning.")
_BRANCHES = 8


def make_state(leaves: int) -> dict[str, jax.Array]:
    """A state of `leaves` float32 arrays of 4x4."""
    return {f"leaf{i:04d}": jnp.full((4, 4), 0.01 * i, jnp.float32) for i in range(leaves)}


def step(state: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Updates every leaf; a few branches of larger temporaries give the planner an order to find.

    Args:
      state: float32[4, 4] leaves.
    """
    x = jnp.ones((64, 4), jnp.float32)
    hidden = [jnp.tanh(x @ leaf) for leaf in list(state.values())[:_BRANCHES]]
    scales = [jnp.mean(h @ h.T) * 1e-3 for h in hidden]
    leaves = enumerate(state.items())
    return {name: leaf * 0.5 + scales[k % len(scales)] for k, (name, leaf) in leaves}


def seconds_per_call(
    functions: Sequence[Callable[[Any], Any]], leaves: int, calls: int, turns: int
) -> np.ndarray:
    """Seconds per call of each function in each turn: float64[turns, functions]."""
    states = [make_state(leaves) for _ in functions]
    for k, function in enumerate(functions):  # Twice: outputs may differ from inputs in kind.
        states[k] = jax.block_until_ready(function(function(states[k])))
    seconds = np.zeros((turns, len(functions)))
    for turn in range(turns):
        for k in np.roll(range(len(functions)), turn):
            state = states[k]
            started = time.perf_counter()
            for _ in range(calls):
                state = functions[k](state)
            jax.block_until_ready(state)
            seconds[turn, k] = (time.perf_counter() - started) / calls
            states[k] = state
    return seconds


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The cost of a call of both functions.

    Attributes:
      jit_seconds: median seconds per call of `jax.jit`'s function.
      planned_seconds: the same of the planned function.
      ratio: median over turns of planned / jit.
      planned: whether a plan is in use.
    """

    jit_seconds: float
    planned_seconds: float
    ratio: float
    planned: bool


def compare(leaves: int, calls: int, turns: int, time_limit: float) -> Comparison:
    """Times calls of `step` on a state of `leaves` arrays, planned and jitted.

    Args:
      leaves: arrays of the state. calls: calls in each turn. turns: how many of each function.
      time_limit: seconds for the planner.
    """
    plain = jax.jit(functools.partial(step), donate_argnums=0)
    planned = olla_xla.plan(step, donate_argnums=0, time_limit=time_limit)
    in_use = planned.lower(make_state(leaves)).compile().planned
    seconds = seconds_per_call([plain, planned], leaves, calls, turns)
    jit_seconds, planned_seconds = np.median(seconds, axis=0)
    ratio = np.median(seconds[:, 1] / seconds[:, 0])
    return Comparison(float(jit_seconds), float(planned_seconds), float(ratio), in_use)


def main(argv: Sequence[str]) -> None:
    """Runs the comparison and prints it."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    result = compare(_LEAVES.value, _CALLS.value, _TURNS.value, _TIME_LIMIT.value)
    print(
        f"{_LEAVES.value} leaves, donated, {'planned' if result.planned else 'XLA'} order: "
        f"jax.jit {result.jit_seconds * 1e6:.1f} us, "
        f"olla_xla.plan {result.planned_seconds * 1e6:.1f} us a call, ratio {result.ratio:.3f}"
    )


if __name__ == "__main__":
    app.run(main)
