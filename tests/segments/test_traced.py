"""Traced functions as programs: calls inlined, effects fixed, the user's lines."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from olla_xla.segments.equations import user_line
from olla_xla.segments.trace import inlined, program_of

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
