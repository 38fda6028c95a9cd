"""A step that scans over sharded layers, on 8 devices of this machine's CPU; run as a program.

`python -m tests.support.sharded NAME...` runs `main` of these modules of tests.support, with
"h100" among the names for cards that are not there. It prints a line of JSON for each module, and
after it one for each plan: whether it was planned, totals, stacks that went, and whether three
steps gave the same bits as jit's.
"""

import importlib
import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import olla_xla

H100 = "h100" in sys.argv
LAYERS, WIDTH, BATCH = 4, 64, 32
MESH = Mesh(np.array(jax.devices()), ("d",))


def on(x, *spec, mesh=MESH):
    """An array, sharded so."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def _block(x, w):
    w = jax.tree.map(on, w)  # gathered for the time of its layer
    h = jax.nn.gelu(on(x, "d") @ w["a"])
    return on(x + jnp.tanh(h) * h @ w["b"], "d"), None


def step(params, moments, x):
    """Momentum on weights that are sharded, as FSDP has them."""

    def loss(params):
        y, _ = jax.lax.scan(_block, x, params)
        return jnp.mean(y * y)

    return descend(loss, params, moments)


def descend(loss, params, moments):
    """One step of momentum: parameters, moments and the loss."""
    value, gradient = jax.value_and_grad(loss)(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments, value


def maker(mesh=MESH):
    """What makes arrays of random numbers, each sharded as it is asked for."""
    r = np.random.default_rng(0)

    def made(shape, *spec):
        value = r.standard_normal(shape, np.float32) * 0.1
        return jax.device_put(value, NamedSharding(mesh, P(*spec)))

    return made


def arguments():
    """Fresh ones."""
    made = maker()
    params = {
        "a": made((LAYERS, WIDTH, 4 * WIDTH), None, "d"),
        "b": made((LAYERS, 4 * WIDTH, WIDTH), None, "d"),
    }
    return params, jax.tree.map(jnp.zeros_like, params), made((BATCH, WIDTH), "d")


def _run(function, arguments):
    params, moments, x = arguments()
    values = []
    for _ in range(3):
        params, moments, value = function(params, moments, x)
        values.append(np.asarray(value))
    return [*values, *map(np.asarray, jax.tree.leaves((params, moments)))]


def compiled(step, arguments, **options):
    """A planned step whose state is donated."""
    limits = {"step_limit": 2_000, "time_limit": 30}
    planned = olla_xla.plan(step, donate_argnums=(0, 1), **limits | options)
    return planned.lower(*arguments).compile()


def tell(found, **more):
    """Prints what became of a plan, and more."""
    plan = found.plan
    told = {
        "planned": found.planned,
        "reason": found.reason,
        "xla": plan.xla_bytes,
        "predicted_xla": plan.xla_predicted_bytes,
        "assigned": plan.assigned_bytes,
        "predicted": plan.predicted_bytes,
        "stacks": plan.recomputed_residuals,
        "clones": len(plan.clones),
        "overhead": plan.overhead,
    }
    print(json.dumps(told | more))


def report(step, arguments, *plans):
    """Plans a step, as each of `plans` has its options, and tells what three runs of it give."""
    expected = _run(jax.jit(step, donate_argnums=(0, 1)), arguments)
    for options in plans:
        found = compiled(step, arguments(), **options)
        tell(found, same=all(map(np.array_equal, expected, _run(found, arguments))))


def main():
    report(step, arguments, {}, {"max_overhead": 2.0})


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name != "h100":
            print(json.dumps({"module": name}))
            importlib.import_module(f"tests.support.{name}").main()
