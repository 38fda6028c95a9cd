"""What loops only read can be computed again for one of them, and need not live in between."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from olla_xla import planner
from olla_xla.problem.options import PlanOptions
from tests.support.compiles import on_h100, xla_schedule
from tests.support.plugins import CUDA
from tests.support.steps import assert_same

ROWS, WIDE = 512, 1024


def step(x, y, weights):
    """Two loops read a large product of two vectors; between them much else is in memory."""
    table = jnp.sin(x[:, None] * y[None, :])

    def turn(h, w):
        return jnp.tanh(h @ w + h * table), None

    h, _ = jax.lax.scan(turn, table * 0.5, weights)
    between = jnp.exp(h[:, :ROWS] @ h[:, :ROWS].T)
    parts = [between @ h, *(jnp.sin(k * h) for k in range(1, 8))]
    wide = jnp.concatenate(parts, axis=1)
    wide = wide / (1 + jnp.sum(wide * wide))
    scale = jnp.sum(wide @ wide.T)
    h, _ = jax.lax.scan(turn, h * scale, weights)
    return jnp.sum(h)


@functools.cache
def arguments():
    r = np.random.default_rng(0)
    small = r.standard_normal((3, WIDE, WIDE), np.float32) / WIDE
    return tuple(
        map(
            jnp.asarray,
            (r.standard_normal(ROWS, np.float32), np.linspace(0, 1, WIDE, dtype=np.float32), small),
        )
    )


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_one_of_two_loops_reads_a_clone(target):
    given = on_h100(arguments()) if target == "cuda" else arguments()
    module = xla_schedule(jax.jit(step).lower(*given))
    kept, again = (
        planner.plan_module(
            module,
            PlanOptions(step_limit=2_000, time_limit=30, max_overhead=overhead),
            target=target,
        )
        for overhead in (0.0, 0.5)
    )
    assert again.predicted_bytes < kept.predicted_bytes
    assert any("tuple" in reader for *_, readers in again.clones for reader, _ in readers)


@pytest.mark.optimized
def test_results_stay_bit_identical():
    planned = olla_xla.plan(step, max_overhead=0.5, step_limit=2_000, time_limit=30)
    assert planned.lower(*arguments()).compile().plan.clones
    assert_same(jax.jit(step)(*arguments()), planned(*arguments()))
