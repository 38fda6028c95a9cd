"""Estimates of live bytes: what a loop or a call needs inside."""

import jax
import jax.numpy as jnp
import numpy as np

from olla_xla.pieces.estimate import peaks
from olla_xla.pieces.graph import Graph

KB = 1024


def estimated(function, *shapes):
    """The most bytes that a function is said to have live besides its arguments."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return max(
        peaks([Graph(jaxpr.eqns, jaxpr.invars, jaxpr.outvars)], jaxpr.outvars, 1, np.float32)
    )


def layers(x, y):
    """Two arrays of y's size, each read twice, are there at once."""
    a, b = jnp.tanh(y @ x), jnp.sin(y @ x)
    return x + (a.T @ b + b.T @ a)


def test_what_is_live_at_once_in_a_loop_counts_together():
    y = (1024, 16)  # 64 KB; x is 1 KB

    def looped(x, y):
        return jax.lax.fori_loop(0, 3, lambda _, c: layers(c, y), x)

    once, inside = estimated(layers, (16, 16), y), estimated(looped, (16, 16), y)
    assert 3 * 64 * KB <= once <= 5 * 64 * KB
    assert abs(inside - once) <= 8 * KB


def test_what_a_call_gives_counts_once():
    def call(x):
        return jax.jit(jnp.tanh)(x)

    assert estimated(call, (1024, 16)) == estimated(jnp.tanh, (1024, 16)) == 64 * KB
