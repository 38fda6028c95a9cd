"""Scans over layers are cut along the batch, whatever linear is done to weights in their bodies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import olla_xla
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.pieces.graph import Graph, spread
from tests.support.drawn import normal

B, S, D, L = 8, 4, 6, 3
ARGUMENTS = (normal(L, D, D, scale=0.5), normal(L, D, seed=1), normal(B, S, D, seed=2))
"""Weights, biases and activations."""

WEIGHTS = {
    "scaled": lambda w: w * 0.5,
    "divided": lambda w: w / 3,
    "transposed": lambda w: w.T,
    "reversed": lambda w: w[::-1],
    "concatenated and split": lambda w: sum(jnp.split(jnp.concatenate([w, 2 * w], 1), 2, 1)),
    "padded": lambda w: jnp.pad(w[: D // 2], ((0, D // 2), (0, 0))),
    "by heads": lambda w: w.reshape(D, 2, D // 2).swapaxes(1, 2).reshape(D, D),
    "summed up": lambda w: jnp.cumsum(w, 0),
    "rows looked up": lambda w: w[jnp.array([3, 1, 4, 1, 5, 2])],
    "masked": lambda w: jnp.where(jnp.tril(jnp.ones((D, D), bool)), w, 0.0),
    "squared": lambda w: w * w,
    "normalized": lambda w: w / jnp.linalg.norm(w),
    "written to": lambda w: jnp.zeros((2 * D, D)).at[D:].set(w)[D:],
    "in half precision": lambda w: w.astype(jnp.bfloat16).astype(jnp.float32),
    "multiplied": lambda w: w @ jnp.eye(D)[::-1],
}


KEY = jax.random.key(0)


def at(x):
    return x[..., 0].argmax(-1)


def scanned(body):
    def loss(w, b, x):
        return (jax.lax.scan(lambda x, p: (body(x, *p), None), x, (w, b))[0] ** 2).sum()

    return jax.value_and_grad(loss, argnums=(0, 1))


def check(function, tolerance=1e-4):
    cut = olla_xla.fission(function, pieces=B)
    (region,) = cut.explain(*ARGUMENTS).regions
    assert region.units == B
    made, expected = jax.jit(cut)(*ARGUMENTS), jax.jit(function)(*ARGUMENTS)
    for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())
    return cut.explain(*ARGUMENTS)


BODIES = {
    "a bias": lambda x, w, b: jnp.tanh(x @ w + b),
    "a bias as a product": lambda x, w, b: jnp.tanh(x @ w + jnp.ones((B, S, 1)) @ b[None]),
    "a norm's scale": lambda x, w, b: jnp.tanh((x - x.mean(-1, keepdims=True)) * b @ w),
    "rematerialised": jax.checkpoint(lambda x, w, b: jnp.tanh(x @ w + b)),
    "a branch": lambda x, w, b: jax.lax.cond(b[0] > 0, jnp.tanh, jnp.sin, x @ w) + b,
    "dropout by a key of the layer": lambda x, w, b: jnp.where(
        jax.random.bernoulli(jax.random.fold_in(KEY, (100 * b[0]).astype(int)), 0.9, x.shape),
        jnp.tanh(x @ w + b),
        0.0,
    ),
    "an element of each row": lambda x, w, b: x.at[jnp.arange(B), at(x)].add(
        jnp.tanh(x @ w + b)[jnp.arange(B), at(x)]
    ),
    "a scan of one weight": lambda x, w, b: jax.lax.scan(
        lambda h, _: (jnp.tanh(h @ w + b), None), x, length=3
    )[0],
}


@pytest.mark.parametrize("name", BODIES)
def test_layers_are_cut_along_the_batch(name):
    found = check(scanned(BODIES[name]))
    assert found.largest_after <= found.largest_before / (B / 2), "activations of all layers"


@settings(max_examples=3)
@given(st.lists(st.sampled_from(sorted(WEIGHTS)), min_size=8, unique=True))
def test_whatever_linear_is_done_to_weights(names):
    def body(x, w, b):
        for name in names:
            w = WEIGHTS[name](w)
        return jnp.tanh(x @ w + b)

    check(scanned(body), 2e-2 if "in half precision" in names else 1e-3)


HEADS, EACH = 4, 4


def rotated(x):
    angles = jnp.arange(x.shape[1])[:, None] * 10.0 ** -jnp.arange(EACH // 2)
    (a, b), cos, sin = jnp.split(x, 2, -1), jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def transformer(dtype):
    """Norms, biases, casts, rotary embeddings, grouped attention, and dropout by keys of layers."""

    def normed(x, scale):
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        wide = (wide - wide.mean(-1, keepdims=True)) / jnp.sqrt(wide.var(-1, keepdims=True) + 1e-3)
        return (wide * scale[0] + scale[1]).astype(dtype)

    def dropped(x, key):
        return jnp.where(jax.random.bernoulli(key, jnp.float32(0.9), x.shape), x, 0)

    def layer(x, given):
        (scales, qkv, bias, out, up, down), key = given
        made = (normed(x, scales[0]) @ qkv.astype(dtype) + bias.astype(dtype)).reshape(
            *x.shape[:2], 2 * HEADS, EACH
        )
        q, k, v = jnp.split(made, (HEADS, HEADS + HEADS // 2), 2)
        q = rotated(q).reshape(*q.shape[:2], HEADS // 2, 2, EACH)
        scores = jnp.einsum("bsghd,btgd->bghst", q, rotated(k))
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
        mixed = jnp.einsum("bghst,btgd->bsghd", weights, v).reshape(x.shape)
        x = x + dropped(mixed @ out.astype(dtype), jax.random.fold_in(key, 0))
        hidden = jax.nn.gelu(normed(x, scales[1]) @ up.astype(dtype))
        return x + dropped(hidden @ down.astype(dtype), jax.random.fold_in(key, 1)), None

    def loss(w, x):
        keys = jax.random.split(KEY, len(w[0]))
        return (jax.lax.scan(layer, x.astype(dtype), (w, keys))[0] ** 2).mean()

    return jax.value_and_grad(loss)


def accumulated(function, pieces):
    def by_hand(w, x):
        def body(total, part):
            return jax.tree.map(jnp.add, total, function(w, part)), None

        zeros = jnp.float32(0), jax.tree.map(jnp.zeros_like, w)
        return jax.lax.scan(body, zeros, x.reshape(pieces, -1, *x.shape[1:]))[0]

    return by_hand


def test_a_transformer_takes_no_more_than_accumulation_by_hand():
    d, layers, batch = HEADS * EACH, 4, 16
    shapes = (2, 2, d), (d, 2 * d), (2 * d,), (d, d), (d, 4 * d), (4 * d, d)
    w = [normal(layers, *s, scale=0.3, seed=k) for k, s in enumerate(shapes)]
    x = normal(batch, 32, d, seed=9)
    function = transformer(jnp.float32)
    with jax.enable_x64(True):
        wide = [a.astype(jnp.float64) for a in w]
        made = jax.jit(transformer(jnp.float64))(wide, x.astype(jnp.float64))
        exact = [np.asarray(a) for a in jax.tree.leaves(made)]
    for pieces in (2, 16):
        cut = olla_xla.fission(function, pieces=pieces)
        compiled, hand = (
            jax.jit(f).lower(w, x).compile() for f in (cut, accumulated(function, pieces))
        )
        assert assigned_bytes(compiled) < 1.05 * assigned_bytes(hand)
        for a, b in zip(jax.tree.leaves(compiled(w, x)), exact, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())
    narrow = olla_xla.fission(transformer(jnp.bfloat16), pieces=16)
    for a, b in zip(jax.tree.leaves(jax.jit(narrow)(w, x)), exact, strict=True):
        assert np.linalg.norm(np.asarray(a) - b) < 0.05 * np.linalg.norm(b)


def test_masks_are_cut_beside_weights_that_are_whole():
    """Neither depends on what the scan carries, so other scans make them: weights in their own."""

    def body(x, w, b):
        keys = jax.random.split(jax.random.fold_in(KEY, (100 * b[0]).astype(int)))
        masks = [jax.random.bernoulli(key, 0.9, x.shape) for key in keys]
        x = jnp.where(masks[0], jnp.tanh(x @ (w * 0.5)), 0.0)
        return jnp.where(masks[1], jnp.tanh(x @ (w * 2)), 0.0)

    graph = Graph.of(jax.make_jaxpr(scanned(body))(*ARGUMENTS))
    found = spread(graph, {graph.inputs[2]: 0})
    names = [graph.equations[b.equation].primitive.name for b in found.blocked]
    assert found.chosen and "scan" not in names


def test_recurrent_weights_are_summed_in_what_the_loop_carries():
    def loss(w, b, x):
        def cell(h, row):
            gate = jax.nn.sigmoid(h @ w[0] + row @ w[1] + b[0])
            h = gate * h + (1 - gate) * jnp.tanh((h * gate) @ w[2] + b[1])
            return h, h

        return (jax.lax.scan(cell, jnp.zeros((B, D)), x.swapaxes(0, 1))[1] ** 2).mean()

    check(jax.value_and_grad(loss, argnums=(0, 1)))


def test_a_sum_that_is_not_treated_linearly_in_the_loop_is_refused():
    """Gradients are clipped layer by layer, inside the loop: no piece knows the whole gradient."""

    @jax.custom_vjp
    def clipped(w):
        return w

    clipped.defvjp(lambda w: (w, None), lambda _, g: (g / jnp.maximum(1, jnp.linalg.norm(g)),))
    function = scanned(lambda x, w, b: jnp.tanh(x @ clipped(w) + b))
    with pytest.raises(olla_xla.InputError, match="mixes|needs"):
        jax.jit(olla_xla.fission(function, axis=(None, None, 0)))(*ARGUMENTS)


def test_what_a_gather_fills_in_is_no_part_of_a_sum():
    """Each piece would add its own."""

    def filled(x):
        def body(total, rows):
            summed = jnp.sin(rows).sum(0).at[jnp.array([0, D])].get(mode="fill", fill_value=5.0)
            return total + summed.sum(), summed

        return jax.lax.scan(body, 0.0, x.swapaxes(0, 1))

    with pytest.raises(olla_xla.InputError, match="mixes"):
        jax.jit(olla_xla.fission(filled, axis=0, pieces=B))(ARGUMENTS[2])


def test_a_while_does_not_carry_parts_of_what_its_predicate_reads():
    def grown(x):
        def body(state):
            return state[0] + jnp.sin(x * state[1]).sum((0, 1)), state[1] + 1.0

        return jax.lax.while_loop(
            lambda state: state[0].sum() < 9.0, body, (jnp.zeros(D), jnp.float32(1.0))
        )

    with pytest.raises(olla_xla.InputError, match="mixes"):
        jax.jit(olla_xla.fission(grown, axis=0, pieces=B))(jnp.abs(ARGUMENTS[2]))


def test_a_refusal_names_what_forbids_it_in_the_loop():
    function = scanned(lambda x, w, b: jnp.cumsum(jnp.tanh(x @ w + b), 0))
    with pytest.raises(olla_xla.InputError, match=r"scan at .*, by cumsum at test_scans.py:\d+$"):
        olla_xla.fission(function, axis=(None, None, 0)).explain(*ARGUMENTS)
