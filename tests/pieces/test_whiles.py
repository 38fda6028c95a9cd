"""Loops under `vmap` whose number of turns differs by sample."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import olla_xla
from olla_xla.pieces import run

SAMPLES, WIDTH = 12, 64
RNG = np.random.default_rng(0)
TURNS = jnp.asarray(RNG.integers(0, 9, SAMPLES))
X = jnp.asarray(RNG.normal(size=(SAMPLES, WIDTH)).astype(np.float32))


def wide(x):
    return jnp.outer(jnp.arange(1.0, 40.0), x)


def halved(n, x):
    """Until n turns are over: abs, add and mul have the same bits in pieces."""

    def body(state):
        turn, x, unused = state
        return turn + 1, jnp.abs(x) * 0.5 + 1.0, unused

    turn, x, unused = jax.lax.while_loop(lambda s: s[0] < n, body, (0, wide(x), jnp.int32(7)))
    return turn, x.max(0), unused


def until_small(n, x):
    """The predicate reads all of a sample."""
    made = jax.lax.while_loop(lambda x: jnp.abs(x).max() > 0.1, lambda x: x * 0.75, wide(x))
    return made.min(), n


def nested(n, x):
    """A loop in a loop, both with turns of their own."""

    def body(state):
        turn, x = state
        inner = jax.lax.while_loop(lambda s: s[0] < turn, lambda s: (s[0] + 1, s[1] + 0.25), (0, x))
        return turn + 1, inner[1] * 0.5

    return jax.lax.while_loop(lambda s: s[0] < n, body, (0, wide(x)))[1].max()


SAMPLE_BY_SAMPLE = {f.__name__: f for f in (halved, until_small, nested)}


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.sampled_from(sorted(SAMPLE_BY_SAMPLE)),
    st.integers(2, SAMPLES),
    st.lists(st.integers(0, 5), min_size=SAMPLES, max_size=SAMPLES),
)
def test_each_sample_has_its_own_turns(name, pieces, turns):
    function, n = jax.vmap(SAMPLE_BY_SAMPLE[name]), jnp.asarray(turns)
    cut = olla_xla.fission(function, axis=0, pieces=pieces)
    assert cut.explain(n, X).regions
    made, expected = jax.jit(cut)(n, X), jax.jit(function)(n, X)
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_the_samples_of_a_piece_end_by_themselves(monkeypatch):
    """Each piece's loop ends when the last of its own samples does."""
    turns, plain = [], run._CALLED["while"]

    def counted(e, functions, values):
        def body(*state):
            jax.debug.callback(lambda: turns.append(1))
            return functions[0](*state)

        return plain(e, [body, functions[1]], values)

    n = jnp.asarray([1] * 4 + [7] * 4 + [3] * 4)
    monkeypatch.setitem(run._CALLED, "while", counted)
    made = jax.jit(olla_xla.fission(jax.vmap(halved), axis=0, pieces=3))(n, X)
    jax.effects_barrier()
    np.testing.assert_array_equal(made[0], n)
    assert len(turns) == 1 + 7 + 3


def test_the_other_axis_is_cut_where_no_predicate_reads_it():
    function = jax.vmap(lambda n, x: halved(n, x)[1])
    cut = olla_xla.fission(function, axis=(None, 1), pieces=4)
    np.testing.assert_array_equal(jax.jit(cut)(TURNS, X), jax.jit(function)(TURNS, X))


def summed(n, x):
    def body(state):
        turn, x = state
        return turn + 1, x + jax.lax.psum(x, "samples") * 0.1

    return jax.lax.while_loop(lambda s: s[0] < n, body, (0, x))


def ended_together(n, x):
    del n

    def goes_on(x):
        return jax.lax.pmax(jnp.abs(x).max(), "samples") > 0.1

    return jax.lax.while_loop(goes_on, lambda x: x * 0.75, x)


@pytest.mark.parametrize(
    ("function", "axis"), [(summed, 0), (ended_together, 0), (until_small, (None, 1))]
)
def test_what_mixes_samples_or_what_the_predicate_reads_is_refused(function, axis):
    mapped = jax.vmap(function, axis_name="samples")
    cut = olla_xla.fission(mapped, axis=axis, pieces=4)
    for call in (cut.explain, cut):
        with pytest.raises(olla_xla.InputError, match="mixes|needs the whole of"):
            call(TURNS, X)
