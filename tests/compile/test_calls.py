"""A call of a planned function goes the way of `jax.jit`'s own: one call in Python more."""

import gc
import sys

import jax
import jax.numpy as jnp
import pytest

import olla_xla


def _step(state):
    """Updates every leaf of a dict; branches of larger temporaries give the planner an order."""
    x = jnp.ones((64, 4), jnp.float32)
    hidden = [jnp.tanh(x @ leaf) for leaf in list(state.values())[:8]]
    scales = [jnp.mean(h @ h.T) * 1e-3 for h in hidden]
    return {name: leaf * 0.5 + scales[k % 8] for k, (name, leaf) in enumerate(state.items())}


def _python_calls(function, argument):
    """Calls of Python functions while this one runs."""
    met = []

    def profile(frame, event, _):
        if event == "call":
            met.append(frame.f_code.co_qualname)

    gc.disable()  # JAX's hook of it is a call in Python too
    sys.setprofile(profile)
    try:
        function(argument)
    finally:
        sys.setprofile(None)
        gc.enable()
    return met


@pytest.mark.parametrize("leaves", [10, 200])
def test_a_call_adds_one_call_in_python_to_those_of_jit(leaves):
    """All else is JAX's own way to the executable, in C++."""
    given = {f"leaf{i:04d}": jnp.full((4, 4), 0.01 * i, jnp.float32) for i in range(leaves)}
    for function, expected in (
        (jax.jit(_step), []),
        (olla_xla.plan(_step, step_limit=100), ["PlannedFunction.__call__"]),
    ):
        state = function(function(given))  # Twice: outputs may differ from inputs in kind.
        assert _python_calls(function, state) == expected
