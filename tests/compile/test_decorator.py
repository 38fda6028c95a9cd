"""`olla_xla.plan` with the real planner, end to end on small Flax steps; trouble and bad input."""

import functools
import logging
import re
import types
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import olla_xla
from olla_xla import planner
from olla_xla.compile import decorator, planned_function
from tests.support.compiles import on_h100, total_bytes
from tests.support.steps import STEPS, WIDTH, arrays, assert_same, branches, plan, rows, weights

# What it is for: the same results with less memory.


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.optimized
def test_train_steps_are_bit_identical_and_smaller(name):
    step, shapes, jit_options = STEPS[name]()
    (expected_state, batch), (planned_state, _) = arrays(shapes), arrays(shapes)
    plain, planned = jax.jit(step, **jit_options), plan(step, **jit_options)
    for _ in range(4):
        donated = jax.tree.leaves(planned_state)
        expected_state, expected_loss = plain(expected_state, batch)
        planned_state, loss = planned(planned_state, batch)
        assert_same((expected_state, expected_loss), (planned_state, loss))
        assert all(leaf.is_deleted() for leaf in donated), "the state is donated"
    (used,) = planned.plans
    compiled = planned.lower(planned_state, batch).compile()
    assert compiled.planned and compiled.plan is used, compiled.reason
    assert used.assigned_bytes == total_bytes(compiled) < used.xla_bytes
    assert used.xla_bytes == total_bytes(plain.lower(planned_state, batch).compile())
    leaves = len(donated)
    assert compiled.donation.requested == compiled.donation.aliased == leaves
    # The call above and this stage share one executable.
    planned_state, loss = compiled(planned_state, batch)
    assert_same(plain(expected_state, batch), (planned_state, loss))


@functools.cache
def lenet():
    """The planned LeNet step, compiled ahead of time from shapes."""
    step, arguments, jit_options = STEPS["lenet"]()
    return plan(step, **jit_options).lower(*arguments).compile()


def test_plan_says_what_was_found():
    compiled, found = lenet(), lenet().plan
    assert found.lower_bound_bytes <= found.least_peak_bytes <= found.peak_bytes
    assert found.peak_bytes <= found.assigned_bytes < found.xla_bytes
    assert abs(found.predicted_bytes / found.assigned_bytes - 1) < 0.005
    assert found.status in ("optimal", "feasible") and found.seconds > 0
    assert found.target == "cpu" and found.source in found.candidates
    executable = compiled.runtime_executable().hlo_modules()[0]
    assert planner.module_order(executable.as_serialized_hlo_module_proto()) == found.order
    ends = [offset + size for offset, size in found.offsets.values()]
    assert min(offset for offset, _ in found.offsets.values()) == 0
    assert found.peak_bytes <= max(ends) <= found.assigned_bytes * 1.01


def test_check_compares_xlas_assignment_with_the_plan():
    report = lenet().check()
    assert report.assigned_bytes == lenet().plan.assigned_bytes
    assert report.tensors == sum(size > 0 for _, size in lenet().plan.offsets.values())
    assert not report.added and not report.dropped


def test_attributes_show_the_plan_in_a_dump(tmp_path):
    step, arguments, jit_options = STEPS["lenet"]()
    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True}
    compiled = plan(step, **jit_options).lower(*arguments).compile(options)
    assert compiled.planned
    dumps = [p.read_text() for p in tmp_path.glob("*after_optimizations.txt")]
    for text in (compiled.as_text(), next(d for d in dumps if "olla_xla.step" in d)):
        entry = text[text.index("\nENTRY") :]
        steps = re.findall(r"olla_xla\.step=\"(\d+)\"", entry)
        assert [int(s) for s in steps] == list(range(len(steps))) and len(steps) > 50
        sizes = re.findall(r"olla_xla\.bytes=\"(\d+)\"", entry)
        assert len(sizes) == len(steps)
        assert sum(map(int, sizes)) == sum(size for _, size in compiled.plan.offsets.values())


# Train states.


class Network(nn.Module):
    """Two layers, batch statistics between them."""

    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=False)(nn.Dense(128)(x))
        return nn.Dense(4)(nn.relu(x))


def test_linen_train_state():
    class State(TrainState):
        batch_stats: dict

    model, optimizer = Network(), optax.adam(1e-3)

    def new_state():
        variables = model.init(jax.random.key(0), rows())
        return State.create(
            apply_fn=model.apply,
            params=variables["params"],
            batch_stats=variables["batch_stats"],
            tx=optimizer,
        )

    def step(state, x):
        def loss(params):
            variables = {"params": params, "batch_stats": state.batch_stats}
            y, updates = state.apply_fn(variables, x, mutable=["batch_stats"])
            return jnp.mean(y**2), updates["batch_stats"]

        (value, batch_stats), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients, batch_stats=batch_stats), value

    planned, plain = plan(step, donate_argnums=0), jax.jit(step, donate_argnums=0)
    ours, theirs = new_state(), new_state()
    for _ in range(3):
        donated = ours.params["Dense_0"]["kernel"]
        (ours, loss), (theirs, expected) = planned(ours, rows()), plain(theirs, rows())
        assert_same((theirs, expected), (ours, loss))
        assert donated.is_deleted()
    assert isinstance(ours, State) and len(planned.plans) == 1


def test_nnx_state():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.inner = nnx.Linear(WIDTH, 128, rngs=rngs)
            self.outer = nnx.Linear(128, 4, rngs=rngs)

        def __call__(self, x):
            return self.outer(nnx.relu(self.inner(x)))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def step(graph, state, x):
        model, optimizer = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    planned = plan(step, static_argnums=0, donate_argnums=1)
    plain = jax.jit(step, static_argnums=0)
    for _ in range(3):
        expected, loss = plain(graph, state, rows())
        ours, ours_loss = planned(graph, jax.tree.map(jnp.copy, state), rows())
        assert_same((expected, loss), (ours, ours_loss))
        state = expected
    assert len(planned.plans) == 1


# Targets without a device.


def test_shapes_are_enough():
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (weights(), rows(56)))
    planned = plan(branches)
    compiled = planned.lower(*shapes).compile()
    assert_same(jax.jit(branches)(weights(), rows(56)), compiled(weights(), rows(56)))
    planned(weights(), rows(56))
    assert len(planned.plans) == 1, "the call runs what was compiled from shapes"


@pytest.mark.cuda13
def test_h100():
    step, arguments, jit_options = STEPS["lenet"]()
    planned = plan(step, **jit_options)
    compiled = planned.lower(*on_h100(arguments)).compile()
    found = compiled.plan
    assert found.target == "cuda" and found.lower_bound_bytes <= found.assigned_bytes
    assert found.assigned_bytes == total_bytes(compiled) <= found.xla_bytes
    report = compiled.check()
    assert report.assigned_bytes == found.assigned_bytes and report.thunks


# What cannot be planned runs with XLA's schedule.


def test_failed_planning_warns_once(monkeypatch, recwarn):
    def broken(module, options, **kwargs):
        raise olla_xla.GraphError("no such operator")

    monkeypatch.setattr(planner, "plan_module", broken)
    planned = plan(branches, donate_argnums=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = planned(weights(), rows(8))
        compiled = planned.lower(weights(), rows(9)).compile()
        planned(weights(), rows(8))
    (warning,) = [w for w in caught if issubclass(w.category, olla_xla.PlanWarning)]
    assert "branches" in str(warning.message) and "no such operator" in str(warning.message)
    assert warning.filename == __file__
    assert_same(jax.jit(branches)(weights(), rows(8)), got)
    assert compiled.plan is None and not compiled.planned and "operator" in compiled.reason
    with pytest.raises(olla_xla.CheckError, match="no such operator"):
        compiled.check()


def test_no_better_order_costs_one_compile_and_no_search(caplog):
    """Where XLA's order meets the bound, hardly more is spent than without olla_xla."""

    def chain(x):
        for _ in range(40):
            x = jnp.tanh(x @ x)
        return x

    plan(lambda x: x + 1)(1.0)  # Loads the planner.
    compiles = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: compiles.append(event.split("/")[-1])
    )
    planned = plan(chain)
    with caplog.at_level(logging.INFO, "olla_xla"):
        compiled = planned.lower(rows()).compile()
    assert compiles.count("backend_compile_duration") == 1
    assert not compiled.planned and compiled.reason == "no order found beats XLA's"
    assert "no order needs less" in caplog.text
    found = compiled.plan
    assert found.status == "optimal" and found.source == "xla" and found.steps == 0
    assert found.assigned_bytes == found.xla_bytes == total_bytes(compiled)
    executable = compiled.runtime_executable().hlo_modules()[0]
    assert planner.module_order(executable.as_serialized_hlo_module_proto()) == found.order


@pytest.mark.parametrize("name", ["_check_names", "PlanOptions", "planned_function"])
def test_a_bug_where_a_function_is_decorated_leaves_it_to_jit(monkeypatch, caplog, name):
    def bug(*_, **__):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(decorator, name, bug)
    expected = jax.jit(branches)(weights(), rows(10))
    for make in (plan, plan(donate_argnums=0), plan(max_overhead=0.1)):
        caplog.clear()
        assert_same(expected, make(branches)(weights(), rows(10)))
        assert (
            "branches is not planned, because of a bug: ZeroDivisionError: of ours" in caplog.text
        )
    with pytest.raises(ZeroDivisionError):
        plan(branches, memory_budget="1GiB")
    monkeypatch.setenv("OLLA_XLA_STRICT", "1")
    with pytest.raises(ZeroDivisionError):
        plan(branches)


def test_debug_nans_is_said_to_disable_donation(caplog):
    planned = plan(branches, donate_argnums=0)
    arguments = weights()
    with jax.debug_nans(True):
        planned(arguments, rows(10))
    assert not arguments[0].is_deleted()
    assert "jax_debug_nans" in caplog.text and "donation" in caplog.text
    caplog.clear()
    plan(functools.partial(branches), donate_argnums=0)(arguments, rows(10))
    assert arguments[0].is_deleted() and "nans" not in caplog.text


def test_among_many_processes_only_what_is_one_processs_own_is_planned_alone(
    monkeypatch, caplog, searches
):
    monkeypatch.setattr(jax, "process_count", lambda *_: 2)
    assert plan(branches).lower(weights(), rows(11)).compile().planned and len(searches) == 1
    for devices, reason in [
        ((), "not known before it is compiled"),
        (tuple(types.SimpleNamespace(process_index=k) for k in range(2)), "distributed.initialize"),
    ]:
        monkeypatch.setattr(planned_function, "devices_of", lambda _, devices=devices: devices)
        planned = plan(functools.partial(branches))
        compiled = planned.lower(weights(), rows(11)).compile()
        assert not compiled.planned and reason in compiled.reason
        assert len(searches) == 1 and compiled.reason in caplog.text
        assert_same(jax.jit(branches)(weights(), rows(11)), planned(weights(), rows(11)))


# Bad input.


@pytest.mark.parametrize(
    "make, error, match",
    [
        (lambda: olla_xla.plan(3), olla_xla.JitError, "takes a function, not int"),
        (
            lambda: olla_xla.plan(jax.jit(branches).lower(weights(), rows())),
            olla_xla.JitError,
            "pass the function itself",
        ),
        (lambda: olla_xla.plan(branches, limit=3), olla_xla.JitError, "no option 'limit'"),
        (
            lambda: olla_xla.plan(branches, max_overheads=3),
            olla_xla.JitError,
            "no option 'max_overheads' (did you mean max_overhead?)",
        ),
        (lambda: olla_xla.plan(branches, donate_argnums="x"), olla_xla.JitError, "jax.jit"),
        (lambda: olla_xla.plan(branches, time_limit=0), olla_xla.LimitError, "time_limit=0"),
        (lambda: olla_xla.plan(branches, time_limit=-1.0), olla_xla.LimitError, "positive"),
        (lambda: olla_xla.plan(branches, step_limit=0), olla_xla.LimitError, "step_limit=0"),
        (lambda: olla_xla.plan(branches, time_limit="1"), olla_xla.InputError, "time_limit='1'"),
        (lambda: olla_xla.plan(branches, enabled=0), olla_xla.InputError, "must be True or False"),
        (lambda: olla_xla.plan(branches, fission="yes"), olla_xla.InputError, "fission='yes'"),
    ],
)
def test_bad_input(make, error, match):
    with pytest.raises(error, match=re.escape(match)) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, olla_xla.OllaError)


def test_old_jax_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.10.2")
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
    with pytest.raises(olla_xla.VersionError, match=r"needs jax>=0\.11\.2, not 0\.10\.2") as e:
        olla_xla.plan(branches)
    assert "pip install" in str(e.value) and "\n" not in str(e.value)


def test_a_jax_that_was_not_tested_is_refused_unless_asked_for(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.14.0")
    monkeypatch.setattr(jax, "__version_info__", (0, 14, 0))
    with pytest.raises(olla_xla.VersionError, match=r"jax<0\.14, but finds jax 0\.14\.0; .*=1"):
        olla_xla.plan(branches)
    monkeypatch.setenv("OLLA_XLA_ANY_JAX", "1")
    assert olla_xla.plan(branches)


def test_a_small_step_is_compiled_as_jit_does_and_can_be_checked():
    """By default nothing is looked for where all that a step makes takes a few hundred kB."""

    def step(x):
        return jnp.tanh(x @ x) @ x

    compiled = olla_xla.plan(step).lower(jnp.ones((32, 32))).compile()
    assert not compiled.planned and compiled.reason == "no order found beats XLA's"
    plan = compiled.plan
    assert plan.seconds == 0 and plan.source == "xla"
    assert plan.lower_bound_bytes <= plan.assigned_bytes == plan.xla_bytes
    assert compiled.check().assigned_bytes == plan.assigned_bytes
    explicit = olla_xla.plan(step, step_limit=100).lower(jnp.ones((32, 32))).compile()
    assert explicit.plan.peak_bytes > 0
