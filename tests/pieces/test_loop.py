"""An axis cut into pieces of units: which there are, and that their parts make the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.pieces.loop import Pieces, _over_pieces, _split
from olla_xla.segments.equations import replaced, zeros_but

RNG = np.random.default_rng(0)


class Devices:
    """Devices over which an axis is sharded; only their number counts here."""

    def __init__(self, count):
        self.count = count


@pytest.mark.quick
@given(st.integers(1, 60), st.integers(1, 80))
def test_pieces_are_as_few_as_their_size_allows(units, pieces):
    cut = Pieces.of(units, pieces)
    sizes = [cut.count] * cut.full + [cut.rest] * bool(cut.rest)
    assert sum(sizes) == units and len(sizes) == len(cut)
    wanted = min(pieces, units)
    assert cut.count == next(c for c in range(1, units + 1) if c * wanted >= units)
    assert len(cut) <= wanted and 0 <= cut.rest < cut.count


@pytest.mark.quick
def test_each_device_cuts_its_own_part():
    cut = Pieces.of(24, 3, Devices(4))
    assert (cut.units, cut.count, len(cut)) == (6, 2, 3)
    assert len(Pieces.of(24, 100, Devices(4))) == 6, "one for each unit at most"


@pytest.mark.quick
@pytest.mark.parametrize("d", [0, 1, 2])
def test_full_pieces_are_stacked(d):
    x = RNG.normal(size=(14, 14, 14))
    split = _split(jnp.asarray(x, jnp.float32), d, Pieces.of(7, 3))  # 3, 3 and 1 units of 2 rows
    assert split.shape[0] == 2
    for k in range(2):
        part = np.take(x, range(6 * k, 6 * k + 6), axis=d)
        np.testing.assert_array_equal(split[k], part.astype(np.float32))


def matmul(whole, piece, parts):
    """Rows of x @ w, and the piece's part of x.T @ (x @ w) and of the number of units."""
    (w,), (x,) = whole, parts
    y = x @ w
    return [x.T @ y, jnp.full((), piece.count, jnp.float32)], [y]


@pytest.mark.parametrize(("pieces", "d"), [(1, 0), (3, 0), (3, 1), (7, 1)])
def test_sums_and_joined_results(pieces, d):
    x = jnp.asarray(RNG.normal(size=(14, 3)), jnp.float32)  # 7 units of two rows
    w = jnp.asarray(RNG.normal(size=(3, 2)), jnp.float32)
    given = x if d == 0 else x.T

    def function(whole, piece, parts):
        (part,) = parts
        sums, (y,) = matmul(whole, piece, [part if d == 0 else part.T])
        return sums, [y if d == 0 else y.T]

    def shape(*lengths):
        return jax.ShapeDtypeStruct(lengths, jnp.float32)

    (gram, units), (y,) = _over_pieces(
        function,
        Pieces.of(7, pieces),
        [w],
        [(given, d)],
        [shape(3, 2), shape()],
        [(shape(14, 2) if d == 0 else shape(2, 14), d)],
        jnp.float32,
    )
    np.testing.assert_allclose(y if d == 0 else y.T, x @ w, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(gram, x.T @ (x @ w), rtol=1e-5, atol=1e-5)
    assert units == 7


@pytest.mark.quick
def test_sums_are_kept_in_the_wider_type():
    """4096 + 1 in bfloat16 is 4096: added up a piece at a time, ones would be lost."""

    def function(whole, piece, parts):
        return [parts[0].sum(0)], []

    x = jnp.concatenate([jnp.full((1, 2), 4096.0), jnp.ones((64, 2))]).astype(jnp.bfloat16)
    of = jax.ShapeDtypeStruct((2,), jnp.bfloat16)
    (total,), _ = _over_pieces(function, Pieces.of(65, 65), [], [(x, 0)], [of], [], jnp.float32)
    assert total.dtype == jnp.bfloat16 and (total == 4160).all()


@pytest.mark.quick
def test_integers_have_a_gradient_of_no_type():
    values = [jnp.ones(2), jnp.ones(3, jnp.int32), jnp.ones(4)]
    found = zeros_but(values, [0, 2], ["a", "b"])
    assert (found[0], found[2]) == ("a", "b")
    assert found[1].dtype == jax.dtypes.float0 and found[1].shape == (3,)
    assert replaced("xyz", [1], "w") == ["x", "w", "z"]
