"""Each factor of each operation, by brute force: pieces run alone and put together again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from olla_xla.pieces.factors import SUM
from olla_xla.pieces.graph import Graph, spread, units_of
from olla_xla.pieces.run import Piece, run_piece

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 6, 8)).astype(np.float32)
W = RNG.normal(size=(8, 10)).astype(np.float32)
IMAGE = RNG.normal(size=(4, 6, 6, 2)).astype(np.float32)
KERNEL = RNG.normal(size=(3, 3, 2, 6)).astype(np.float32)
ROWS = RNG.integers(0, 8, (4, 6)).astype(np.int32)
KEY, KEYS = jax.random.key(0), np.asarray(jax.random.split(jax.random.PRNGKey(1), 4))
NHWC = ("NHWC", "HWIO", "NHWC")


@jax.custom_vjp
def doubled(x, w):
    return 2 * x @ w


doubled.defvjp(lambda x, w: (doubled(x, w), (x, w)), lambda r, g: (2 * g @ r[1].T, 2 * r[0].T @ g))


def convolution(x, k):
    return lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=NHWC)


def recurrence(x, w):
    return lax.scan(lambda c, row: (jnp.tanh(c + row @ w), c), x[0] @ w, x)


def loop(x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2 + c[0]), (0, x))[1]


# name -> function, arguments, (input, dimension) along which all must be cut, and where the results
# have the axis.
CASES = {
    "elementwise": (lambda x: jnp.tanh(x) + 1, [X], (0, 1), [1]),
    "keepdims": (lambda x: x - x.mean(2, keepdims=True), [X], (0, 0), [0]),
    "softmax": (lambda x: jax.nn.softmax(x), [X], (0, 1), [1]),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, -1), [X], (0, 0), [0]),
    "sum": (lambda x: x.sum((0, 2)), [X], (0, 0), [SUM]),
    "sum kept": (lambda x: x.sum((0, 2)), [X], (0, 1), [0]),
    "argmax": (lambda x: x.argmax(2), [X], (0, 1), [1]),
    "dot": (lambda x, w: x @ w, [X, W], (0, 1), [1]),
    "dot free right": (lambda x, w: x @ w, [X, W], (1, 1), [2]),
    "dot contracted": (lambda x, w: x @ w, [X, W], (1, 0), [SUM]),
    "dot batch": (lambda x: jnp.einsum("bij,bkj->bik", x, x * 2), [X], (0, 0), [0]),
    "transpose": (lambda x: x.transpose(2, 0, 1), [X], (0, 2), [0]),
    "merged": (lambda x: x.reshape(24, 8), [X], (0, 0), [0]),
    "split": (lambda x: x.reshape(24, 8).reshape(2, 12, 8), [X], (0, 0), [0]),
    "split inside": (lambda x: x.reshape(4, 6, 2, 4), [X], (0, 2), [2]),
    "broadcast": (lambda x: jnp.broadcast_to(x[None], (3, *x.shape)), [X], (0, 1), [2]),
    "convolution": (convolution, [IMAGE, KERNEL], (0, 0), [0]),
    "convolution features": (convolution, [IMAGE, KERNEL], (1, 3), [3]),
    "convolution contracted": (convolution, [IMAGE, KERNEL], (1, 2), [SUM]),
    "pool": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        [IMAGE],
        (0, 3),
        [3],
    ),
    "look up": (lambda t, i: t[i], [W, ROWS], (1, 1), [1]),
    "look up columns": (lambda t, i: t[i], [W, ROWS], (0, 1), [2]),
    "look up in the axis": (lambda t, i: jnp.asarray(t)[i], [W, ROWS], (0, 0), [SUM]),
    "look up in two axes": (
        lambda x, i: jnp.asarray(x)[jnp.arange(4)[:, None], jnp.arange(6), i],
        [X, ROWS],
        (0, 2),
        [SUM],
    ),
    "take along": (lambda x, i: jnp.take_along_axis(x, i[..., None], 2), [X, ROWS], (0, 1), [1]),
    "table's gradient": (
        lambda t, i: jax.grad(lambda t: (t[i] ** 2).sum())(t),
        [W, ROWS],
        (1, 0),
        [SUM],
    ),
    "rows added": (lambda t, i: jnp.asarray(t).at[i].add(3.0), [W, ROWS], (0, 0), [0]),
    "added within rows": (
        lambda x, i: (
            jnp.asarray(x).at[jnp.arange(4)[:, None], jnp.arange(6), i].add(1.0, mode="drop")
        ),
        [X, ROWS - 2],
        (0, 2),
        [2],
    ),
    "look up in rows": (
        lambda x, i: jnp.asarray(x)[jnp.arange(4), i[:, 0], i[:, 1] - 2],
        [X, ROWS],
        (0, 0),
        [0],
    ),
    "look up in other rows": (
        lambda x, i: jnp.asarray(x)[jnp.arange(4) ^ 1, i[:, 0]],
        [X, ROWS],
        (0, 0),
        [SUM],
    ),
    "written in rows": (
        lambda x, i: (
            jnp.asarray(x)
            .at[jnp.arange(4)[:, None], i - 2, jnp.arange(8)[None, :6]]
            .set(1.0, mode="drop")
        ),
        [X, ROWS],
        (0, 0),
        [0],
    ),
    "added in rows of a loop": (
        lambda x, i: lax.fori_loop(
            0, 3, lambda k, x: x.at[jnp.arange(4)[:, None], jnp.arange(6), i + k].add(x.max(2)), x
        ),
        [X, ROWS - 3],
        (0, 1),
        [1],
    ),
    "random": (lambda x: x + jax.random.normal(KEY, x.shape), [X], (0, 1), [1]),
    "random by rows": (
        lambda x, d: (
            x[..., 0]
            + jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, 3), (6,)))(
                jax.random.wrap_key_data(d)
            )
        ),
        [X, KEYS],
        (0, 0),
        [0],
    ),
    "keys of rows": (
        lambda i: jax.vmap(lambda i: jax.random.bits(jax.random.split(jax.random.key(i))[1]))(i),
        [ROWS[0]],
        (0, 0),
        [0],
    ),
    "bits": (lambda x: lax.bitcast_convert_type(x, jnp.int32), [X], (0, 2), [2]),
    "written at indices": (
        lambda x, i: jnp.asarray(x).at[:, i[0]].set(2.0, mode="drop"),
        [X, ROWS],
        (0, 1),
        [1],
    ),
    "written rows": (lambda x: jnp.asarray(x).at[:, 2].set(0.0), [X], (0, 0), [0]),
    "slice": (lambda x: x[:, 1:3], [X], (0, 2), [2]),
    "pad": (lambda x: jnp.pad(x, ((0, 0), (1, 1), (0, 0))), [X], (0, 0), [0]),
    "concatenate": (lambda x: jnp.concatenate([x, 2 * x], 1), [X], (0, 2), [2]),
    "dynamic slice": (lambda x: lax.dynamic_slice_in_dim(x, 1, 2, 1), [X], (0, 0), [0]),
    "cumsum": (lambda x: jnp.cumsum(x, 1), [X], (0, 0), [0]),
    "sort": (lambda x: jnp.sort(x, 1), [X], (0, 2), [2]),
    "top_k": (lambda x: lax.top_k(x, 2), [X], (0, 1), [1, 1]),
    "stack": (lambda x: jnp.stack([x, 2 * x], 1), [X], (0, 0), [0]),
    "stack before": (lambda x: jnp.stack([x, 2 * x], 1), [X], (0, 2), [3]),
    "unstack": (lambda x: jnp.unstack(x, axis=1), [X], (0, 2), [1] * 6),
    "unstack after": (lambda x: jnp.unstack(x, axis=1), [X], (0, 0), [0] * 6),
    "tile": (lambda x: jnp.tile(x, (1, 2, 1)), [X], (0, 2), [2]),
    "flip": (lambda x: jnp.flip(x, 1), [X], (0, 0), [0]),
    "iota": (lambda x: x + lax.broadcasted_iota(jnp.float32, x.shape, 1), [X], (0, 1), [1]),
    "causal": (lambda x: jnp.where(jnp.tril(jnp.ones((6, 8), bool)), x, 0), [X], (0, 1), [1]),
    "checkpoint": (jax.checkpoint(lambda x, w: jnp.sin(x @ w)), [X, W], (0, 0), [0]),
    "relu": (jax.nn.relu, [X], (0, 2), [2]),
    "custom_vjp": (doubled, [X[0], W], (0, 0), [0]),
    "cond": (lambda x, i: lax.cond(i[0, 0] > 3, jnp.sin, jnp.cos, x), [X, ROWS], (0, 1), [1]),
    "scan": (recurrence, [X, W], (0, 1), [0, 1]),
    "map": (lambda x: lax.map(lambda row: jnp.tanh(row).sum(0), x), [X], (0, 0), [0]),
    "while": (loop, [X], (0, 1), [1]),
    "fft": (lambda x: jnp.fft.fft(x).real, [X], (0, 1), [1]),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.mT + 9 * jnp.eye(6)), [X], (0, 0), [0]),
}


def cut(function, values, seed):
    """The whole function cut from one of its inputs, and its graph."""
    jaxpr = jax.make_jaxpr(function)(*values)
    graph = Graph.of(jaxpr)
    v = jaxpr.jaxpr.invars[seed[0]]
    s = spread(graph, {v: seed[1]})
    return graph, s, dict(zip(graph.inputs, values, strict=True)) | graph.constants


@pytest.mark.parametrize("case", CASES)
def test_pieces_make_the_whole(case):
    function, values, seed, where = CASES[case]
    graph, s, given = cut(function, values, seed)
    assert not s.blocked
    assert [s.cut[v] for v in graph.outputs] == where
    units = units_of(s.chosen, graph.equations)
    assert units >= 2
    count = units // 2
    parts = []
    for start in range(0, units, count):
        piece = Piece(units, count, start)
        pieces = {}
        for v, d in s.cut.items():
            if v in given and d != SUM:
                size = piece.size(v.aval.shape[d])
                first = v.aval.shape[d] // units * start
                pieces[v] = lax.slice_in_dim(jnp.asarray(given[v]), first, first + size, axis=d)
        # What is cut is not given whole.
        whole = {v: x for v, x in given.items() if v not in pieces}
        parts.append(run_piece(graph.equations, s.chosen, whole, pieces, piece)[1])
    whole = jax.tree.leaves(function(*map(jnp.asarray, values)))
    for v, d, expected in zip(graph.outputs, where, whole, strict=True):
        arrays = [np.asarray(p[v]) for p in parts]
        made = sum(arrays) if d == SUM else np.concatenate(arrays, d)
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


MIXING = {
    "sort": (lambda x: jnp.sort(x, 0), [X], (0, 0)),
    "cumsum": (lambda x: jnp.cumsum(x, 0), [X], (0, 0)),
    "rev": (lambda x: jnp.flip(x, 0), [X], (0, 0)),
    "slice": (lambda x: x[1:], [X], (0, 0)),
    "concatenate": (lambda x: jnp.concatenate([x, x], 0), [X], (0, 0)),
    "pad": (lambda x: jnp.pad(x, ((1, 1), (0, 0), (0, 0))), [X], (0, 0)),
    "unstack": (lambda x: jnp.unstack(x), [X], (0, 0)),
    "scan": (recurrence, [X, W], (0, 0)),
    "while": (
        lambda x: lax.while_loop(lambda x: x.sum() < 9, lambda x: x * x + 1, x),
        [X],
        (0, 1),
    ),
    "cond": (lambda x: lax.cond(True, lambda x: x + x.sum(0), jnp.cos, x), [X], (0, 0)),
    "reshape": (lambda x: x.reshape(24, 8), [X], (0, 1)),
    "conv_general_dilated": (convolution, [IMAGE, KERNEL], (0, 1)),
    "fft": (lambda x: jnp.fft.fft(x).real, [X], (0, 2)),
    "cholesky": (lambda x: lax.linalg.cholesky(x, symmetrize_input=False), [X[:, :, :6]], (0, 2)),
    "dynamic_slice": (lambda x: lax.dynamic_slice_in_dim(x, 1, 2, 1), [X], (0, 1)),
    "gather": (lambda t, i: jnp.asarray(t).at[i].get(mode="fill"), [W, ROWS], (0, 0)),
    "top_k": (lambda x: lax.top_k(x, 2), [X], (0, 2)),
    "custom_jvp_call": (jax.custom_jvp(lambda x: x - x.mean(0)), [X], (0, 0)),
}


@pytest.mark.parametrize("case", MIXING)
def test_what_mixes_is_not_cut(case):
    function, values, seed = MIXING[case]
    if case == "custom_jvp_call":
        function.defjvp(lambda x, t: (function(*x), t[0]))
    graph, s, _ = cut(function, values, seed)
    names = {graph.equations[b.equation].primitive.name for b in s.blocked}
    assert case in names


def test_a_rule_that_mixes_forbids_the_cut():
    """The function works row by row; the rule divides by the mean over rows."""

    @jax.custom_jvp
    def f(x):
        return x * x

    @f.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return f(x), 2 * x * t / jnp.abs(x).mean(0)

    _, s, _ = cut(f, [X], (0, 0))
    assert s.blocked
    _, s, _ = cut(f, [X], (0, 1))
    assert not s.blocked
