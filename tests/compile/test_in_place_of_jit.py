"""`jax.jit = olla_xla.plan`: what jit takes is taken, and does the same, bit for bit."""

import dataclasses

import flax.nnx as nnx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from olla_xla.memory.own_jit import own_jit
from olla_xla.remat.cost import calibrate, cpu_benchmarks, devices
from olla_xla.tools.capture import capture
from tests.support.steps import assert_same, branches, plan, rows, weights

WAYS = pytest.mark.parametrize("jit", [own_jit, plan], ids=["jit", "plan"])


@pytest.fixture
def replaced(monkeypatch):
    monkeypatch.setattr(jax, "jit", plan)


def layers(weights, x):
    """A train step whose activations can be computed again."""

    def loss(weights):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return (h**2).sum()

    grads = jax.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]


# A machine that has not been measured.


def test_a_machine_is_measured_by_jax_s_own_jit(replaced, monkeypatch, tmp_path):
    """The benchmarks jit functions that are jitted already, and planning waits for them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(devices, "calibrated_cpu", calibrate.calibrated_cpu)
    monkeypatch.setattr(cpu_benchmarks, "_ROUNDS", 1)
    monkeypatch.setattr(cpu_benchmarks, "_MOMENT", 1e-3)
    calibrate._calibrated.cache_clear()
    events = []
    stop = olla_xla.on_plan(events.append)
    try:
        step = olla_xla.plan(layers, max_overhead=0.5, donate_argnums=0)
        arguments = [w[:] for w in weights(8)], rows(2048)
        expected = own_jit(layers)(*arguments)
        assert_same(expected, step(*arguments))
    finally:
        stop()
        calibrate._calibrated.cache_clear()
    assert list(tmp_path.glob("olla_xla/cpu-*.json")), "it was measured"
    (event,) = events
    assert event.planned and event.bytes < event.xla_bytes, event.reason


# Jitted functions, jitted again.


@WAYS
def test_a_jitted_function_is_jitted_again(jit, replaced):
    x = rows()
    inner = jit(lambda x, scale: jnp.tanh(x @ x) * scale, donate_argnums=0)
    outer = jit(lambda x: inner(x, 2.0) + 1)
    expected = np.tanh(x @ x) * 2 + 1
    np.testing.assert_allclose(jit(outer)(x), expected, rtol=1e-4)
    assert_same(own_jit(own_jit(outer.__wrapped__))(x), jit(outer)(x))
    jit(inner)(x, 2.0)
    assert not x.is_deleted(), "what is inlined donates nothing"
    donated = jnp.copy(x)
    jit(inner, donate_argnums=0)(donated, 2.0)
    assert donated.is_deleted()


def test_a_planned_function_is_to_plan_what_a_jitted_one_is_to_jit():
    x = weights(5), rows()
    inner = plan(branches, donate_argnums=0)
    outer = olla_xla.plan(inner)
    assert plan(inner).__wrapped__ is inner, "planned as it is already"
    assert_same(own_jit(branches)(*x), outer(*x))
    assert not x[0][0].is_deleted(), "as in jax.jit(jax.jit(f, donate_argnums=0))"
    assert outer.__wrapped__ is inner and not inner.plans
    otherwise = olla_xla.plan(inner, time_limit=3)
    assert otherwise.__wrapped__ is branches and otherwise.jit_options["donate_argnums"] == 0
    with pytest.raises(ValueError, match="Non-hashable static"):
        olla_xla.plan(plan(branches, static_argnums=1))(*x)


def test_options_of_a_function_that_jit_made_before(replaced):
    vector = jnp.arange(3.0)
    norm = jax.jit(jnp.linalg.norm, static_argnames="ord")
    assert norm(vector, ord=1) == 3.0
    with pytest.raises(ValueError, match="Non-hashable static"):  # as jit's
        jax.jit(own_jit(jnp.add, static_argnums=1), keep_unused=True)(vector, 1)
    kept = jax.jit(own_jit(lambda x, y: x), keep_unused=True).lower(vector, vector)
    inner = own_jit(lambda x, y: x)
    assert kept.as_text() == own_jit(inner, keep_unused=True).lower(vector, vector).as_text()


@pytest.mark.filterwarnings("ignore:jax.experimental.pjit:DeprecationWarning")
def test_pjit_is_a_function_like_any_other():
    from jax.experimental.pjit import pjit

    x = rows()
    step = pjit(lambda x: jnp.tanh(x @ x))
    assert_same(step(x), plan(step)(x))
    assert_same(step(x), plan(step, donate_argnums=0)(x))


def test_nnx_jit(replaced, caplog):
    """Flax jits functions of its own, and calls of a jitted one are inlined."""
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    step = nnx.jit(lambda model, x: model(x).sum())
    x = jnp.ones((4, 8))
    inside = step(model, x)
    assert not caplog.text
    assert jax.jit(step)(model, x) == inside == own_jit(step)(model, x)
    assert "nnx.split" in caplog.text and "like jax.jit" in caplog.text


def test_nnx_objects_are_updated_as_by_jit(monkeypatch):
    def trained():
        model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))

        @nnx.jit
        def step(model, x):
            grads = nnx.grad(lambda model: (model(x) ** 2).mean())(model)
            model.kernel[...] -= 0.1 * grads.kernel[...]

        for _ in range(3):
            step(model, jnp.ones((4, 8)))
        return model.kernel[...]

    expected = trained()
    monkeypatch.setattr(jax, "jit", plan)
    assert_same(expected, trained())


def test_equinox_filter_jit(replaced, caplog):
    eqx = pytest.importorskip("equinox")
    step = eqx.filter_jit(lambda x: jnp.tanh(x @ x))
    assert_same(own_jit(step)(rows()), jax.jit(step)(rows()))
    assert "eqx.partition" in caplog.text
    net = eqx.nn.MLP(4, 4, 8, 2, key=jax.random.key(0))
    assert_same(net(jnp.ones(4)), eqx.filter_jit(lambda net, x: net(x))(net, jnp.ones(4)))


# What olla_xla compiles for itself.


def test_what_xla_makes_of_a_step_is_not_planned(replaced):
    """`max_batch` and benchmarks are given what `jax.jit(step).lower(...)` returns."""
    arguments = weights(5), rows()
    lowered = jax.jit(branches, donate_argnums=0).lower(*arguments)
    own = own_jit(branches, donate_argnums=0).lower(*arguments)
    found = capture(lowered)
    assert found.assigned_bytes == capture(own).assigned_bytes
    assert lowered.compile().planned  # pyright: ignore[reportAttributeAccessIssue]


# Stages and messages.


def test_messages_name_the_function():
    def mine(x):
        return x

    with pytest.raises(TypeError, match="function .*mine at") as error:
        plan(mine)("text")
    assert "weakproxy" not in str(error.value) and "partial" not in str(error.value)

    def generator():
        yield 1

    with pytest.raises(TypeError, match="generator function: <function .*generator at"):
        plan(generator)
    with pytest.raises(TypeError, match="takes a function"):
        plan(3)  # pyright: ignore


# Nothing at all.


@pytest.mark.parametrize("options", [{}, {"max_overhead": 0.1}, {"memory_budget": "1MiB"}])
def test_a_module_of_no_bytes(options, recwarn):
    for function in (lambda x: x + 1, lambda x: (x, None)):
        planned = plan(function, **options)
        assert_same(function(jnp.ones((0, 3))), planned(jnp.ones((0, 3))))
        compiled = planned.lower(jnp.ones((0, 3))).compile()
        assert compiled.plan is not None and compiled.plan.assigned_bytes == 0, compiled.reason
        assert repr(compiled) and repr(planned)
    assert not recwarn.list


def test_a_function_need_not_say_what_it_takes():
    class Tanh:
        @property
        def __signature__(self):
            raise TypeError("no signature")

        def __call__(self, x):
            return jnp.tanh(x)

    assert_same(own_jit(Tanh())(rows()), plan(Tanh())(rows()))


def test_attributes_of_a_callable_object_hide_no_method():
    class Model:
        def __init__(self):
            self._compiled = self._outcome = self._before_miss = self.lower = self._report = None
            self._shared, self.width = None, 64

        def __call__(self, x):
            return jnp.tanh(x @ x)

    planned = plan(Model())
    assert_same(own_jit(Model().__call__)(rows()), planned(rows()))
    assert planned.width == 64 and planned.lower(rows()).compile().plan is not None


# What JAX raises.


@pytest.mark.filterwarnings("error")
def test_what_cannot_be_lowered_raises_jax_s_own_error():
    mystery = jax.extend.core.Primitive("mystery")
    mystery.def_abstract_eval(lambda x: x)
    with pytest.raises(NotImplementedError, match="mystery"):
        plan(mystery.bind)(jnp.ones(3))


def test_what_only_a_call_can_lower_is_said_once_it_has_run():
    class Pair:
        def __init__(self, first, second):
            assert not isinstance(first, jax.stages.ArgInfo), "arrays only"
            self.first, self.second = first, second

    jax.tree_util.register_pytree_node(
        Pair, lambda p: ((p.first, p.second), None), lambda _, both: Pair(*both)
    )
    ran = []
    step = plan(lambda p: ran.append(p) or p.first @ p.second)
    with pytest.warns(olla_xla.PlanWarning, match="arrays only"):
        got = step(Pair(rows(), rows()))
    assert_same(own_jit(lambda x: x @ x)(rows()), got)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class OneOfTwo:
    """A pytree that looks at what it is given."""

    value: jax.Array
    left: jax.Array | None
    right: jax.Array | None

    def __post_init__(self):
        if (self.left is None) == (self.right is None):
            raise ValueError("exactly one of left and right must be set")


def test_a_pytree_that_takes_no_none_for_an_unused_array_is_planned():
    """A tree of shardings of the arguments has None where the executable takes none."""
    x = OneOfTwo(rows(2048), None, rows(4))
    step = plan(lambda w, x: layers(w, x.value))
    assert_same(own_jit(layers)(weights(8), x.value), step(weights(8), x))
    assert step.plans
