"""A scan over sharded layers whose backward loop gathers the weights again."""

import functools

import jax
import jax.numpy as jnp

from tests.support.sharded import descend, maker, on, report

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

    return descend(loss, params, moments)


def arguments():
    """Fresh ones."""
    made = maker()
    params = {
        "a": made((LAYERS, WIDTH, 8 * WIDTH), None, "d"),
        "s": made((LAYERS, 8 * WIDTH), None, "d"),
        "b": made((LAYERS, 8 * WIDTH, WIDTH), None, "d"),
    }
    return params, jax.tree.map(jnp.zeros_like, params), made((BATCH, WIDTH), "d")


def main():
    report(step, arguments, {"max_overhead": 2.0})
