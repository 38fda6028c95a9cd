"""What would help where an order does not: the remedy that is named, tried, gives its figure."""

import jax
import jax.numpy as jnp

import olla_xla
from olla_xla.cli.report.remedies import remedy_line
from olla_xla.compile.capture import capture
from olla_xla.memory.analysis.category import Category
from olla_xla.problem.options import PlanOptions
from olla_xla.tools.remedy import remedy

OPTIONS = PlanOptions(time_limit=5, step_limit=2000)


def _tried(step, arguments, **options):
    jitted = jax.jit(step, **options)
    planned = olla_xla.plan(jitted, time_limit=5, step_limit=2000)
    plan = planned.lower(*arguments).compile().plan
    module = capture(jitted.lower(*arguments)).module
    return remedy(module, module, plan, OPTIONS)


def body(h, w):
    return jnp.tanh(jnp.tanh(h @ w) @ w.T) + h, None


def scanned(w, x):
    def loss(w):
        return (jax.lax.scan(body, x, w)[0] ** 2).mean()

    return w - jax.grad(loss)(w)


def test_scan_residuals():
    arguments = jnp.zeros((16, 64, 64)), jnp.zeros((2048, 64))
    found = _tried(scanned, arguments, donate_argnums=0)
    assert found is not None and found.helps and found.what == Category.STACKS
    again = olla_xla.plan(
        scanned, donate_argnums=0, max_overhead=found.max_overhead, time_limit=5, step_limit=2000
    )
    total = again.lower(*arguments).compile().plan.assigned_bytes
    assert abs(found.bytes / total - 1) <= 0.05
    line = remedy_line(found)
    assert "stacks of loops; --max_overhead=0.2 plans" in line and "\n" not in line


def test_state_that_nothing_makes_again():
    def step(w, m, x):
        m = 0.9 * m + jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
        return w - m, m

    arguments = jnp.zeros((512, 512)), jnp.zeros((512, 512)), jnp.zeros((8, 512))
    found = _tried(step, arguments, donate_argnums=(0, 1))
    assert found is not None and not found.helps
    assert "shard them over devices" in remedy_line(found)


def test_what_recomputes_already_is_left_alone():
    arguments = jnp.zeros((4, 16, 16)), jnp.zeros((64, 16))
    plan = olla_xla.plan(scanned, time_limit=2).lower(*arguments).compile().plan
    module = capture(jax.jit(scanned).lower(*arguments)).module
    assert remedy(module, module, plan, PlanOptions(max_overhead=0.1)) is None
