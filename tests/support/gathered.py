"""A scan over sharded layers whose backward loop gathers the weights again; run as a program.

Prints a line of JSON for each allowance of time, as tests.support.sharded does.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.support.sharded import MESH, on, report

LAYERS, WIDTH, BATCH = 6, 64, 64


@functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
def _block(x, w):
    w = jax.tree.map(lambda a: on(a.astype(jnp.bfloat16), *(None,) * a.ndim), w)
    h = on(x, "d") @ w["a"]
    return on(x + (jnp.tanh(h * w["s"]) * h) @ w["b"], "d"), None


def step(params, moments, x):
    """Momentum on weights that are sharded, as FSDP has them, and gathered as bfloat16."""

    def loss(params):
        y, _ = jax.lax.scan(_block, x.astype(jnp.bfloat16), params)
        return jnp.mean(y.astype(jnp.float32) ** 2)

    value, gradient = jax.value_and_grad(loss)(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments, value


def arguments():
    """Fresh ones."""
    r = np.random.default_rng(0)

    def made(shape, *spec):
        value = r.standard_normal(shape, np.float32) * 0.1
        return jax.device_put(value, NamedSharding(MESH, P(*spec)))

    params = {
        "a": made((LAYERS, WIDTH, 8 * WIDTH), None, "d"),
        "s": made((LAYERS, 8 * WIDTH), None, "d"),
        "b": made((LAYERS, 8 * WIDTH, WIDTH), None, "d"),
    }
    return params, jax.tree.map(jnp.zeros_like, params), made((BATCH, WIDTH), "d")


if __name__ == "__main__":
    report(step, arguments)
