"""What would help where an order does not: the remedy that is named, tried, gives its figure."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla.compile.capture import capture
from olla_xla.compile.remedies import remedy
from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.memory_view import memory_view
from olla_xla.memory.analysis.remedy import Remedy, Trial, by_hand
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.problem.options import PlanOptions
from tests.support.compiles import xla_schedule

LIMITS = {"time_limit": 5, "step_limit": 2000}
OPTIONS = PlanOptions(**LIMITS)


def _tried(step, arguments, **options):
    jitted = jax.jit(step, **options)
    plan = olla_xla.plan(jitted, **LIMITS).lower(*arguments).compile().plan
    module = xla_schedule(jitted.lower(*arguments))
    view = memory_view(PlannedModule(scheduled_module(module), "cpu"), "planned")
    return remedy(module, view, OPTIONS, target="cpu", plan=plan)


def _total(function, *arguments):
    return function.lower(*arguments).compile().plan.assigned_bytes


def body(h, w):
    return jnp.tanh(jnp.tanh(h @ w) @ w.T) + h, None


def scanned(w, x):
    def loss(w):
        return (jax.lax.scan(body, x, w)[0] ** 2).mean()

    return w - jax.grad(loss)(w)


def test_scan_residuals():
    arguments = jnp.zeros((16, 64, 64)), jnp.zeros((2048, 64))
    found = _tried(scanned, arguments, donate_argnums=0)
    assert found is not None and found.what == Category.STACKS
    (trial,) = found.helpful
    assert trial.setting == "max_overhead=0.2"
    again = olla_xla.plan(scanned, donate_argnums=0, max_overhead=0.2, **LIMITS)
    assert abs(trial.bytes / _total(again, *arguments) - 1) <= 0.05
    line = found.sentence()
    assert "stacks of loops; max_overhead=0.2 plans" in line and "\n" not in line


def momentum(w, m, x):
    m = 0.9 * m + jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
    return w - m, m


STATE = jnp.zeros((512, 512)), jnp.zeros((512, 512)), jnp.zeros((8, 512))


def test_state_that_nothing_makes_again():
    found = _tried(momentum, STATE, donate_argnums=(0, 1))
    assert found is not None and not found.helpful
    line = found.sentence()
    assert line.startswith("Little would help: 2.0 of 3.0 MB at the peak are parameters and optim")
    assert "20 % more time leaves 3.0 MB. What is left is to shard them over devices" in line


@pytest.mark.parametrize("plan", [False, LIMITS])
def test_analyze_compiles_with_what_could_be_donated(plan):
    found = olla_xla.analyze(momentum, *STATE, plan=plan, advice=True).remedy
    assert found is not None
    trial = found.helpful[0]
    assert trial.setting == "donate_argnums=(0, 1)"
    if plan:
        total = _total(olla_xla.plan(momentum, donate_argnums=(0, 1), **LIMITS), *STATE)
    else:
        assert trial.assigned
        total = capture(jax.jit(momentum, donate_argnums=(0, 1)).lower(*STATE)).assigned_bytes
    assert abs(trial.bytes / total - 1) <= 0.01
    assert "if the caller is done with them" in found.sentence()


def test_arguments_by_name_are_donated_by_name():
    found = olla_xla.analyze(
        jax.jit(lambda x, *, cache: (x + 1, cache.at[0].add(1.0))),
        jnp.zeros(4),
        cache=jnp.zeros((64, 1024)),
        advice=True,
    ).remedy
    assert found is not None and found.helpful[0].setting == "donate_argnames='cache'"


def test_analyze_tries_nothing_where_it_is_not_asked_to():
    assert olla_xla.analyze(momentum, *STATE).remedy is None


def test_what_recomputes_already_is_left_alone():
    arguments = jnp.zeros((4, 16, 16)), jnp.zeros((64, 16))
    plan = olla_xla.plan(scanned, time_limit=2).lower(*arguments).compile().plan
    module = xla_schedule(jax.jit(scanned).lower(*arguments))
    view = memory_view(PlannedModule(scheduled_module(module), "cpu"), "planned")
    options = PlanOptions(max_overhead=0.1)
    assert remedy(module, view, options, target="cpu", plan=plan) is None


def test_a_librarys_own_switch():
    nn = pytest.importorskip("flax.linen")
    layer = nn.Dense(8)
    params = layer.init(jax.random.key(0), jnp.zeros((2, 8)))
    module = xla_schedule(jax.jit(layer.apply).lower(params, jnp.zeros((2, 8))))
    assert by_hand(scheduled_module(module)) == "nn.remat"
    own = xla_schedule(jax.jit(scanned).lower(jnp.zeros((4, 8, 8)), jnp.zeros((2, 8))))
    assert by_hand(scheduled_module(own)) == ""


def test_the_switch_is_named_with_recomputation_alone():
    again = Trial("max_overhead=0.2", 10 << 20, False, 0.1, 0.2)
    donated = Trial("donate_argnums=0", 10 << 20, True, when="if the caller is done with it")
    found = Remedy("stacks of loops", 40 << 20, False, 50 << 20, (again,), "nn.remat")
    assert found.sentence() == (
        "What would help: 40.0 of 50.0 MB at the peak are stacks of loops; max_overhead=0.2 plans "
        "10.0 MB (predicted, 10.0 % more time); by hand: nn.remat."
    )
    assert "nn.remat" not in dataclasses.replace(found, trials=(donated,)).sentence()
