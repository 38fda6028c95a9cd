"""What a planned function says of large arguments that could be donated and are not."""

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla.analysis.compiled_leaves import donation_hint

LARGE, SMALL = (1024, 512), (64, 64)  # 2 MiB and 16 KiB of float32


def step(state, batch):
    return state - 0.1 * jnp.tanh(state + batch.sum()), batch.mean()


def _compiled(shape, **options):
    return jax.jit(step, **options).lower(jnp.zeros(shape), jnp.zeros(SMALL)).compile()


def test_a_large_argument_that_is_not_donated_is_named():
    hint = donation_hint(_compiled(LARGE))
    assert hint.startswith("argument state (2.0 MB) is not donated, though an output has the same")
    assert "donate_argnums=0 saves" in hint


@pytest.mark.parametrize(
    "compiled",
    [lambda: _compiled(LARGE, donate_argnums=0), lambda: _compiled(SMALL)],
    ids=["donated", "small"],
)
def test_nothing_is_said_where_nothing_is_gained(compiled):
    assert donation_hint(compiled()) == ""


def test_a_large_argument_without_a_result_of_its_type_is_not_named():
    compiled = jax.jit(lambda state, batch: batch + state.sum()).lower(
        jnp.zeros(LARGE), jnp.zeros(SMALL)
    )
    assert donation_hint(compiled.compile()) == ""


def test_a_planned_function_says_it_once(caplog):
    planned = olla_xla.plan(step, time_limit=1)
    planned(jnp.zeros(LARGE), jnp.zeros(SMALL))
    planned(jnp.zeros(LARGE), jnp.zeros((32, 32)))
    assert caplog.text.count("not donated") == 1


def test_several_arguments_and_their_numbers():
    def adam(weights, mu, nu, x):
        return weights - x.mean() * mu, mu + x.mean(), nu * x.mean()

    compiled = jax.jit(adam).lower(*[jnp.zeros(LARGE)] * 3, jnp.zeros(SMALL)).compile()
    hint = donation_hint(compiled)
    assert hint.startswith("3 arguments (weights, ...; 6.0 MB) are not donated")
    assert "donate_argnums=(0, 1, 2)" in hint
