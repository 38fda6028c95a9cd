"""Recomputation inside what loops run: which bodies hold the peak, and the same bits with less."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from hlo.cpu_code import one_function
from hlo.module import module_from_bytes
from olla_xla.memory.module_state import PlannedModule
from olla_xla.remat.front import bodies_at_peak
from tests.support.compiles import xla_schedule
from tests.support.steps import assert_same

LAYERS, WIDTH, BATCH, PARTS = 8, 64, 1024, 3


def weights():
    random = np.random.default_rng(0)
    return [random.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8 for _ in range(LAYERS)]


def examples():
    return np.random.default_rng(1).normal(size=(PARTS, BATCH, WIDTH)).astype(np.float32)


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(jnp.tanh(x) @ w)
    return (x**2).mean()


def accumulated(weights, x):
    """A step whose gradients are summed over parts of the batch, one after the other."""

    def part(total, x):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, x)), None

    gradients, _ = jax.lax.scan(part, jax.tree.map(jnp.zeros_like, weights), x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def two_deep(weights, x):
    """Two of those steps, in a loop."""
    return jax.lax.fori_loop(0, 2, lambda _, w: accumulated(w, x), weights)


def until_small(weights, x):
    """Steps until a weight is small: nobody knows how many."""
    return jax.lax.while_loop(
        lambda w: jnp.abs(w[0]).max() > 0.1, lambda w: accumulated(w, x), weights
    )


@functools.cache
def charged(step):
    lowered = jax.jit(step).lower(weights(), examples())
    planned = PlannedModule(module_from_bytes(xla_schedule(lowered)), "cpu")
    planned.charge_all()
    return planned


def test_a_body_is_charged_as_often_as_it_runs():
    (body,) = bodies_at_peak(charged(accumulated))
    assert body.runs == PARTS
    outer, inner = bodies_at_peak(charged(two_deep))
    assert (outer.runs, inner.runs) == (2, 2 * PARTS)


def test_what_an_unknown_number_of_iterations_runs_is_left():
    assert not bodies_at_peak(charged(until_small))


def test_what_is_compiled_as_one_function_with_others_is_left():
    def mixed(a, b):
        def turn(y, x):
            return jnp.sin(y) * x + jnp.cos(y) * b, None

        return jax.lax.scan(turn, a, jnp.stack([a, b, a]))[0]

    arrays = [np.ones((16, 16), np.float32)] * 2
    module = module_from_bytes(xla_schedule(jax.jit(mixed).lower(*arrays)))
    assert one_function(module), "XLA makes one function of a small loop"
    planned = PlannedModule(module, "cpu")
    planned.charge_all()
    together = one_function(module)
    assert not [body for body in bodies_at_peak(planned) if body.computation in together]


@pytest.mark.parametrize("step", [accumulated, two_deep])
def test_what_a_body_saves_lowers_the_module(step):
    planned = charged(step)
    before = planned.peaks[planned.module.entry]
    for body in bodies_at_peak(planned):
        assert body.peak + body.outside == before > body.elsewhere
        kept = dict(planned.peaks)
        floor = max(body.elsewhere - body.outside, 0)
        for peak in (body.peak - 4096, floor, 0):
            planned.peaks[body.computation] = peak
            after = list(planned.module.control_computations)
            for c in after[after.index(body.computation) + 1 :]:
                planned.charge(c)
            expected = max(peak + body.outside, body.elsewhere)
            assert planned.peaks[planned.module.entry] == expected
        planned.peaks.update(kept)


@pytest.mark.parametrize("step", [accumulated, two_deep])
@pytest.mark.optimized
def test_bodies_compute_again_within_an_allowance(step):
    plain, planned = (
        olla_xla.plan(step, step_limit=5_000, time_limit=20, max_overhead=overhead)
        for overhead in (0, 0.5)
    )
    results = [f(weights(), examples()) for f in (jax.jit(step), plain, planned)]
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])
    (before,), (after,) = plain.plans, planned.plans
    assert after.predicted_bytes < 0.95 * before.predicted_bytes
    assert after.clones and 0 < after.added_seconds <= 0.5 * after.step_seconds


@pytest.mark.optimized
def test_bodies_compute_again_for_a_budget():
    plain = olla_xla.plan(accumulated, step_limit=5_000, max_overhead=0)
    plain(weights(), examples())
    (before,) = plain.plans
    budget = int(0.93 * before.predicted_bytes)
    planned = olla_xla.plan(accumulated, step_limit=5_000, time_limit=20, memory_budget=budget)
    assert_same(jax.jit(accumulated)(weights(), examples()), planned(weights(), examples()))
    (after,) = planned.plans
    assert after.predicted_bytes <= budget and after.clones
