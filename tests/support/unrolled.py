"""Layers one after the other, whose weights the backward pass gathers again.

For cards that are not there it tells how many arrays are gathered.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from olla_xla import targets
from tests.support import sharded

DEVICES = targets.target("h100", 8).devices if sharded.H100 else jax.devices()
MESH = Mesh(np.array(DEVICES), ("d",))
LAYERS, WIDTH, BATCH = (8, 1024, 32768) if sharded.H100 else (6, 128, 6144)


on = functools.partial(sharded.on, mesh=MESH)


def _block(x, w):
    w = {name: on(a.astype(x.dtype)) for name, a in w.items()}
    h = jnp.tanh(on(x, "d") @ w["a"])
    return on(x + jnp.sin(h) @ w["b"], "d")


def step(params, moments, x):
    """Momentum on layers of which the products are kept, as MaxText's `minimal` has them."""
    block = jax.checkpoint(_block, policy=jax.checkpoint_policies.dots_saveable)

    def loss(params):
        y = x.astype(jnp.bfloat16) if sharded.H100 else x
        for w in params:
            y = block(y, w)
        return jnp.mean(y.astype(jnp.float32) ** 2)

    value, gradient = jax.value_and_grad(loss)(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + on(g, "d"), moments, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments, value


def arguments(made):
    """Of the step, each array by `made`."""
    shapes = {"a": (WIDTH, 4 * WIDTH), "b": (4 * WIDTH, WIDTH)}
    params = [{name: made(w, "d") for name, w in shapes.items()} for _ in range(LAYERS)]
    moments = [{name: made(w, "d") for name, w in shapes.items()} for _ in range(LAYERS)]
    return params, moments, made((BATCH, WIDTH), "d")


def _shape(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))


def _compiled_only():
    found = sharded.compiled(step, arguments(_shape), max_overhead=0.1, time_limit=None)
    made = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments(_shape)).compile()
    plan, gathers = found.plan, [str(c.as_text()).count(" all-gather(") for c in (found, made)]
    slower = plan.path_seconds / plan.xla_path_seconds - 1
    sharded.tell(found, slower=slower, gathers=gathers[0], gathers_of_xla=gathers[1])


def main():
    if sharded.H100:
        _compiled_only()
    else:
        sharded.report(step, lambda: arguments(sharded.maker()), {"max_overhead": 2.0})
