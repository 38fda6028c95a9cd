"""What XLA changes in a module that the hook hands back: source lines, memories of results."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from benchmarks.rewritten import compile_rewritten
from hlo.module import module_from_bytes
from olla_xla.compile.accounting import final_module
from tests.support.compiles import on_h100
from tests.support.plugins import H100
from tests.support.tpu import v5e

PLACES = {"cpu": lambda a: a, "h100": on_h100, "v5e": lambda a: v5e().place(a)}


def _layer(h, w):
    h = jax.nn.relu(h @ w)
    return h + jnp.tanh(h.mean(-1, keepdims=True)), None


def _step(p, x):
    def loss_of(p):
        h = jax.nn.gelu(x @ p["first"])
        h, _ = jax.lax.scan(_layer, h, p["layers"])
        h = jnp.sort(h @ p["last"], axis=0)
        return jnp.square(h).mean()

    value, gradient = jax.value_and_grad(loss_of)(p)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient), value


def _stacks(compiled):
    """(opcode, op_name, shape) -> the call stacks of all instructions that have these."""
    found = collections.defaultdict(set)
    for computation in module_from_bytes(final_module(compiled)).computations:
        for i in computation.instructions:
            if i.stack:
                found[i.opcode, i.op_name, str(i.shape)].add(i.stack)
    return found


@pytest.mark.parametrize("place", ["cpu", H100, pytest.param("v5e", marks=pytest.mark.tpu)])
def test_all_operations_keep_the_stacks_of_jit(place):
    shape = jax.ShapeDtypeStruct
    p = {"first": shape((64, 128), "float32"), "last": shape((128, 32), "float32")}
    p["layers"] = shape((4, 128, 128), "float32")
    arguments = PLACES[place]((p, shape((256, 64), "float32")))
    lowered = jax.jit(_step, donate_argnums=0).lower(*arguments)
    jits, ours = _stacks(lowered.compile()), _stacks(compile_rewritten(lowered, lambda m: m))
    assert len(jits) > 25 and jits == ours


def test_results_in_the_memory_of_the_host_stay_there():
    """XLA would leave them on the device, so its own executable runs, and a warning says so."""
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")

    def step(x):
        return sum(jnp.tanh(x[:, i : i + 1] * x) @ x.T @ x for i in range(5)) + 1

    x = np.ones((32, 32), np.float32)
    planned = olla_xla.plan(step, out_shardings=host, step_limit=200)
    with pytest.warns(olla_xla.PlanWarning, match="memory that out_shardings asks for"):
        compiled = planned.lower(x).compile()
    result = compiled(x)
    assert result.sharding.memory_kind == "pinned_host" and not compiled.planned
    assert np.array_equal(result, jax.jit(step, out_shardings=host)(x))


def test_own_places_in_xlas_order_need_no_warning():
    """That the planned order was handed back in vain does not matter to who asked for places."""
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")

    def step(w, m, x):
        gradient = jax.grad(lambda w: jnp.square(jax.nn.relu(x @ w) @ w.T).mean())(w)
        return w - 0.1 * gradient, jnp.linalg.norm(0.9 * m + gradient)

    arguments = [jnp.eye(128, 512), jnp.zeros((128, 512)), jnp.ones((64, 128))]
    planned = olla_xla.plan(step, placement="own", step_limit=200, out_shardings=host)
    compiled = planned.lower(*arguments).compile()
    assert compiled.planned and compiled.plan.placement == "own"
    results = jax.jit(step, out_shardings=host)(*arguments)
    for expected, result in zip(results, compiled(*arguments), strict=True):
        assert result.sharding.memory_kind == "pinned_host" and np.array_equal(expected, result)
