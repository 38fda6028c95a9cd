"""What goes wrong around a plan: the step runs, and one line says what happened."""

import dataclasses
import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

import olla_xla
from hlo.module import module_from_bytes, parse_module_proto
from olla_xla import planner
from olla_xla.compile import compiles, environment, outcomes, plan_store
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.problem.plan import Plan
from tests.support.rewrites import with_schedule
from tests.support.steps import assert_same, branches, count_searches, plan, rows, weights

ROOT = Path(olla_xla.__file__).parents[1]


@pytest.fixture(autouse=True)
def no_stored_plans():
    plan_store.process_store().clear()


def broken(error):
    def plan_module(*args, **kwargs):
        raise error

    return plan_module


def rejected_by_xla(monkeypatch):
    monkeypatch.setattr(compiles.Compiles, "write", lambda *_: (b"no module", ""))


FAULTS = {
    "out of memory": lambda m: m.setattr(planner, "plan_module", broken(MemoryError())),
    "too deep": lambda m: m.setattr(planner, "plan_module", broken(RecursionError("too deep"))),
    "a solver's licence": lambda m: m.setattr(
        planner, "plan_module", broken(olla_xla.SolverError("no licence"))
    ),
    "XLA rejects the module": rejected_by_xla,
    "the plan is another module's": lambda m: m.setattr(
        planner, "apply_plan", broken(olla_xla.PlanMismatchError("another module"))
    ),
    "the executable runs another order": lambda m: (
        m.setattr(compiles, "text_of", lambda _: "another"),
        m.setattr(compiles, "order_difference", lambda *_: "it runs a where the plan has b"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_step_runs_and_one_line_says_why(monkeypatch, caplog, name):
    FAULTS[name](monkeypatch)
    events = []
    stop = olla_xla.on_plan(events.append)
    step = plan(branches, donate_argnums=0)
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.INFO, "olla_xla"):
        warnings.simplefilter("always")
        got = step(weights(), rows(12))
        assert_same(got, step(weights(), rows(12)))
    stop()
    assert_same(jax.jit(branches)(weights(), rows(12)), got)
    (event,) = events
    assert event.fell_back and not event.planned and event.reason
    lines = [r for r in caplog.records if r.levelno == logging.INFO and "own schedule" in r.message]
    assert len(lines) == 1 and event.reason in lines[0].message
    said = [w for w in caught if issubclass(w.category, olla_xla.PlanWarning)]
    assert len(said) <= 1
    # As an error, if that is wanted; and nothing of it is remembered.
    monkeypatch.setenv("OLLA_XLA_STRICT", "1")
    strict = plan(branches, donate_argnums=(0,))  # shares nothing with the one above
    for _ in range(2):
        with pytest.raises(olla_xla.FallbackError, match="branches is not planned"):
            strict(weights(), rows(12))
    monkeypatch.undo()
    monkeypatch.setenv("OLLA_XLA_STRICT", "1")
    assert strict.lower(weights(), rows(12)).compile().planned


def test_no_gain_and_a_tie_are_no_fault(monkeypatch, caplog):
    search = planner.plan_module

    def modest(*args, **kwargs):
        found = search(*args, **kwargs)
        return dataclasses.replace(found, predicted_bytes=found.predicted_bytes - 5000)

    monkeypatch.setenv("OLLA_XLA_STRICT", "1")
    monkeypatch.setattr(planner, "plan_module", modest)
    monkeypatch.setattr(outcomes, "assigned_bytes", lambda _: 10**6)  # the plan's, and XLA's own
    with caplog.at_level(logging.INFO, "olla_xla"), warnings.catch_warnings(action="error"):
        compiled = plan(branches, donate_argnums=0).lower(weights(), rows(14)).compile()
    assert not compiled.planned and compiled.reason == outcomes.NO_GAIN
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


def test_disabled_it_is_jit(monkeypatch):
    monkeypatch.setenv("OLLA_XLA_DISABLE", "1")
    monkeypatch.setattr(planner, "plan_module", None)
    step = plan(branches, donate_argnums=0, memory_budget=1000)
    given = weights()
    assert_same(jax.jit(branches)(weights(), rows(15)), step(given, rows(15)))
    assert given[0].is_deleted() and not step.plans
    compiled = step.lower(weights(), rows(15)).compile()
    assert not compiled.planned and compiled.plan is None and "DISABLE" in compiled.reason
    plain = jax.jit(branches, donate_argnums=0).lower(weights(), rows(15)).compile()
    assert assigned_bytes(compiled) == assigned_bytes(plain)


@pytest.mark.parametrize(
    "name, value, read",
    [
        ("OLLA_XLA_DISABLE", "yes", environment.disabled),
        ("OLLA_XLA_STRICT", "2", environment.strict),
        ("OLLA_XLA_LOG", "xml", environment.log_is_json),
        ("OLLA_XLA_PATIENCE", "soon", environment.patience),
        ("OLLA_XLA_PATIENCE", "-1", environment.patience),
        ("OLLA_XLA_PATIENCE", "inf", environment.patience),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(monkeypatch, name, value, read):
    monkeypatch.setenv(name, value)
    with pytest.raises(olla_xla.InputError, match=f"{name}='{value}'"):
        read()


def test_a_line_for_machines_and_one_for_listeners(monkeypatch, caplog):
    monkeypatch.setenv("OLLA_XLA_LOG", "json")
    events = []

    def failing(event):
        raise ZeroDivisionError

    ends = [olla_xla.on_plan(failing), olla_xla.on_plan(events.append)]
    with caplog.at_level(logging.INFO, "olla_xla"):
        compiled = plan(branches, donate_argnums=0).lower(weights(), rows(16)).compile()
    for end in ends:
        end()
        end()
    (line,) = [r.message for r in caplog.records if r.message.startswith("{")]
    assert json.loads(line) == dataclasses.asdict(events[0])
    assert events[0].bytes == compiled.plan.assigned_bytes < events[0].xla_bytes
    assert events[0].processes == 1 and 0 < events[0].search_seconds <= events[0].seconds
    assert "a callback of olla_xla.on_plan raised an error" in caplog.text
    plan(branches, donate_argnums=0).lower(weights(), rows(16)).compile()
    assert len(events) == 1


def renamed(module):
    """XLA's module as another run of it might name its instructions."""
    proto = parse_module_proto(module)
    for computation in proto.computations:
        for i in computation.instructions:
            i.name += ".other" * (i.opcode == "fusion")
    return proto.SerializeToString()


def reordered(module):
    """XLA's module with all constants and parameters first."""
    first = {
        c.name: [i.name for i in sorted(c.schedule, key=lambda i: bool(i.operands))]
        for c in module_from_bytes(module).control_computations
    }
    return with_schedule(module, first)


@pytest.mark.parametrize("other, searches", [(renamed, 2), (reordered, 1)])
def test_another_schedule_the_second_time(monkeypatch, caplog, other, searches):
    """A plan does not depend on XLA's order, but it fits one module."""
    names = count_searches(monkeypatch)
    first = plan(branches, donate_argnums=0).lower(weights(), rows(20)).compile()
    compiled = compiles.Compiles._compiled

    def otherwise(self, token, answer, **how):
        return compiled(self, token, lambda platform, m: answer(platform, other(m)), **how)

    monkeypatch.setattr(compiles.Compiles, "_compiled", otherwise)
    with caplog.at_level(logging.INFO, "olla_xla"):
        second = plan(branches, donate_argnums=(0,)).lower(weights(), rows(20)).compile()
    assert len(names) == searches
    assert ("stored plan does not fit this program" in caplog.text) == (searches == 2)
    assert first.planned and second.planned
    assert second.plan.assigned_bytes == first.plan.assigned_bytes
    assert_same(first(weights(), rows(20)), second(weights(), rows(20)))


def test_a_donation_that_is_lost_on_the_way_is_noticed(monkeypatch):
    """XLA is handed a module that keeps its arguments: the step runs without the plan."""
    write = compiles.Compiles.write

    def without(*args):
        planned, objects = write(*args)
        proto = parse_module_proto(planned)
        proto.ClearField("input_output_alias")
        return proto.SerializeToString(), objects

    monkeypatch.setattr(compiles.Compiles, "write", without)
    with pytest.warns(olla_xla.PlanWarning, match="memory of 6 of 6 donated arguments"):
        compiled = plan(branches, donate_argnums=0).lower(weights(), rows(21)).compile()
    assert not compiled.planned
    plain = jax.jit(branches, donate_argnums=0).lower(weights(), rows(21)).compile()
    assert assigned_bytes(compiled) == assigned_bytes(plain)


def test_a_forked_child_ends_and_the_parent_goes_on():
    step = plan(branches, donate_argnums=0)
    step(weights(), rows(17))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of what threads may hold
        child = os.fork()
    if not child:
        found = step.plans[0]
        os._exit(0 if isinstance(found, Plan) and repr(step) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert_same(jax.jit(branches)(weights(), rows(17)), step(weights(), rows(17)))


def test_what_hides_our_package_is_named(tmp_path):
    (tmp_path / "hlo.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text("import olla_xla\n")
    run = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = run.stderr.splitlines()[-1]
    assert str(tmp_path / "hlo.py") in last and "rename" in last


@jax.tree_util.register_pytree_node_class
class Vector:
    """A pytree that holds arrays of one dimension and nothing else."""

    def __init__(self, data):
        assert data.ndim == 1
        self.data = data

    def tree_flatten(self):
        return (self.data,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@pytest.mark.parametrize("options", [{}, {"memory_budget": "1MiB"}])
def test_what_a_callers_own_code_raises_while_it_is_lowered_is_not_ours(monkeypatch, options):
    def fails(context, value):
        raise KeyError("the caller's")

    primitive = Primitive("lowers_not")
    primitive.def_abstract_eval(lambda value: value)
    mlir.register_lowering(primitive, fails)
    monkeypatch.setenv("OLLA_XLA_STRICT", "1")
    with pytest.raises(KeyError, match="the caller's"):
        olla_xla.plan(lambda x: primitive.bind(x) * 2, **options)(jnp.arange(4.0))


def test_a_pytree_that_takes_arrays_only_runs_as_with_jit(monkeypatch):
    def doubled(v):
        return Vector(v.data * 2)

    x = Vector(jnp.arange(4.0))
    planned = olla_xla.plan(doubled)
    with pytest.warns(olla_xla.PlanWarning, match="ArgInfo.*ndim"):
        np.testing.assert_array_equal(planned(x).data, jax.jit(doubled)(x).data)
    with pytest.raises(olla_xla.FallbackError, match="is not planned"):
        olla_xla.plan(doubled, memory_budget="1MiB")(x)
    monkeypatch.setenv("OLLA_XLA_STRICT", "1")
    with pytest.raises(olla_xla.FallbackError, match="is not planned"):
        olla_xla.plan(doubled, time_limit=2)(x)
