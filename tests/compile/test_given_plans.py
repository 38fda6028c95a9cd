"""What planned functions say of themselves, plans that are given, and planning switched off."""

import dataclasses
import functools
import inspect
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import olla_xla
from olla_xla.compile.decorator import PlanKeywords
from olla_xla.problem.options import PlanOptions
from tests.support.compiles import total_bytes
from tests.support.steps import assert_same, branches, count_searches, plan, rows, weights


@functools.cache
def made():
    """A plan of `branches`."""
    planned = plan(branches, donate_argnums=0)
    planned(weights(), rows())
    return planned.plans[0]


# What they say.


def test_functions_and_executables_say_what_was_planned():
    planned = plan(branches, donate_argnums=0)
    assert repr(planned) == "<olla_xla.plan of branches: nothing planned yet>"
    compiled = planned.lower(weights(), rows()).compile()
    line = r"[\d.]+ MB instead of [\d.]+, bound [\d.]+, \d+\.\d s"
    assert re.fullmatch(f"<olla_xla.plan of branches, compiled: planned, {line}>", repr(compiled))
    assert re.fullmatch(f"<olla_xla.plan of branches: {line}>", repr(planned))
    planned.lower(weights(), rows(8)).compile()
    assert repr(planned).endswith("; 2 plans>")


def test_executables_say_why_they_are_not_planned():
    small = plan(lambda x: x + 1).lower(1.0).compile()
    assert "compiled: not planned, no order found beats XLA's: " in repr(small)
    jax.config.update("jax_enable_pgle", True)
    try:
        other = plan(branches).lower(weights(), rows(12)).compile()
    finally:
        jax.config.update("jax_enable_pgle", False)
    assert "jax_enable_pgle" in other.reason
    assert repr(other) == f"<olla_xla.plan of branches, compiled: not planned, {other.reason}>"


def test_names_of_the_package():
    assert olla_xla.PlannedFunction is type(plan(branches))
    assert olla_xla.PlannedCompiled is type(plan(lambda x: x).lower(1.0).compile())
    assert re.fullmatch(r"\d+\.\d+\.\d+", olla_xla.__version__)
    assert all(hasattr(olla_xla, name) for name in olla_xla.__all__)


def test_editors_know_every_option():
    jit = [name for name in inspect.signature(jax.jit).parameters if name != "fun"]
    own = [field.name for field in dataclasses.fields(PlanOptions)]  # name a new one there
    assert set(PlanKeywords.__annotations__) == {*own, *jit}


# Plans that are given.


def test_a_saved_plan_is_applied_without_a_search(tmp_path, monkeypatch):
    made().save(tmp_path / "branches.plan")
    searches = count_searches(monkeypatch)
    given = olla_xla.Plan.load(tmp_path / "branches.plan")
    again = olla_xla.plan(branches, plan=given, donate_argnums=0)
    compiled = again.lower(weights(), rows()).compile()
    assert compiled.planned and not searches
    assert compiled.plan.order == given.order and total_bytes(compiled) == given.assigned_bytes
    assert_same(jax.jit(branches)(weights(), rows()), again(weights(), rows()))


def test_a_plan_of_another_program_is_refused():
    again = olla_xla.plan(branches, plan=made(), donate_argnums=0)
    with pytest.raises(
        olla_xla.PlanMismatchError, match="plan=: the plan was made for module jit_branches"
    ) as e:
        again(weights(), rows(16))
    assert "\n" not in str(e.value)
    kept = olla_xla.plan(jnp.sin).lower(rows()).compile().plan
    with pytest.raises(olla_xla.PlanMismatchError, match="does not fit module jit_cos"):
        olla_xla.plan(jnp.cos, plan=kept).lower(rows()).compile()
    same = olla_xla.plan(jnp.sin, plan=kept).lower(rows()).compile()
    assert not same.planned and same.plan == kept
    with pytest.raises(olla_xla.InputError, match="Plan.load"):
        olla_xla.plan(branches, plan="branches.plan")  # pyright: ignore


def test_a_given_plan_must_meet_a_budget():
    tight = olla_xla.plan(branches, plan=made(), donate_argnums=0, memory_budget=1000)
    with pytest.raises(olla_xla.BudgetError):
        tight.lower(weights(), rows()).compile()


# Planning switched off.


def test_disabled_is_what_jit_does(monkeypatch, caplog):
    searches = count_searches(monkeypatch)
    plain = olla_xla.plan(branches, enabled=False, memory_budget=1, donate_argnums=0)
    donated = weights()
    assert_same(jax.jit(branches)(weights(), rows()), plain(donated, rows()))
    compiled = plain.lower(weights(), rows()).compile()
    assert not compiled.planned and compiled.reason == "enabled=False" and compiled.plan is None
    assert donated[0].is_deleted() and not searches and not caplog.text and not plain.plans
    assert repr(plain) == "<olla_xla.plan of branches: not planned: enabled=False>"
    with pytest.raises(olla_xla.InputError, match="enabled=1 must be True or False"):
        olla_xla.plan(branches, enabled=1)  # pyright: ignore


# Functions that other libraries jit.


def test_what_nnx_jit_loses_is_said_with_what_to_write(caplog):
    class Holder:
        @nnx.jit
        def method(self, x):
            return x

    for fn in (nnx.jit(branches), nnx.jit(donate_argnums=0)(branches), Holder.method):
        caplog.clear()
        olla_xla.plan(fn)
        (said,) = caplog.messages
        assert "plan a plain function" in said and "nnx.merge(graph, state)" in said
        assert "\n" not in said


def test_what_the_equinox_message_says_works(caplog):
    eqx = pytest.importorskip("equinox")
    olla_xla.plan(eqx.filter_jit(branches))
    (said,) = caplog.messages
    assert "plan a plain function" in said and "eqx.partition" in said and "\n" not in said

    model = eqx.nn.MLP(64, 8, 16, 1, key=jax.random.key(0))
    optimizer = optax.adam(1e-2)
    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    arrays, rest = eqx.partition((model, opt_state), eqx.is_array)

    @olla_xla.plan(donate_argnums=0)
    def step(arrays, batch):
        model, opt_state = eqx.combine(arrays, rest)
        loss, grads = eqx.filter_value_and_grad(lambda m: jnp.mean(jax.vmap(m)(batch) ** 2))(model)
        updates, opt_state = optimizer.update(grads, opt_state)
        model = eqx.apply_updates(model, updates)
        return eqx.filter((model, opt_state), eqx.is_array), loss

    arrays, first = step(arrays, rows())
    arrays, second = step(arrays, rows())
    assert second < first
