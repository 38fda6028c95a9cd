"""A train step over a scan of layers of four products, whose residuals host memory can hold."""

import jax
import jax.numpy as jnp


def layer(h, w):
    x = h
    for k in "abcd":
        x = jnp.tanh(x @ w[k])
    return h + x, None


def step_of(layer):
    def step(w, x):
        g = jax.grad(lambda w: jnp.square(jax.lax.scan(layer, x, w)[0]).mean())(w)
        return jax.tree.map(lambda a, b: a - b, w, g)

    return step


step = step_of(layer)


def shapes(width, rows):
    weights = {k: jax.ShapeDtypeStruct((8, width, width), "bfloat16") for k in "abcd"}
    return weights, jax.ShapeDtypeStruct((rows, width), "bfloat16")
