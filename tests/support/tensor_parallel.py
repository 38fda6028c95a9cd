"""A scan over layers whose activations devices exchange in it.

Two by four devices: features are split over "m", as matrices are (tensor parallelism), examples and
weights over "d" (FSDP). A norm sums over all features, its result is gathered, and what the second
matrix gives is summed and scattered; weights are gathered as bfloat16. Where it is "bare", what is
gathered needs no sum, and the backward loop gathers it again as well.

It is planned without and with collectives that run again; for cards that are not there also "bare".
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from olla_xla import targets
from tests.support import sharded

LAYERS, WIDTH, BATCH, LENGTH = 6, 64, 8, 32
DEVICES = targets.target("h100", 8).devices if sharded.H100 else jax.devices()
MESH = Mesh(np.array(DEVICES).reshape(2, 4), ("m", "d"))
SCALE = 16 if sharded.H100 else 1


on = functools.partial(sharded.on, mesh=MESH)


def _norm(x):
    h = x.astype(jnp.float32)
    return (h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6)).astype(x.dtype)


@functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable, static_argnums=2)
def _block(x, w, bare):
    w = jax.tree.map(lambda a: a.astype(jnp.bfloat16), w)
    h = jnp.tanh(x) if bare else _norm(x)
    h = on(h, "d", None, None) @ on(w["a"], None, "m")
    h = jnp.tanh(h) * h
    return on(x + on(h @ on(w["b"], "m", None), "d", None, "m"), "d", None, "m"), None


def step(params, moments, x, bare=False):
    """Momentum."""

    def loss(params):
        def body(x, w):
            return _block(x, w, bare)

        y, _ = jax.lax.scan(body, on(x.astype(jnp.bfloat16), "d", None, "m"), params)
        return jnp.mean(y.astype(jnp.float32) ** 2)

    return sharded.descend(loss, params, moments)


def shapes():
    """(shape, sharding) of the weights, and of the batch."""
    width = SCALE * WIDTH
    return {
        "a": ((LAYERS, width, 4 * width), (None, "d", "m")),
        "b": ((LAYERS, 4 * width, width), (None, "m", "d")),
    }, ((BATCH, SCALE * LENGTH, width), ("d", None, "m"))


def arguments():
    """Fresh ones."""
    made, (weights, (batch, spec)) = sharded.maker(MESH), shapes()
    params = {name: made(shape, *spec) for name, (shape, spec) in weights.items()}
    return params, jax.tree.map(jnp.zeros_like, params), made(batch, *spec)


def _compiled_only():
    def made(shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))

    weights, batch = shapes()
    params = {name: made(*weight) for name, weight in weights.items()}
    for bare, collectives in ((False, False), (False, True), (True, False)):
        given, options = functools.partial(step, bare=bare), {"collectives": collectives}
        sharded.tell(
            sharded.compiled(given, (params, params, made(*batch)), max_overhead=1.0, **options)
        )


def main():
    if sharded.H100:
        _compiled_only()
    else:
        kept, gone = ({"max_overhead": 2.0, "collectives": again} for again in (False, True))
        sharded.report(step, arguments, kept, gone)
