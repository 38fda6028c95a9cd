"""Random functions with an axis that can be cut, and with one that mixes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import olla_xla
from olla_xla.errors import InputError

ROWS, WIDTH = 12, 8


def gathered(x, w):
    index = jnp.argmax(x, 1)
    return x + w[index % WIDTH]


def by_layer(x, w):
    return lax.scan(lambda c, row: (jnp.tanh(c + row), None), x, w)[0]


def by_feature(x, w):
    del w
    return lax.scan(lambda c, column: (c + column, jnp.sin(c)), x[:, 0] * 0, x.T)[1].T


def heads(x, w):
    split = x.reshape(-1, 2, WIDTH // 2)
    scores = jnp.einsum("nhd,nkd->nhk", split, split)
    return jnp.einsum("nhk,nkd->nhd", jax.nn.softmax(scores), split).reshape(x.shape) @ w


# Row by row.
CUTTABLE = {
    "matmul": lambda x, w: x @ w,
    "tanh": lambda x, w: jnp.tanh(x) * w[0],
    "relu": lambda x, w: jax.nn.relu(x),
    "gelu": lambda x, w: jax.jit(jax.nn.gelu)(x),
    "softmax": lambda x, w: jax.nn.softmax(x),
    "norm": lambda x, w: (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1)[:, None] + 1e-3),
    "gather": gathered,
    "take": lambda x, w: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "cumsum": lambda x, w: jnp.cumsum(x, 1) / WIDTH,
    "max": lambda x, w: x - lax.stop_gradient(x.max(1, keepdims=True)),
    "rolled": lambda x, w: jnp.roll(x, 1, 1),
    "layers": by_layer,
    "features": by_feature,
    "heads": heads,
    "checkpoint": jax.checkpoint(lambda x, w: jnp.sin(x @ w)),
    "cond": lambda x, w: lax.cond(w[0, 0] > 0, jnp.sin, jnp.cos, x),
    "doubled": lambda x, w: jnp.concatenate([x, x], 1)[:, ::2],
    "position": lambda x, w: x * (lax.broadcasted_iota(jnp.float32, x.shape, 0) / ROWS),
    "map": lambda x, w: lax.map(lambda row: row @ w, x),
}
# Across rows.
MIXING = {
    "sort": lambda x, w: jnp.sort(x, 0),
    "cumsum": lambda x, w: jnp.cumsum(x, 0) / ROWS,
    "rev": lambda x, w: jnp.flip(x, 0),
    "batch norm": lambda x, w: x - x.mean(0),
    "scan": lambda x, w: lax.scan(lambda c, row: (jnp.tanh(c + row),) * 2, x[0], x)[1],
    "softmax": lambda x, w: jax.nn.softmax(x, 0),
    "attention": lambda x, w: jax.nn.softmax(x @ x.T) @ x,
    "rolled": lambda x, w: jnp.roll(x, 1, 0),
}


def function_of(names):
    def function(x, w, wide):
        for name in names:
            x = ({**CUTTABLE, **MIXING_BY_NAME})[name](x, w)
        large = jnp.tanh(x @ wide)
        return jnp.mean(large**2), (large * 2).sum(0), large.max(1)

    return function


MIXING_BY_NAME = {f"mixing {name}": f for name, f in MIXING.items()}


def arguments(seed):
    rng = np.random.default_rng(seed)
    shapes = (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH, 64)
    return [jnp.asarray(rng.normal(size=s).astype(np.float32)) * 0.7 for s in shapes]


def check(function, ours, args):
    """Results and the gradient in all arguments, within what sums in another order may do."""

    def loss(f):
        return lambda *args: sum(jnp.sum(r) for r in f(*args))

    def both(f):
        return f(*args), jax.grad(loss(f), (0, 1, 2))(*args)

    made, expected = jax.jit(lambda: both(ours))(), jax.jit(lambda: both(function))()
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * (1 + np.abs(b).max()))


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(CUTTABLE)), min_size=1, max_size=5),
    st.integers(2, ROWS),
    st.booleans(),
    st.integers(0, 9),
)
def test_rows_are_cut(names, pieces, is_given, seed):
    function, args = function_of(names), arguments(seed)
    axis = (0, None, None) if is_given else None
    ours = olla_xla.fission(function, axis=axis, pieces=pieces if is_given else 2)
    check(function, ours, args)
    if is_given:
        assert ours.explain(*args).regions[0].axis.startswith("dimension 0 of")


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(CUTTABLE)), max_size=2),
    st.sampled_from(sorted(MIXING_BY_NAME)),
    st.lists(st.sampled_from(sorted(CUTTABLE)), max_size=2),
    st.booleans(),
    st.integers(0, 9),
)
def test_what_mixes_rows_is_never_cut(before, mixing, after, is_given, seed):
    function, args = function_of([*before, mixing, *after]), arguments(seed)
    axis = (0, None, None) if is_given else None
    ours = olla_xla.fission(function, axis=axis, pieces=2)
    try:
        ours.explain(*args)
    except InputError as error:
        assert re.search(
            r": \w+ at \w+\.py:\d+ (mixes (it|dim)|needs the whole of dim)", str(error)
        )
        return
    check(function, ours, args)
