"""Planned functions of one function share what was compiled where they are planned alike."""

import dataclasses
import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from olla_xla.compile import shared

pytestmark = pytest.mark.quick

X = jnp.arange(64.0).reshape(8, 8)


class Counted:
    """A function that counts how often it is traced."""

    def __init__(self):
        self.traces = 0

    def __call__(self, x):
        self.traces += 1
        return jnp.tanh(x @ x) + x

    def method(self, x):
        """As a call."""
        return self(x)


def test_callables_that_only_say_themselves_what_they_take_can_donate():
    first, second = (olla_xla.plan(f, donate_argnums=(0,)) for f in (jnp.add, jnp.multiply))
    np.testing.assert_array_equal(first(X + 1, X), 2 * X + 1)
    np.testing.assert_array_equal(second(X + 1, X), X * X + X)


def test_a_function_planned_twice_is_traced_and_planned_once():
    f = Counted()
    first = olla_xla.plan(f)(X)
    again = olla_xla.plan(f)
    np.testing.assert_array_equal(again(X), first)
    assert f.traces == 1 and len(again.plans) == 1
    assert again.lower(X).compile().plan is again.plans[0]
    again(X[:4, :4])
    assert f.traces == 2 and len(olla_xla.plan(f).plans) == 2
    again.clear_cache()
    olla_xla.plan(f)(X)
    assert f.traces == 3


def test_neither_other_options_nor_plain_functions_share():
    f = Counted()
    makes = [
        jax.jit,
        olla_xla.plan,
        functools.partial(olla_xla.plan, seed=1),
        functools.partial(olla_xla.plan, donate_argnums=0),
        functools.partial(olla_xla.plan, donate_argnums=[0]),
        functools.partial(olla_xla.plan, in_shardings={"x": None}["x"]),
        functools.partial(olla_xla.plan, enabled=False),
        functools.partial(olla_xla.plan, verify=True),
    ]
    made = [make(f) for make in makes]
    for g in made:
        g(X.copy())
    traces = f.traces
    assert traces >= len(makes)  # to verify, one more
    assert [len(g.plans) for g in made[1:]] == [1, 1, 1, 1, 1, 0, 1]
    for make in makes[:-1]:
        make(f)(X.copy())
    assert f.traces == traces


def test_what_is_not_used_any_more_goes_at_once():
    f = Counted()
    gone, step = weakref.ref(f), olla_xla.plan(f)
    step(X)
    gc.disable()
    try:
        del f
        assert gone() is not None and step(X).shape == X.shape
        del step
        assert gone() is None and not len(shared._known)
    finally:
        gc.enable()


def test_methods_are_one_function_as_long_as_one_is_held():
    counted = Counted()
    first = olla_xla.plan(counted.method)
    second = olla_xla.plan(counted.method)
    expected = first(X)
    del first
    np.testing.assert_array_equal(second(X), expected)
    assert second(X[:2, :2]).shape == (2, 2) and counted.traces == 2


def test_what_cannot_be_looked_up_again_is_planned_all_the_same():
    @dataclasses.dataclass
    class Scaled:  # equal to others, so not hashable
        by: float

        def __call__(self, x):
            return x * self.by

    class Slots:  # not to be held weakly
        __slots__ = ()

        def __call__(self, x):
            return x * 3

    for f in (Scaled(3.0), Slots()):
        np.testing.assert_array_equal(olla_xla.plan(f)(X), X * 3)


def test_names_are_those_of_the_function():
    def named(x, y):
        return x + y

    for f in (named, functools.partial(named, y=2), functools.partial(functools.partial(named), 1)):
        arguments = (X, X) if f is named else (X,)
        lines = [make(f).lower(*arguments).as_text() for make in (jax.jit, olla_xla.plan)]
        assert lines[0] == lines[1] and "jit_named" in lines[0]
