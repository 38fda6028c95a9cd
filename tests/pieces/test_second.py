"""Second derivatives, of and through what is cut, and sums scattered to nodes or cells."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla

NODES, EDGES, WIDTH = 20, 512, 16
RNG = np.random.default_rng(0)
PLACES = jnp.asarray(RNG.normal(size=(NODES, 3)).astype(np.float32))
ENDS = [jnp.asarray(RNG.integers(0, NODES, EDGES)) for _ in range(2)]
SIZES = (8, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)
WEIGHTS = [jnp.asarray(RNG.normal(size=s).astype(np.float32)) * 0.3 for s in SIZES]


def edges(weights, places, starts, ends):
    """A message from each edge."""
    between = places[starts] - places[ends]
    distance = jnp.sqrt((between**2).sum(-1) + 1e-2)
    h = jnp.exp(-((distance[:, None] - jnp.linspace(0, 4, 8)) ** 2))
    return jnp.tanh(jnp.tanh(h @ weights[0]) @ weights[1])


def by_pairs(weights, places, starts, ends):
    """Energy, a sum over edges."""
    each = edges(weights, places, starts, ends) @ weights[2]
    return jax.ops.segment_sum(each[:, 0], ends, NODES).sum()


def by_messages(weights, places, starts, ends):
    """Energy, a sum over nodes of what their edges send."""
    sums = jax.ops.segment_sum(edges(weights, places, starts, ends), ends, NODES)
    return jnp.tanh(0.1 * sums @ weights[2]).sum()


def by_rounds(weights, places, starts, ends):
    """Energy of nodes after two rounds of messages, each of what the nodes were before it."""
    nodes = jnp.ones((NODES, WIDTH))
    each = edges(weights, places, starts, ends)
    for _ in range(2):
        sums = jax.ops.segment_sum(jnp.tanh(each * nodes[starts]), ends, NODES)
        nodes = nodes + jnp.tanh(0.1 * sums @ weights[1])
    return (nodes @ weights[2]).sum()


def trained(energy):
    """The gradient of a loss of energy and forces in the weights."""

    def loss(weights, places, *given):
        made, forces = jax.value_and_grad(energy, 1)(weights, places, *given)
        return made + ((forces - 0.1) ** 2).sum()

    return jax.value_and_grad(loss)


def close(made, expected):
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max())


def exactly(function, weights, places, *given):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: a.astype(jnp.float64), (weights, places))
        return jax.tree.map(lambda x: np.asarray(x, np.float32), jax.jit(function)(*wide, *given))


def bytes_of(function, *args):
    m = jax.jit(function).lower(*args).compile().memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes


@pytest.mark.parametrize("energy", [by_pairs, by_messages])
def test_energy_and_forces_through_a_cut(energy):
    args, whole = (WEIGHTS, PLACES, *ENDS), trained(energy)
    cut = trained(olla_xla.fission(energy, pieces=8))
    close(jax.jit(cut)(*args), exactly(whole, *args))
    assert bytes_of(cut, *args) < 0.8 * bytes_of(whole, *args)


@pytest.mark.parametrize(
    "energy, most, regions", [(by_pairs, 0.4, 2), (by_messages, 0.3, 4), (by_rounds, 0.35, 6)]
)
def test_energy_and_forces_are_cut(energy, most, regions):
    """What nodes send each other ends a pass over the edges; passes before it run again."""
    args, whole = (WEIGHTS, PLACES, *ENDS), trained(energy)
    cut = olla_xla.fission(whole, pieces=8)
    assert len(cut.explain(*args).regions) == regions
    assert bytes_of(cut, *args) < most * bytes_of(whole, *args)
    close(jax.jit(cut)(*args), exactly(whole, *args))


def test_particles_on_a_grid():
    def painted(places, weights):
        cells = jnp.clip((places * 4 + 8).astype(jnp.int32), 0, 15)
        corners = cells[:, None] + jnp.stack(jnp.unravel_index(jnp.arange(8), (2, 2, 2)), 1)
        near = jnp.prod(1 / (1 + jnp.abs(places[:, None] * 4 + 8 - corners)), -1)
        where = tuple(jnp.moveaxis(jnp.clip(corners, 0, 15), -1, 0))
        return jnp.zeros((16, 16, 16)).at[where].add(near * weights[:, None])

    places = jnp.asarray(RNG.normal(size=(4096, 3)).astype(np.float32))
    args = places, jnp.ones(4096)
    cut = olla_xla.fission(painted, pieces=16)
    assert "float32[16,16,16]" in cut.explain(*args).regions[0].sums
    close(jax.jit(cut)(*args), exactly(painted, *args))


def test_what_is_written_is_no_sum():
    """Of two particles in one cell the last one stays: which that is, no piece knows."""

    def written(places, values):
        cells = (jnp.abs(places) * 100).astype(jnp.int32)
        return jnp.zeros(400).at[cells.sum(-1) % 400].set(jnp.sin(values[:, None] * cells).sum(-1))

    places = jnp.asarray(RNG.normal(size=(4096, 3)).astype(np.float32))
    cut = olla_xla.fission(written, axis=0, pieces=16)
    try:
        made = jax.jit(cut)(places, places[:, 0])
    except olla_xla.InputError:
        return
    assert "scatter" not in cut.explain(places, places[:, 0]).regions[0].operations
    close(made, jax.jit(written)(places, places[:, 0]))
