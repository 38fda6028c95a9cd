"""What an argument is to a train step, and what loops carry, whatever the caller calls it."""

import functools

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla import targets
from olla_xla.analysis.category import Category
from olla_xla.analysis.donation import DonationOutcome
from tests.support.plugins import H100

D, ROWS, LAYERS = 64, 32, 4
MATRIX = jax.ShapeDtypeStruct((D, D), jnp.float32)
STACK = jax.ShapeDtypeStruct((LAYERS, D, D), jnp.float32)
BATCH = jax.ShapeDtypeStruct((ROWS, D), jnp.float32)
BATCHES = jax.ShapeDtypeStruct((3, ROWS, D), jnp.float32)
WEIGHTS = [MATRIX] * LAYERS

EVERYWHERE = pytest.mark.parametrize("target", ["cpu", H100])


def analysed(step, arguments, target, **options):
    return olla_xla.analyze(jax.jit(step, **options), *arguments, target=target)


def kinds(analysis):
    """Category by the name of the argument."""
    found = {}
    for tensor in analysis.xla.tensors:
        if tensor.is_argument:
            found.setdefault(tensor.argument.split("[")[0], set()).add(tensor.category)
    return found


def loss(weights, x):
    for w in weights:
        x = jax.nn.relu(x @ w)
    return (x**2).mean()


def layer(h, w):
    return jnp.tanh(jnp.tanh(h @ w) @ w.T) + h, None


def scanned(w, x, body=layer):
    return (jax.lax.scan(body, x, w)[0] ** 2).mean()


@EVERYWHERE
@pytest.mark.parametrize("donated", [(), (0,)])
def test_weights_by_any_name(target, donated):
    def step(theta, z):
        return jax.tree.map(lambda w, g: w - 0.1 * g, theta, jax.grad(loss)(theta, z))

    found = kinds(analysed(step, (WEIGHTS, BATCH), target, donate_argnums=donated))
    assert found == {"theta": {Category.PARAMETERS}, "z": {Category.BATCH}}


@pytest.mark.cuda13
def test_weights_that_lie_in_shards():
    """What hands them on to other devices, whole, is read by the derivative in their place."""
    devices = targets.target("h100", 4)

    def step(theta, data):
        def loss(theta):
            h = data
            for w in theta:
                h = jnp.tanh(h @ w)
            return (h**2).mean()

        return [w - 0.1 * g for w, g in zip(theta, jax.grad(loss)(theta), strict=True)]

    placed = devices.place((WEIGHTS, BATCH), ([0] * LAYERS, 0))
    analysis = olla_xla.analyze(jax.jit(step, donate_argnums=0), *placed, target=devices)
    assert kinds(analysis) == {"theta": {Category.PARAMETERS}, "data": {Category.BATCH}}
    assert analysis.donation.bytes(DonationOutcome.ALIASED) == LAYERS * D * D * 4 // 4, (
        "of one device"
    )
    assert analysis.xla.found_share > 0.9, "what is gathered together too"
    assert str(analysis).splitlines()[0].endswith(", memory of one of 4 devices")


@EVERYWHERE
def test_moments_by_any_name(target):
    def step(w, m, z):
        m = jax.tree.map(lambda m, g: 0.9 * m + g, m, jax.grad(loss)(w, z))
        return jax.tree.map(lambda w, m: w - 0.1 * m, w, m), m

    found = kinds(analysed(step, (WEIGHTS, WEIGHTS, BATCH), target))
    assert found["w"] == {Category.PARAMETERS} and found["m"] == {Category.OPTIMIZER}


@EVERYWHERE
def test_what_is_computed_again_is_no_gradient(target):
    def step(w, x):
        return w - jax.grad(functools.partial(scanned, body=jax.checkpoint(layer)))(w, x)

    large = jax.ShapeDtypeStruct((64 * ROWS, D), jnp.float32)
    analysis = analysed(step, (STACK, large), target, donate_argnums=0)
    assert analysis.xla.by_category()[Category.AGAIN] >= 64 * ROWS * D * 4
    assert Category.WORKSPACE not in analysis.xla.by_category() or (
        analysis.xla.by_category()[Category.WORKSPACE] < 4096
    )


@EVERYWHERE
@pytest.mark.parametrize("donated", [(), (0,)])
def test_state_that_an_outer_loop_carries(target, donated):
    def step(carry, xs):
        def one(carry, x):
            w, m = carry
            m = 0.9 * m + jax.grad(scanned)(w, x)
            return (w - 0.1 * m, m), None

        return jax.lax.scan(one, carry, xs)[0]

    analysis = analysed(step, ((STACK, STACK), BATCHES), target, donate_argnums=donated)
    found, size = analysis.xla.by_category(), LAYERS * D * D * 4
    assert size <= found[Category.PARAMETERS] < 2 * size
    assert size <= found[Category.OPTIMIZER] < 2 * size
    assert found.get(Category.WORKSPACE, 0) < 4096
    assert donated or found[Category.OUTPUTS] == 2 * size


@EVERYWHERE
def test_gradients_that_a_loop_sums(target):
    def step(p, xs):
        def one(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(p, x)), None

        total, _ = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, p), xs)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, total)

    found = analysed(step, (WEIGHTS, BATCHES), target, donate_argnums=0).xla.by_category()
    assert found[Category.GRADIENTS] >= LAYERS * D * D * 4
    assert found.get(Category.WORKSPACE, 0) < 4096


@EVERYWHERE
def test_a_cache_that_a_loop_fills(target):
    def step(w, cache, x):
        def one(h, slot):
            h = jnp.tanh(h @ w)
            return h, slot.at[0].set(h)

        return jax.lax.scan(one, x, cache)

    cache = jax.ShapeDtypeStruct((LAYERS, 256, ROWS, D), jnp.float32)
    found = analysed(step, (MATRIX, cache, BATCH), target, donate_argnums=1).xla.by_category()
    assert Category.STACKS not in found
    assert found[Category.ARGUMENTS] >= LAYERS * 256 * ROWS * D * 4


# The donation audit.


@EVERYWHERE
def test_arguments_are_paired_with_results_by_path(target):
    half = [jax.ShapeDtypeStruct((D, D), jnp.bfloat16)] * LAYERS

    def step(state, x):
        p = state["params"]
        g = jax.grad(loss)(p, x.astype(jnp.bfloat16))
        mu = jax.tree.map(lambda m, g: 0.9 * m.astype(jnp.float32) + g, state["mu"], g)
        nu = jax.tree.map(lambda n, g: 0.9 * n.astype(jnp.float32) + g * g, state["nu"], g)
        p = jax.tree.map(lambda w, m, n: (w - m * n).astype(jnp.bfloat16), p, mu, nu)
        return {"mu": mu, "nu": nu, "params": p}

    state = {"mu": half, "nu": half, "params": half}
    rows = analysed(step, (state, BATCH), target, donate_argnums=0).donation.rows
    by_path = {row.path: row for row in rows}
    for k in range(LAYERS):
        assert by_path[f"state['params'][{k}]"].outcome is DonationOutcome.ALIASED
        for name in ("mu", "nu"):
            row = by_path[f"state['{name}'][{k}]"]
            assert row.outcome in (DonationOutcome.LOST, DonationOutcome.REUSED)
            assert row.output == f"result['{name}'][{k}]" and "dtype" in row.why


@EVERYWHERE
def test_no_weights_are_donated_to_their_gradients(target):
    def step(weights, x):
        return jax.value_and_grad(loss)(weights, x)

    assert not analysed(step, (WEIGHTS, BATCH), target).donation.rows


@EVERYWHERE
def test_an_argument_that_is_itself_returned(target):
    large = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    (row,) = analysed(lambda x: (x + 1, x), (large,), target, donate_argnums=0).donation.rows
    assert row.outcome is DonationOutcome.COPIED
    assert row.why == "the argument is also returned as result[1], so XLA copies it"


def test_what_to_donate_is_said_and_nothing_small():
    def step(flag, p, count, x):
        return p - jax.grad(loss)([p], x)[0], count + 1

    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    analysis = analysed(step, (True, MATRIX, scalar, BATCH), "cpu", static_argnums=0)
    (row,) = analysis.donation.trouble
    assert (row.path, row.argnum, row.bytes) == ("p", 1, D * D * 4)
    assert "donate_argnums=1 saves" in row.why
