"""Small steps, and a planner that takes operands before users, for tests of planned compiles."""

import functools

import jax
import jax.numpy as jnp

from olla_xla.compile import hook, plan_store, planned
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from tests.support.drawn import normal, normals

OPTIONS = PlanOptions(time_limit=2.0, step_limit=200)


WIDTH = 64


def branches(weights, x):
    """One large temporary a branch; XLA's CPU order keeps several at once, depth-first one."""
    hidden = [jnp.tanh(x @ w) for w in weights]
    return [w * jnp.sum(h @ h.T) for w, h in zip(weights, hidden, strict=True)]


def chain(weights, x):
    """A gradient, for which depth-first order is worse than XLA's."""

    def loss(weights):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return jnp.mean(h**2)

    gradient = jax.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradient, strict=True)]


def arguments(count=6, rows=WIDTH):
    return normals(*[(WIDTH, WIDTH)] * count), normal(rows, WIDTH, seed=count)


def fresh(function, **kwargs):
    """A jitted function that shares no lowering with those of other tests."""
    return jax.jit(functools.partial(function), **kwargs)


def depth_first(module, options, *, target, xla_bytes=None, **ignored):
    """A planner that takes operands-before-users order as it stands in the module.

    It says that this saves a byte at least.
    """
    state = PlannedModule(scheduled_module(module), target)
    view, own = state.module, state.simulate().total_bytes
    orders = {c: tuple(c.instructions) for c in view.control_computations}
    total = min(state.model.simulate(orders).total_bytes, own - 1)
    return Plan(
        module=view.name,
        fingerprint=view.fingerprint,
        target=target,
        order={c.name: tuple(i.name for i in c.instructions) for c in view.control_computations},
        offsets={},
        xla_bytes=own,
        xla_predicted_bytes=own,
        predicted_bytes=total,
        peak_bytes=total,
        least_peak_bytes=total,
        lower_bound_bytes=1,
        source="depth_first",
    )


def compile_planned(lowered, **kwargs):
    store = kwargs.pop("store", plan_store.PlanStore())
    return planned.compile_planned(lowered, OPTIONS, environment="test", store=store, **kwargs)


def assert_hook_idle():
    assert not hook._hook._requests
