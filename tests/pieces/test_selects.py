"""A scatter of one element to each row is a select with the same result."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import GatherScatterMode, ScatterDimensionNumbers

import olla_xla
from olla_xla.pieces.run import is_one_each, with_one_added

RNG = np.random.default_rng(0)


def scattered(operand, indices, updates, *, batching, along, mode="drop"):
    """Adds updates at indices [..., 1] along a dimension; (of operand, of indices) in step."""
    numbers = ScatterDimensionNumbers(
        (), (along,), (along,), tuple(o for o, _ in batching), tuple(i for _, i in batching)
    )
    return jax.lax.scatter_add(operand, indices, updates, numbers, mode=mode)


def equation(function, *args):
    (found,) = (e for e in jax.make_jaxpr(function)(*args).eqns if "scatter" in e.primitive.name)
    return found


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8", "uint32"])
@pytest.mark.parametrize(
    ("along", "batching", "shape"),
    [
        (1, [(0, 0)], (5, 1)),
        (1, [(0, 1)], (1, 5)),
        (2, [(0, 0), (1, 1)], (4, 5, 1, 1)),
        (0, [(1, 2), (2, 0)], (5, 1, 4)),
        (1, [(0, 1), (2, 0)], (5, 4)),
    ],
)
@pytest.mark.parametrize("zeros", [True, False])
def test_it_is_the_scatter(dtype, along, batching, shape, zeros):
    """Indices outside, also below zero, are dropped; 300 rows are more than a byte counts."""
    sizes = {o: shape[i] for o, i in batching} | {along: 300}
    operand = jnp.asarray(RNG.normal(size=[sizes[d] for d in range(len(sizes))]) * (not zeros))
    low = 0 if dtype[0] == "u" else -3
    indices = RNG.integers(low, 126 if "8" in dtype else 310, (*shape, 1))
    args = operand, jnp.asarray(indices, dtype), jnp.asarray(RNG.normal(size=shape), operand.dtype)

    def function(*args):
        return scattered(*args, batching=batching, along=along)

    e = equation(function, *args)
    assert is_one_each(e)
    np.testing.assert_array_equal(with_one_added(e, *args), function(*args))


def test_others_stay_scatters():
    def each(shape, indices, mode: Any = "drop", along=1, batching=((0, 0),)):
        args = jnp.zeros(shape), jnp.zeros((*indices, 1), int), jnp.zeros(indices)
        return is_one_each(
            equation(lambda *a: scattered(*a, batching=batching, along=along, mode=mode), *args)
        )

    assert each((5, 9), (5,))
    assert each((5, 9), (5,), GatherScatterMode.PROMISE_IN_BOUNDS)
    assert not each((5, 9), (5,), GatherScatterMode.CLIP)
    assert not each((5, 9), (5, 2))  # two in a row
    assert not each((5,), (5,), along=0, batching=())  # many in the one row
    rows = equation(lambda x, i, u: x.at[i].add(u), jnp.ones((5, 9)), jnp.ones(5, int), jnp.ones(9))
    assert not is_one_each(rows)


def test_the_gradient_of_logits_takes_no_buffer_of_its_own():
    """Of the label's logit it is a scatter: in pieces it is fused into what casts the gradient."""

    def loss(x, w, y):
        logits = (x @ w).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
        return jnp.sum(jax.nn.logsumexp(logits, -1) - picked)

    shapes = ((256, 64), "bfloat16"), ((64, 512), "bfloat16"), ((256,), "int32")
    shapes = [jax.ShapeDtypeStruct(*s) for s in shapes]
    gradient = jax.value_and_grad(loss, (0, 1))
    ours = jax.make_jaxpr(olla_xla.fission(gradient, pieces=4))(*shapes)
    assert "scatter-add" in str(jax.make_jaxpr(gradient)(*shapes))
    assert "scatter-add" not in str(ours)
