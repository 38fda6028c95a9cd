"""Plans an MLP whose weights are split over two devices, and runs it (tests.support.sharded)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tests.support import sharded

WIDTH, LAYERS, BATCH = 192, 3, 32


def step(params, moments, x):
    def loss(params):
        y = x
        for a, b in params:
            h = jax.nn.gelu(y @ a)
            y = y + (h * jnp.tanh(h)) @ b
        return (y**2).mean()

    return sharded.descend(loss, params, moments)


def arguments():
    make = sharded.maker(Mesh(np.array(jax.devices()[:2]), ("d",)))
    params = [(make((WIDTH, 4 * WIDTH), "d"), make((4 * WIDTH, WIDTH), "d")) for _ in range(LAYERS)]
    return params, jax.tree.map(jnp.zeros_like, params), make((BATCH, WIDTH), "d")


def main():
    sharded.report(step, arguments, {})
