"""Loops take slices of what is moved before them from where it was."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from hlo.module import module_from_bytes
from hlo.rewrite.edit import Edit
from hlo.rewrite.sinkable import sinks
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.compile.capture import capture
from olla_xla.planner.module import plan_module
from olla_xla.problem.options import PlanOptions
from tests.support.compiles import on_h100
from tests.support.steps import assert_same

LAYERS, WIDTH = 6, 128


def _params(axis):
    r = np.random.default_rng(3)

    def made(*shape):
        value = np.moveaxis(r.normal(size=(LAYERS, *shape)).astype(np.float32) / 8, 0, axis)
        return jnp.asarray(np.ascontiguousarray(value))

    return {"a": made(WIDTH, 2 * WIDTH), "b": made(2 * WIDTH, WIDTH)}


X = jnp.asarray(np.random.default_rng(4).normal(size=(16, WIDTH)).astype(np.float32))


def _net(weights, x, dtype=jnp.float32):
    def layer(h, w):
        w = {k: a.astype(dtype) for k, a in w.items()}
        return (h + jnp.tanh(h @ w["a"]) @ w["b"]).astype(dtype), None

    return (jax.lax.scan(layer, x.astype(dtype), weights)[0].astype(jnp.float32) ** 2).mean()


def _moved(p, axis):
    return {k: jnp.moveaxis(a, axis, 0) for k, a in p.items()}


def step(p, x, axis=1, dtype=jnp.float32):
    """Plain gradient descent."""
    value, g = jax.value_and_grad(lambda p: _net(_moved(p, axis), x, dtype))(p)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), value


def also_read(p, x):
    """The moved weights themselves are an output, and are held in any case."""
    new, value = step(p, x)
    return new, value, _moved(p, 1)


def overwritten(p, x):
    """What is moved is changed in place before the loop runs."""
    p = jax.tree.map(lambda a: a * 2, p)
    moved = _moved(p, 1)
    p = jax.tree.map(lambda a: a.at[0].set(1.0).at[:, 1].add(jnp.sum(x)), p)
    return p, _net(moved, x)


def again(p, x):
    """Two loops read it, one at other places than its turns."""
    moved = _moved(p, 1)

    def one(h, k):
        w = {n: jax.lax.dynamic_index_in_dim(a, (k * 2) % 3, 0, False) for n, a in moved.items()}
        return h + jnp.tanh(h @ w["a"]) @ w["b"], None

    first = jax.lax.scan(one, x, jnp.arange(LAYERS))[0]
    return p, _net(moved, x) + first.mean()


@pytest.mark.parametrize(
    ("function", "axis", "sunk"),
    [
        (step, 1, True),
        (functools.partial(step, dtype=jnp.bfloat16), 1, True),
        (functools.partial(step, axis=2), 2, False),
        (also_read, 1, False),
        (overwritten, 1, None),
        (again, 1, None),
    ],
    ids=["plain", "narrowed", "in single elements", "also read", "overwritten", "two loops"],
)
def test_the_same_bits_and_no_copy(function, axis, sunk):
    params = _params(axis)

    def copy():
        return jax.tree.map(jnp.array, params)

    expected = jax.jit(function, donate_argnums=0)(copy(), X)
    compiled = olla_xla.plan(function, donate_argnums=0).lower(copy(), X).compile()
    assert_same(expected, compiled(copy(), X))
    plan = compiled.plan
    assert plan.assigned_bytes <= plan.xla_bytes
    if compiled.planned:
        assert plan.predicted_bytes == plan.assigned_bytes
    if sunk is not None:
        assert bool(plan.sunk) == sunk
    if sunk:
        moved = sum(a.nbytes for a in params.values())
        assert plan.xla_bytes - plan.assigned_bytes > 0.9 * moved


@pytest.mark.parametrize("function", [step, functools.partial(step, dtype=jnp.bfloat16), again])
def test_a_gpu_has_it_too(function):
    lowered = jax.jit(function, donate_argnums=0).lower(*on_h100((_params(1), X)))
    captured = capture(lowered)
    names = [s.move.name for s in sinks(module_from_bytes(captured.module))]
    data = Edit(captured.module).sink(names, "cuda").to_bytes()
    check_rewrite(captured.module, data, "cuda", loops=True)
    check_executable(data, "cuda")
    plan = plan_module(captured.module, PlanOptions(step_limit=500), target="cuda")
    if names:
        assert plan.sunk == tuple(names)
        assert plan.predicted_bytes < plan.xla_predicted_bytes
