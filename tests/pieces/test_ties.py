"""What is computed twice is not compared with elements of its first copy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from olla_xla.pieces.region import compares_with_itself

RNG = np.random.default_rng(0)
X, W = (jnp.asarray(RNG.normal(size=s).astype(np.float32)) / 2 for s in ((400, 16), (16, 128)))
IDS = jnp.asarray(RNG.integers(0, 10, 400))


def segments(w, x):
    return jax.ops.segment_max(jnp.tanh(x @ w), IDS, 10).sum()


def largest(w, x):
    h = jnp.tanh(x @ w)
    return jnp.sum(h.max(0) + jnp.where(h >= h.max(0), 2 * h, 0).sum(0))


def shifted(w, x):
    h = jnp.tanh(x @ w)
    return jnp.sum(jnp.where(h - h.max(0) == 0, h, 0))


@pytest.mark.parametrize("function", [segments, largest, shifted])
@pytest.mark.parametrize("pieces", [3, 4])
def test_gradients_of_maxima(function, pieces):
    gradient = jax.value_and_grad(function, (0, 1))
    expected = jax.jit(gradient)(W, X)
    for ours in (
        olla_xla.fission(gradient, pieces=pieces),
        jax.value_and_grad(olla_xla.fission(function, pieces=pieces), (0, 1)),
    ):
        for a, b in zip(
            jax.tree.leaves(jax.jit(ours)(W, X)), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


COMPARED = {
    "with its maximum": lambda x: jnp.tanh(x) == jnp.tanh(x).max(),
    "after a difference": lambda x: jnp.sign((jnp.tanh(x) - jnp.tanh(x).min()) * 2),
    "scaled": lambda x: 2 * jnp.tanh(x) >= 2 * jnp.tanh(x).max(),
    "in a call": lambda x: jax.nn.relu(jnp.tanh(x) - jnp.tanh(x)[0]),
}
APART = {
    "shifted": lambda x: jnp.exp(jnp.tanh(x) - jnp.tanh(x).max()).sum(),
    "with a mean": lambda x: jnp.tanh(x) > jnp.tanh(x).mean(),
    "with a number": lambda x: jnp.tanh(x) > 0.5,
}


@pytest.mark.quick
@pytest.mark.parametrize("name", COMPARED | APART)
def test_comparisons_with_chosen_elements(name):
    """All but `tanh`, which runs twice, runs before and is looked at in pieces as well."""
    equations = jax.make_jaxpr((COMPARED | APART)[name])(jnp.ones(8)).jaxpr.eqns
    before = [e for e in equations if e.primitive.name != "tanh"]
    twice = {v for e in equations if e not in before for v in e.outvars}
    assert compares_with_itself(before, twice, equations) == (name in COMPARED)
