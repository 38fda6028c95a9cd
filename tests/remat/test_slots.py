"""What fusions need to stay as they are beside what runs again: few slices, and no more."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.rewritten import compile_rewritten
from hlo.module import module_from_bytes
from hlo.rewrite.loop_edit import SLOTS
from olla_xla.check.executable import check_rewrite
from tests.support.compiles import on_h100, xla_schedule
from tests.support.drawn import normal
from tests.support.ode_programs import runge_kutta
from tests.support.rates import priced_choices

_LAYERS, _WIDTH = 6, 512


def closed(h, w):
    """No addition of its gradient reads two products."""
    return jnp.exp(jnp.sin(h @ w))


def open_to_choice(h, w):
    """Its gradient adds two products."""
    x = h @ w
    return x * jnp.tanh(x)


def masked(h, w):
    """The mask's least value is an array as large as the scores."""
    mask = jnp.tril(jnp.ones((_WIDTH, _WIDTH), bool))
    return jax.nn.softmax(jnp.where(mask, h @ w, -1e9))


@functools.cache
def lowered(layer):
    def loss(weights, x):
        return jnp.sum(jax.lax.scan(lambda h, w: (layer(h, w), None), x, weights)[0])

    weights = jax.ShapeDtypeStruct((_LAYERS, _WIDTH, _WIDTH), jnp.float32)
    x = jax.ShapeDtypeStruct((_WIDTH, _WIDTH), jnp.float32)
    return jax.jit(jax.grad(loss)).lower(weights, x)


@functools.cache
def choices(layer):
    module = module_from_bytes(xla_schedule(lowered(layer)))
    return priced_choices(module)


def chosen(layer):
    """The choice that keeps least."""
    found = choices(layer)
    return found.choice(found.plain)


def extents(layer):
    """First extents of the arrays that copies write slices into."""
    names = {i.name: i for c in chosen(layer).module.control_computations for i in c.instructions}
    again = [i for name, i in names.items() if "dynamic-update-slice" in name and "again" in name]
    return {i.shape.dimensions[0] for i in again if i.shape.dimensions[1:] == (_WIDTH, _WIDTH)}


def test_one_slice_where_no_sum_of_products_is_left_to_chance():
    assert extents(closed) == {1}


def test_more_where_the_code_decides_which_product_is_rounded():
    assert SLOTS in extents(open_to_choice)


def test_a_constant_array_is_not_held_while_the_backward_loop_runs():
    module = chosen(masked).module
    loops = [i for c in module.control_computations for i in c.instructions if i.opcode == "while"]
    held = [s.dimensions for s in loops[-1].shape.elements if s.element_type == 11]
    assert (_WIDTH, _WIDTH) not in held[2:], "the mask's value is made where it is read"
    again = [i.name for i in loops[-1].called[0].instructions if "broadcast" in i.name]
    assert any(name.endswith(".again") for name in again)


@pytest.mark.parametrize("layer", [closed, open_to_choice, masked])
@pytest.mark.optimized
def test_bits_stay(layer):
    found = chosen(layer)
    check_rewrite(choices(layer).module.data, found.module.data, "cpu", loops=True)
    weights = normal(_LAYERS, _WIDTH, _WIDTH, scale=_WIDTH**-0.5)
    x = normal(_WIDTH, _WIDTH, seed=1)
    step = lowered(layer)
    planned = compile_rewritten(step, lambda _: found.module.data)
    np.testing.assert_array_equal(planned(weights, x), step.compile()(weights, x))


@pytest.mark.cuda13
def test_a_gpu_s_fusions_slice_what_is_made_again_themselves():
    """Its products are sums of parts, so copies of the fusions that add these write into slices."""

    def loss(w, x):
        def turn(x, _):
            return runge_kutta(lambda x: jnp.tanh(x @ w), x), None

        return jnp.sum(jax.lax.scan(turn, x, length=16)[0] ** 2)

    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    module = xla_schedule(jax.jit(jax.grad(loss)).lower(*on_h100((x, x))))
    found = priced_choices(module_from_bytes(module), "cuda")
    choice = found.choice(found.plain)
    check_rewrite(module, choice.module.data, "cuda", loops=True)
    loops = [i for c in choice.module.control_computations for i in c.instructions]
    body = [i for i in loops if i.opcode == "while"][-1].called[0].instructions
    again = [i for i in body if i.name.split(".")[-1] == "again" and "update" in i.name]
    assert len(again) == 7, "a kernel for each residual"
    assert {i.operands[0].opcode for i in again} == {"custom-call"}, "nothing is filled first"
    sliced = [i for i in body if i.opcode == "fusion" and i.name.endswith(".slice")]
    assert len(sliced) == 4, "for the products, which are given values"
