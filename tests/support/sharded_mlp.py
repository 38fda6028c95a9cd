"""Plans an MLP whose weights are split over two devices, and runs it: a line of JSON."""

import json
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import olla_xla

WIDTH, LAYERS, BATCH = 192, 3, 32


def loss(params, x):
    for a, b in params:
        h = jax.nn.gelu(x @ a)
        x = x + (h * jnp.tanh(h)) @ b
    return (x**2).mean()


def step(params, moments, x):
    value, gradients = jax.value_and_grad(loss)(params, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, moments), moments, value


def arguments():
    split = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d", None))
    rng = np.random.default_rng(0)

    def made(*shape):
        return jax.device_put(rng.normal(size=shape).astype(np.float32) / shape[0], split)

    params = [(made(WIDTH, 4 * WIDTH), made(4 * WIDTH, WIDTH)) for _ in range(LAYERS)]
    return params, jax.tree.map(jnp.zeros_like, params), made(BATCH, WIDTH)


def main():
    expected = jax.jit(step, donate_argnums=(0, 1))(*arguments())
    planned = olla_xla.plan(step, donate_argnums=(0, 1), step_limit=2_000, time_limit=30)
    compiled = planned.lower(*arguments()).compile()
    found, plan = compiled(*arguments()), compiled.plan
    same = jax.tree.map(np.array_equal, expected, found)
    print(
        json.dumps(
            {
                "planned": compiled.planned,
                "reason": compiled.reason,
                "xla": plan.xla_bytes,
                "predicted_xla": plan.xla_predicted_bytes,
                "assigned": plan.assigned_bytes,
                "predicted": plan.predicted_bytes,
                "same": all(jax.tree.leaves(same)),
            }
        )
    )


if __name__ == "__main__":
    main()
