"""Maxima and other reductions along the axis that is cut, and their gradients at ties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import olla_xla
from olla_xla.pieces.accumulators import parts_of, reduced

ROWS, WIDE = 98, 128
RNG = np.random.default_rng(0)

REDUCTIONS = {
    "max": lambda h: h.max(0),
    "min": lambda h: h.min(0),
    "max of all": lambda h: h.max(),
    "any": lambda h: (h > 1.5).any(0),
    "all": lambda h: (h > -1.5).all(0),
    "xor": lambda h: jax.lax.reduce_xor_p.bind(h > 0, axes=(0,)),
    "bits": lambda h: jax.lax.reduce_or_p.bind(jnp.round(h * 8).astype(jnp.int32), axes=(0,)),
    "argmax": lambda h: h.argmax(0),
    "argmin": lambda h: jnp.round(h).argmin(0),
    "largest integer": lambda h: jnp.round(h * 8).astype(jnp.int8).max(0),
    "unsigned": lambda h: jnp.round(jnp.abs(h) * 8).astype(jnp.uint8).min(0),
    "product": lambda h: (1 + 0.1 * h).prod(0),
    "half": lambda h: h.astype(jnp.bfloat16).max(0),
}


def rows(seed):
    """Halves of integers, so that many are equal."""
    x = np.random.default_rng(seed).integers(-3, 4, (ROWS, 8)) / 2
    return jnp.asarray(x.astype(np.float32))


W = jnp.asarray(RNG.integers(-1, 2, (8, WIDE)).astype(np.float32))


def made_of(names):
    return lambda x, w: [REDUCTIONS[name](x @ w) for name in names]


@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(st.sampled_from(sorted(REDUCTIONS)), min_size=1, max_size=3, unique=True),
    st.integers(2, 10),
    st.integers(0, 9),
)
def test_reductions_have_the_same_bits(names, pieces, seed):
    function, x = made_of(names), rows(seed)
    cut = olla_xla.fission(function, axis=(0, None), pieces=pieces)
    assert cut.explain(x, W).regions[0].units == ROWS
    for name, a, b in zip(names, jax.jit(cut)(x, W), jax.jit(function)(x, W), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if name == "product":
            np.testing.assert_allclose(a, b, rtol=1e-5)
        else:
            np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


@pytest.mark.quick
@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_infinities_and_what_is_no_number(name):
    x = np.asarray(rows(0)).repeat(2, 1)
    x[:, 0], x[:, 1], x[7:, 2], x[60:62, 3], x[5, 4] = -np.inf, np.inf, -np.inf, np.nan, np.nan
    jaxpr = jax.make_jaxpr(REDUCTIONS[name])(x).jaxpr
    (e,) = (e for e in jaxpr.eqns if "arg" in e.primitive.name or "reduce" in e.primitive.name)
    parts = []
    for first in range(0, ROWS, 14):
        piece = jnp.asarray(x[first : first + 14])
        parts.append(parts_of(e, piece, REDUCTIONS[name](piece), first))
    made = reduced(e, [jnp.concatenate(p) for p in zip(*parts, strict=True)])
    np.testing.assert_array_equal(made, getattr(np, name)(x, 0))


SMOOTH = ["max", "min", "max of all", "product", "half"]


def weighted(names):
    def loss(x, w):
        total = 0.0
        for k, made in enumerate(made_of(names)(x, w)):
            weights = jnp.cos(jnp.arange(made.size) + k).reshape(made.shape)
            total = total + (weights * made.astype(jnp.float32)).sum()
        return total

    return loss


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(st.sampled_from(SMOOTH), min_size=1, max_size=2, unique=True),
    st.integers(2, 10),
    st.booleans(),
    st.integers(0, 9),
)
def test_gradients_at_ties_are_those_of_jit(names, pieces, narrow, seed):
    """All elements equal to a maximum share its gradient, also if they are in several pieces."""
    loss, x = weighted(names), rows(seed)
    args = (x, W.astype(jnp.bfloat16) if narrow else W)
    cut = olla_xla.fission(loss, axis=(0, None), pieces=pieces)
    made = jax.jit(jax.grad(cut, (0, 1)))(*args)
    for a, b in zip(made, jax.jit(jax.grad(loss, (0, 1)))(*args), strict=True):
        assert a.dtype == b.dtype
        wide = np.asarray(b, np.float32)
        most = np.abs(wide).max()
        tolerance = 2**-6 if narrow or "half" in names else 1e-5  # bfloat16, rounded twice
        np.testing.assert_allclose(np.asarray(a, np.float32), wide, rtol=0, atol=tolerance * most)


def test_an_equal_maximum_in_all_pieces():
    """Of equal rows each has the same part of the gradient."""
    x = jnp.ones((ROWS, 8))
    loss = olla_xla.fission(weighted(["max"]), axis=(0, None), pieces=5)
    made = jax.jit(jax.grad(loss))(x, W)
    np.testing.assert_allclose(made, jnp.broadcast_to(made[0], made.shape), rtol=1e-6)
    exact = np.cos(np.arange(WIDE)) @ np.asarray(W).T / ROWS
    np.testing.assert_allclose(made[0], exact, rtol=0, atol=1e-5)


def test_second_derivatives():
    def loss(x, w):
        return (jnp.sin(x @ w).max(0) ** 2).sum()

    x, v = rows(0) + 0.01 * rows(1), rows(2)
    cut = olla_xla.fission(loss, axis=(0, None), pieces=4)
    for of in (
        lambda f: jax.grad(lambda x: (jax.grad(f)(x, W) * v).sum()),
        lambda f: lambda x: jax.jvp(jax.grad(lambda x: f(x, W)), (x,), (v,))[1],
    ):
        made, expected = jax.jit(of(cut))(x), jax.jit(of(loss))(x)
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def chamfer(x, y):
    d = jnp.maximum((x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T, 0.0)
    return d.min(0).mean() + d.min(1).mean()


def test_a_chamfer_loss():
    """Minima along both axes of all pairs; points occur twice, as ties."""
    x = jnp.tile(jnp.asarray(RNG.normal(size=(96, 3)).astype(np.float32)), (2, 1))
    y = jnp.concatenate([x[:64], x[:128] + 0.5])
    cut = olla_xla.fission(chamfer, pieces=16)
    found = cut.explain(x, y)
    assert found.largest_after == found.largest_before / 16
    gradient = jax.value_and_grad(chamfer, (0, 1))
    with pytest.raises(olla_xla.InputError, match="reduce_min .* pass the loss to fission"):
        olla_xla.fission(gradient, pieces=16).explain(x, y)
    ours = jax.value_and_grad(cut, (0, 1))
    for a, b in zip(
        jax.tree.leaves(jax.jit(ours)(x, y)), jax.tree.leaves(jax.jit(gradient)(x, y)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max())


def test_a_log_sum_exp_along_the_axis():
    """The maximum first, then the sum, which needs it."""

    def loss(x, w):
        return jax.nn.logsumexp(jnp.tanh(x @ w), 0).sum()

    x = rows(0)
    cut = olla_xla.fission(loss, pieces=4)
    assert cut.explain(x, W).largest_after <= cut.explain(x, W).largest_before / 4
    for a, b in zip(
        jax.tree.leaves(jax.jit(jax.value_and_grad(cut, (0, 1)))(x, W)),
        jax.tree.leaves(jax.jit(jax.value_and_grad(loss, (0, 1)))(x, W)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


def test_reductions_inside_calls_are_no_parts():
    """What a loop or a checkpoint gives would be taken for the whole maximum."""

    def loss(x, w):
        return jax.checkpoint(lambda x, w: jnp.sin((x @ w).max(0)))(x, w)

    with pytest.raises(olla_xla.InputError, match="mixes"):
        jax.jit(olla_xla.fission(loss, axis=(0, None), pieces=4))(rows(0), W)


def test_what_is_compared_with_its_maximum_is_not_reduced_in_pieces():
    """The maximum is that of the array which is compared, not of a copy in another kernel."""

    def found(x, w):
        h = jnp.tanh(x @ w)
        wide = jnp.sin(jnp.outer(h[:, 0], jnp.ones(4096))).sum(1)
        return wide, h, h.max(0), h == h.max(0)

    def apart(x, w):
        h = jnp.tanh(x @ w)
        return jnp.sin(jnp.outer(h[:, 0], jnp.ones(4096))).sum(1), h, h.max(0), h == 1.0

    for function, is_reduced in ((found, False), (apart, True)):
        cut = olla_xla.fission(function, axis=(0, None), pieces=7)
        (region,) = cut.explain(rows(0), W).regions
        assert ("reduce_max" in region.operations) == is_reduced
        for a, b in zip(jax.jit(cut)(rows(0), W), jax.jit(function)(rows(0), W), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
