"""Regions inside the bodies of loops that no axis passes through whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import olla_xla

N, C, L = 24, 4, 3
RNG = np.random.default_rng(0)
Z = jnp.asarray(RNG.normal(size=(N, N, C)).astype(np.float32)) * 0.5
W = jnp.asarray(RNG.normal(size=(L, C, C)).astype(np.float32)) * 0.1


def rows(z, w):
    """Attention within each row: of N rows N x N weights."""
    scores = jnp.einsum("rid,rjd->rij", z @ w, z)
    return jax.nn.softmax(scores) @ z


def swapped(z, w):
    return jnp.swapaxes(z + rows(z, w), 0, 1)


def branched(z, w):
    return jax.lax.cond(w[0, 0] > 0, swapped, lambda z, w: jnp.swapaxes(z, 0, 1) - rows(z, w), z, w)


def summed(z, w):
    wide = jnp.tanh(z @ jnp.tile(w, (1, N)))
    return jnp.swapaxes(z, 0, 1) + (wide**2).mean()


LAYERS = {
    "rows, then columns": swapped,
    "rematerialised": jax.checkpoint(swapped),
    "rematerialised, without a barrier": jax.checkpoint(swapped, prevent_cse=False),
    "a branch": branched,
    "a mean of all": summed,
}


def scanned(names, reverse=False):
    def loss(w, z):
        def layer(z, w):
            for name in names:
                z = LAYERS[name](z, w)
            return z, z.mean()

        z, means = jax.lax.scan(layer, z, w, reverse=reverse)
        return (z**2).mean() + (means**2).sum()

    return loss


def same(made, expected, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


def exactly(function, *args):
    """The function's results in float64."""
    with jax.enable_x64(True):
        wide = [a.astype(jnp.float64) for a in args]
        return jax.tree.map(lambda x: np.asarray(x, np.float32), jax.jit(function)(*wide))


@settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=2),
    st.booleans(),
    st.booleans(),
    st.integers(2, N).filter(lambda p: p not in (2, 9, 10)),  # two means save too little in these
)
def test_layers_through_which_no_axis_passes(names, reverse, inside, pieces):
    loss = scanned(names, reverse)
    if inside:
        ours = olla_xla.fission(jax.value_and_grad(loss, (0, 1)), pieces=pieces)
    else:
        ours = jax.value_and_grad(olla_xla.fission(loss, pieces=pieces), (0, 1))
    same(jax.jit(ours)(W, Z), exactly(jax.value_and_grad(loss, (0, 1)), W, Z))


def bytes_of(function, *args):
    m = jax.jit(function).lower(*args).compile().memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes


def test_memory_and_what_is_told():
    z = jnp.tile(Z, (3, 3, 1)) * 0.1
    loss = scanned(["rematerialised"])
    gradient = jax.grad(loss)
    ours = olla_xla.fission(gradient, pieces=12)
    found = ours.explain(W, z)
    assert {r.inside.split()[0] for r in found.regions} <= {"scan", "checkpoint"}
    assert all(r.devices == 1 and r.units == 3 * N for r in found.regions)
    assert "inside scan at test_bodies.py:" in str(found)
    assert found.largest_after <= found.largest_before / 6, "3 N rows of 3 N x 3 N weights"
    whole = bytes_of(gradient, W, z)
    assert bytes_of(ours, W, z) < 0.5 * whole
    assert bytes_of(jax.grad(olla_xla.fission(loss, pieces=12)), W, z) < 0.5 * whole


def test_a_scalar_sum_of_each_layer():
    wide = jnp.tile(W, (1, 1, 64))

    def total(w, x):
        def body(total, w):
            return total + jnp.tanh(x @ w).sum(), None

        return jax.lax.scan(body, 0.0, w)[0]

    x = Z.reshape(-1, C)
    cut = olla_xla.fission(total, pieces=8)
    assert cut.explain(wide, x).largest_after <= cut.explain(wide, x).largest_before / 8
    same(
        jax.jit(jax.value_and_grad(cut, (0, 1)))(wide, x),
        exactly(jax.value_and_grad(total, (0, 1)), wide, x),
    )


def test_a_while_whose_body_holds_more_than_what_it_carries():
    def settled(w, z):
        def body(state):
            turn, z = state
            return turn + 1, 0.5 * swapped(z, w[0])

        return jax.lax.while_loop(lambda s: (s[0] < 5) & (jnp.abs(s[1]).max() > 0.3), body, (0, z))

    cut = olla_xla.fission(settled, pieces=6)
    assert "inside while at" in str(cut.explain(W, Z))
    made, expected = jax.jit(cut)(W, Z), exactly(settled, W, Z)
    assert made[0] == expected[0]
    same(made[1], expected[1])


@pytest.mark.parametrize("named", ["sort", "cumsum"])
def test_bodies_that_mix_all_axes_are_refused(named):
    def mixed(z, w):
        for d in range(2):
            z = jnp.sort(z, d) if named == "sort" else jnp.cumsum(z, d) / N
        return jnp.swapaxes(jnp.sort(z @ w, -1), 0, 1)

    def loss(w, z):
        return jax.lax.scan(lambda z, w: (mixed(z, w), None), z, w)[0].sum()

    with pytest.raises(olla_xla.InputError, match=r"at test_bodies.py:\d+ (mixes|needs)"):
        jax.jit(olla_xla.fission(loss, pieces=4))(W, Z)


def test_what_acts_in_a_body_acts_once_an_iteration():
    seen = []

    def loss(w, z):
        def layer(z, w):
            jax.debug.callback(lambda x: seen.append(float(x)), w[0, 0])
            return swapped(z, w), None

        return jax.lax.scan(layer, z, w)[0].sum()

    try:
        jax.jit(olla_xla.fission(loss, pieces=4))(W, Z)
    except olla_xla.InputError:
        jax.jit(loss)(W, Z)
    jax.effects_barrier()
    assert seen == [float(w) for w in W[:, 0, 0]]
