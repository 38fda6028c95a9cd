"""Traced functions as programs: calls inlined, sizes in bytes, and the same results."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from olla_xla.remat.segments.trace import (
    inlined,
    program_of,
    steps_of,
    user_line,
)

pytestmark = pytest.mark.quick

X = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
TABLE = np.arange(3, dtype=np.float32)


@jax.jit
def inner(x):
    return jnp.sin(x) * TABLE


@jax.jit
def outer(x):
    return inner(x) + inner(2 * x)


def names(equations):
    return [e.primitive.name for e in equations]


def test_calls_in_calls_are_inlined_with_variables_of_their_own():
    found = inlined(jax.make_jaxpr(lambda x: outer(x) - x)(X).jaxpr)
    made = [name for name in names(found.equations) if name != "broadcast_in_dim"]
    assert sorted(made) == ["add", "mul", "mul", "mul", "sin", "sin", "sub"]
    made = [v for e in found.equations for v in e.outvars]
    assert len(set(made)) == len(made), "each variable is defined once"
    assert found.outputs == tuple(found.equations[-1].outvars)


def test_small_calls_stay_and_large_ones_do_not():
    small = jax.jit(lambda x: x.sum() + 1)
    large = jnp.zeros((64, 64, 64))
    program = program_of(
        jax.make_jaxpr(lambda x: jnp.sin(jnp.cos(x)) * small(x[0, 0]))(large).jaxpr
    )
    assert names(program.equations).count("jit") == 1, "it makes 8 of 2 MiB"
    whole = inlined(jax.make_jaxpr(lambda x: jnp.sin(x) * small(x[0, 0]))(large).jaxpr)
    assert "jit" not in names(whole.equations)


def test_calls_that_say_where_their_results_lie_stay():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.jit(jnp.cos, out_shardings=sharding)
    found = inlined(jax.make_jaxpr(lambda x: inner(x) + placed(x))(X).jaxpr)
    assert names(found.equations).count("jit") == 1


def test_casts_and_views_of_arguments_stand_before_their_first_use():
    def function(a, b):
        a, b = a.astype(jnp.bfloat16), b.T.astype(jnp.bfloat16)
        h = jnp.sin(a)
        return jnp.cos(h), jnp.tanh(b)

    program = program_of(jax.make_jaxpr(function)(X, X).jaxpr)
    assert names(program.equations) == [
        "convert_element_type", "sin", "cos", "transpose", "convert_element_type", "tanh",
    ]  # fmt: skip


def test_sizes_and_what_a_cut_would_keep():
    def function(x):
        a = checkpoint_name(jnp.sin(x), "kept")  # 24 bytes, and 24 of the name
        b = jnp.cos(a.reshape(6))  # a view, then 24
        return b.astype(jnp.bfloat16) + a.reshape(6).astype(jnp.bfloat16)

    program = program_of(jax.make_jaxpr(function)(X).jaxpr)
    steps = {step.primitive: step for step in steps_of(program)}
    assert [step.index for step in steps_of(program)] == list(range(len(program.equations)))
    assert steps["name"].name == "kept" and steps["sin"].name == ""
    assert steps["sin"].bytes == 24 and steps["sin"].crossing_bytes == 24
    assert steps["reshape"].bytes == 0, "a view"
    assert steps["add"].bytes == 12 and steps["add"].crossing_bytes == 0, "results cost no cut"


def test_a_result_that_is_made_early_costs_no_cut():
    def function(x):
        a = jnp.sin(x)
        return a, jnp.cos(a) * jnp.tanh(x)

    program = program_of(jax.make_jaxpr(function)(X).jaxpr)
    steps = {step.primitive: step for step in steps_of(program)}
    assert steps["sin"].bytes == 24 and steps["sin"].crossing_bytes == 0
    assert steps["cos"].crossing_bytes == 24


def test_results_that_a_policy_keeps_are_no_bytes_of_a_step():
    def function(x):
        return jnp.sin(x @ x.T) + 1

    def sizes(policy=None):
        program = program_of(jax.make_jaxpr(function)(X).jaxpr, policy)
        return {step.primitive: step.bytes for step in steps_of(program)}

    assert sizes()["dot_general"] == 16
    kept = sizes(jax.checkpoint_policies.dots_saveable)
    assert kept["dot_general"] == 0 and kept["sin"] == 16


@pytest.mark.parametrize(
    ("function", "primitive", "size"),
    [
        (lambda x: jax.lax.scan(lambda c, r: (c, jnp.sin(r)), 0.0, x)[1], "scan", 24),
        (lambda x: jax.lax.scan(lambda c, r: (jnp.sin(c) + r, None), x[0], x)[0], "scan", 48),
        (lambda x: jax.lax.cond(x[0, 0] > 0, lambda: jnp.sin(jnp.cos(x)), lambda: -x), "cond", 48),
        (lambda x: jax.lax.while_loop(lambda c: c[0, 0] < 5, lambda c: -c - c, x), "while", 24),
    ],
)  # fmt: skip
def test_bytes_of_loops_and_branches(function, primitive, size):
    """A scan counts what all iterations make, a branch the largest, a while loop its results."""
    program = program_of(jax.make_jaxpr(function)(X).jaxpr)
    (step,) = (step for step in steps_of(program) if step.primitive == primitive)
    assert step.bytes == size


def test_effects_are_fixed():
    def function(x):
        h = jnp.sin(x)
        jax.debug.callback(lambda x: None, h)
        return h

    program = program_of(jax.make_jaxpr(function)(X).jaxpr)
    at = names(program.equations).index("debug_callback")
    assert np.flatnonzero(program.walk.fixed).tolist() == [at]


def traced_at(*files):
    """An equation with a stack of calls, the innermost first; each at the line of its number."""
    frames = [types.SimpleNamespace(file_name=f, line_num=k) for k, f in enumerate(files, 1)]
    info = types.SimpleNamespace(traceback=types.SimpleNamespace(frames=frames))
    return types.SimpleNamespace(source_info=info)


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (("/site/jax/_src/numpy.py", "/home/me/train.py", "/home/me/main.py"), "train.py:2"),
        (("C:\\me\\step.py",), "step.py:1"),
        (("/site/flax/linen/linear.py", "<frozen runpy>", "/site/optax/adam.py"), None),
    ],
)
def test_lines_are_the_users(files, line):
    assert user_line(traced_at(*files)) == line


def test_an_equation_without_a_stack_has_no_line():
    info = types.SimpleNamespace(traceback=None)
    assert user_line(types.SimpleNamespace(source_info=info)) is None
