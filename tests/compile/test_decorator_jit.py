"""A function that `olla_xla.plan` returns behaves as those of `jax.jit` do."""

import copy
import functools
import gc
import inspect
import pickle
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from olla_xla.analysis import analyze as compile_analyze
from olla_xla.compile import jax_private
from tests.support.steps import WIDTH, assert_same, branches, plan, rows, weights


def test_stages_are_those_of_jit():
    plain, planned = jax.jit(branches, donate_argnums=0), plan(branches, donate_argnums=0)
    arguments = (weights(), rows())
    lowered, ours = plain.lower(*arguments), planned.lower(*arguments)
    assert ours.args_info == lowered.args_info and ours.out_tree == lowered.out_tree
    assert ours.as_text() == lowered.as_text()
    traced = planned.trace(*arguments)
    assert str(traced.jaxpr) == str(plain.trace(*arguments).jaxpr)
    compiled, xla = traced.lower().compile(), lowered.compile()
    assert compiled.cost_analysis()["flops"] == xla.cost_analysis()["flops"]
    assert compiled.memory_analysis().temp_size_in_bytes < xla.memory_analysis().temp_size_in_bytes
    assert compiled.as_text().startswith("HloModule jit_branches")
    assert jax.tree.map(str, planned.eval_shape(*arguments)) == jax.tree.map(
        str, plain.eval_shape(*arguments)
    )
    assert_same(xla(*jax.tree.map(jnp.copy, arguments)), compiled(*arguments))


def test_it_is_still_the_function():
    planned = plan(branches)
    assert planned.__wrapped__ is branches and planned.__name__ == "branches"
    assert planned.__doc__ == branches.__doc__ and "branches" in repr(planned)
    assert inspect.signature(planned) == inspect.signature(branches)
    assert isinstance(planned, jax.stages.Wrapped)


def test_decorator_without_and_with_arguments():
    @olla_xla.plan
    def twice(x):
        return 2 * x

    @olla_xla.plan(step_limit=10, static_argnames="power")
    def raised(x, power):
        return x**power

    assert twice(3.0) == 6 and raised(2.0, power=3) == 8


def test_donation_and_static_arguments_are_read_from_the_jitted_function():
    @functools.partial(jax.jit, donate_argnames="state", static_argnums=2)
    def step(state, x, kind, scale=1.0):
        update = {"add": jnp.add, "multiply": jnp.multiply}[kind]
        return jax.tree.map(lambda s: update(s, x) * scale, state)

    planned = plan(step)
    for kind, expected in (("add", 10.0), ("multiply", 12.0)):
        state = {"a": jnp.full(5, 2.0), "b": [jnp.full((2, 2), 2.0)]}
        got = planned(state, 3.0, kind, scale=2.0)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
        assert all((leaf == expected).all() for leaf in jax.tree.leaves(got))
    assert len(planned.plans) == 2, "one for each static value"


def test_shardings_of_the_jitted_function_hold():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    jitted = jax.jit(
        lambda x: (x + 1, x * 2), in_shardings=sharding, out_shardings=(None, sharding)
    )
    assert_same(jitted(rows()), plan(jitted)(rows()))


def test_keyword_arguments_and_pytrees():
    planned = plan(branches, donate_argnames="weights")
    arguments = weights()
    expected = jax.jit(branches)(arguments, rows())
    assert_same(expected, planned(x=rows(), weights=arguments))
    assert all(w.is_deleted() for w in arguments)
    assert planned.plans[0].assigned_bytes < planned.plans[0].xla_bytes


def test_one_plan_for_each_signature(searches):
    planned = plan(branches)
    for _ in range(3):
        planned(weights(), rows(16))
        planned.lower(weights(), rows(16)).compile()
    assert len(searches) == len(planned.plans) == 1
    assert planned(weights(), rows(32))[0].shape == (WIDTH, WIDTH)
    planned(weights(2), rows(32))
    assert len(searches) == len(planned.plans) == 3


def test_traces_as_often_as_jit():
    traces = []

    def function(x):
        traces.append(x.shape)
        return x + 1

    planned = plan(function)
    for shape in ((3,), (3,), (5,)):
        planned(jnp.ones(shape))
        planned.lower(jnp.ones(shape)).compile()
    assert traces == [(3,), (5,)]


def test_cleared_cache_keeps_plans(searches):
    planned = plan(branches)
    expected = planned(weights(), rows(24))
    planned.clear_cache()
    assert_same(expected, planned(weights(), rows(24)))
    assert len(searches) == 1 and len(planned.plans) == 2


def test_compiler_options_get_plans_of_their_own(searches):
    planned = plan(branches)
    lowered = planned.lower(weights(), rows(40))
    options = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    for _ in range(2):
        lowered.compile()
        lowered.compile(options)
    assert len(searches) == len(planned.plans) == 2
    plan(jax.jit(branches, compiler_options=options)).lower(weights(), rows(40)).compile()
    assert len(searches) == 3, "options given to jit count too"
    plan(branches)(weights(), rows(40))
    plan(branches).lower(weights(), rows(40)).compile(options)
    assert len(searches) == 3, "another function of the same program takes over the plans"


@pytest.mark.parametrize("outer", ["jit", "grad", "vmap"])
def test_passes_through_under_an_outer_trace(outer):
    planned = plan(lambda x: jnp.tanh(x @ x).sum(0))
    plain = jax.jit(planned.__wrapped__)
    transforms = {
        "jit": lambda f: jax.jit(lambda x: f(x) + 1),
        "grad": lambda f: jax.grad(lambda x: f(x).sum()),
        "vmap": lambda f: jax.vmap(lambda k: f(k * rows(WIDTH))),
    }
    x = jnp.arange(3.0) if outer == "vmap" else rows()
    assert_same(transforms[outer](plain)(x), transforms[outer](planned)(x))
    assert not planned.plans
    planned(rows())
    assert len(planned.plans) == 1, "outside it is planned"


def test_methods():
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @functools.partial(olla_xla.plan, static_argnums=0)
        def __call__(self, x):
            return x * self.scale

        step = olla_xla.plan(lambda self, x: self.scale + x, static_argnums=0)

    assert Model(3.0)(2.0) == 6 and Model(4.0).step(2.0) == 6
    assert isinstance(Model.step, type(olla_xla.plan(lambda x: x)))


def test_disabled_jit_runs_the_function():
    ran = []
    planned = plan(lambda x: ran.append(type(x)) or x + 1)
    with jax.disable_jit():
        assert planned(jnp.float32(1)) == 2 and planned(jnp.float32(2)) == 3
    assert len(ran) == 2 and not issubclass(ran[0], jax.core.Tracer) and not planned.plans


def test_errors_of_the_function_are_its_own():
    def broken(x):
        raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        plan(broken)(1.0)
    with pytest.raises(TypeError, match="problematic value is of type"):
        plan(branches)("text", 1.0)


def test_calls_of_many_threads_make_one_plan(searches):
    planned = plan(branches)
    arguments, results = (weights(), rows(48)), {}
    start = threading.Barrier(4)

    def call(k):
        start.wait()
        results[k] = planned(*arguments)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(searches) == 1
    expected = jax.jit(branches)(*arguments)
    for k in range(4):
        assert_same(expected, results[k])


def test_copies_and_pickles_as_given():
    planned = plan(branches, donate_argnums=0, seed=3)
    for copied in (copy.deepcopy(planned), pickle.loads(pickle.dumps(planned))):
        assert copied is not planned and copied.__wrapped__ is branches
        arguments = weights()
        assert_same(jax.jit(branches)(arguments, rows(12)), copied(arguments, rows(12)))
        assert arguments[0].is_deleted() and copied.plans[0].seed == 3


def test_a_jax_without_a_miss_handler_looks_every_call_up(caplog):
    class Watch:
        seen = ()

        def miss(self, *given):
            self.seen += (given,)

    watch = Watch()
    call = jax_private.with_miss_handler(lambda x, y: x + y, weakref.WeakMethod(watch.miss))
    assert call(1, y=2) == 3 and call(2, y=2) == 4
    assert watch.seen == (((1,), {"y": 2}), ((2,), {"y": 2})) and "more overhead" in caplog.text
    del watch
    assert call(3, y=2) == 5


def test_nans_are_looked_for_when_that_is_asked_for_later():
    """JAX runs the function again, operator by operator, to say where a NaN came up."""
    step = plan(lambda x: 0.0 / x)
    for _ in range(2):
        step(jnp.array(0.0))
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        step(jnp.array(0.0)).block_until_ready()


def test_it_may_take_the_place_of_jax_jit(monkeypatch):
    own = jax.jit
    monkeypatch.setattr(jax, "jit", olla_xla.plan)

    @jax.jit
    def step(x):
        return jnp.tanh(x) @ x

    x = jnp.ones((64, 64))
    assert isinstance(step, olla_xla.PlannedFunction)
    np.testing.assert_array_equal(step(x), own(step.__wrapped__)(x))
    assert not isinstance(compile_analyze._functions(abs, False)[0], olla_xla.PlannedFunction)
    assert olla_xla.analyze(step, x).xla.total_bytes


def test_what_a_function_holds_goes_with_it():
    def made():
        held = jnp.arange(4.0)
        return plan(lambda: 2 * held), weakref.ref(held)

    planned, alive = made()
    planned(), planned.lower().compile()
    assert alive() is not None and planned()[1] == 2
    gc.disable()  # a garbage collection may come late, and memory is what this is about
    try:
        del planned
        assert alive() is None
    finally:
        gc.enable()


def test_names_are_not_inferred_where_both_ways_are_given():
    def f(x, y):
        kinds.append(isinstance(y, jax.core.Tracer))
        return x

    kinds: list[bool] = []
    planned = plan(jax.jit(f, static_argnums=1, static_argnames=()))
    planned(1, 2), planned(1, y=2)
    assert kinds == [False, True]


def test_attributes_and_the_number_of_signatures_are_there():
    def f(x):
        return x + 1

    f.tag = "mine"
    planned = plan(f)
    assert planned.tag == "mine" and planned._cache_size() == 0
    planned(1), planned(2), planned(1.0)
    assert planned._cache_size() == 2


def test_a_backend_is_jaxs_unless_it_names_a_solver():
    with pytest.warns(DeprecationWarning, match="on jit is deprecated"):  # as jit's
        olla_xla.plan(branches, backend="cpu")
    assert "backend" not in olla_xla.plan(branches, method="ilp", backend="highs").jit_options


def test_an_option_that_xla_does_not_know_is_its_own_error():
    lowered = plan(branches).lower(weights(), rows())
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        lowered.compile({"no_such_option": 1})
