"""What parts of sums are added to: halves lose no bit of a float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from olla_xla import targets
from olla_xla.pieces.accumulators import Accumulator
from tests.support import plugins

RNG = np.random.default_rng(0)


def accumulated(parts, *, in_halves):
    held = Accumulator.of(parts[0], jnp.float32, in_halves=in_halves)
    assert held.in_halves == in_halves
    arrays = held.zeros()
    for part in parts:
        arrays = jax.jit(held.add)(arrays, part)
    return np.asarray(held.total(arrays)).view(np.uint32)


@pytest.mark.quick
def test_halves_add_as_float32():
    parts = jnp.asarray(RNG.normal(size=(9, 64)) * 2.0 ** RNG.integers(-20, 20, (9, 64)))
    parts = parts.astype(jnp.bfloat16)
    some = parts.at[3, :4].set(jnp.asarray([jnp.nan, jnp.inf, -jnp.inf, -0.0], "bfloat16"))
    largest = some.at[:, 5].set(jnp.finfo(jnp.bfloat16).max)
    made, expected = (accumulated(list(largest), in_halves=h) for h in (True, False))
    np.testing.assert_array_equal(made, expected)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("dtype", "wide"),
    [("float16", "float32"), ("float32", "float32"), ("int32", "float32"), ("bfloat16", "float64")],
)
def test_others_are_held_whole(dtype, wide):
    with jax.enable_x64(True):
        held = Accumulator.of(jax.ShapeDtypeStruct((3,), dtype), wide, in_halves=True)
        assert not held.in_halves
        arrays = held.add(held.zeros(), jnp.ones(3, dtype))
        assert (held.total(arrays) == 1).all()


@pytest.mark.parametrize("name", ["cpu", plugins.H100])
def test_a_head_of_many_words_takes_as_much_as_by_hand_on_a_gpu(name):
    """Value and gradient of one of 131,072 words in 64 pieces.

    A GPU's result takes the place of a half. On a CPU nothing is cast to float32 but the pieces of
    logits, and the accumulator is made after the first region's loop.
    """
    target = targets.target(name)

    def loss(w, x, y):
        logits = (x @ w).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    shapes = ((1024, 131_072), "bfloat16"), ((8192, 1024), "bfloat16"), ((8192,), "int32")
    shapes = target.place([jax.ShapeDtypeStruct(*s) for s in shapes])
    ours = olla_xla.fission(jax.value_and_grad(loss, (0, 1)), pieces=64)
    m = jax.jit(ours).lower(*shapes).compile().memory_analysis()
    total = m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes
    assert total <= 1.01 * 640 * 2**20
