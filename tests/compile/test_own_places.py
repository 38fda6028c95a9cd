"""`placement="own"`: buffers of CPU executables in places of our own, run beside `jax.jit`."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from hlo.cpu_executable import CpuExecutable
from hlo.module import HloError
from hlo.wire import Message, read_varint, varint
from olla_xla.compile import own_places, planned
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import Proof
from olla_xla.tools import models
from tests.compile.test_sharded import printed
from tests.support import loop_programs
from tests.support.drawn import normals
from tests.support.steps import STEPS, arrays, assert_same

plan = functools.partial(olla_xla.plan, step_limit=2000)


def descended(loss, state):
    """A step of gradient descent with momentum: the momenta are dead memory until then."""
    weights, momenta = state
    value, gradients = jax.value_and_grad(loss)(weights)
    momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
    weights = [w - 0.1 * m for w, m in zip(weights, momenta, strict=True)]
    return (weights, momenta), value


def layers(state, x):
    def loss(weights):
        h = x
        for w in weights:
            h = jax.nn.relu(h @ w)
        return jnp.mean(h**2)

    return descended(loss, state)


def layer_arguments():
    shapes = [(256, 512), (512, 512), (512, 512), (512, 64)]
    state = normals(*shapes, scale=1 / 16), [jnp.zeros(s) for s in shapes]
    return state, jnp.ones((128, 256)) / 16


def own(function, **options):
    return plan(function, placement="own", **options)


def copied(args):
    return jax.tree.map(jnp.copy, args)


def test_a_step_is_identical_and_meets_its_bound():
    state, batch = layer_arguments()
    step = own(layers, donate_argnums=0)
    other = jax.jit(layers, donate_argnums=0)
    expected = copied(state)
    for _ in range(5):  # donated each time
        state, value = step(state, batch)
        expected, wanted = other(expected, batch)
        assert_same((expected, wanted), (state, value))
    (found,) = step.plans
    xla = plan(layers, donate_argnums=0).lower(state, batch).compile().plan
    assert found.placement == "own" and not found.placement_note
    assert found.recovered_bytes > 0
    assert found.assigned_bytes <= 1.001 * found.peak_bytes
    assert found.assigned_bytes < 0.99 * xla.assigned_bytes
    assert "placement" in found.summary() and "placement" not in xla.summary()


def test_a_model_is_identical():
    """And nearer to its bound than with XLA's places, which take 1.016 times it."""
    step, shapes, options = STEPS["resnet"]()
    compiled = own(step, **options).lower(*shapes).compile()
    args = arrays(shapes)
    expected = jax.jit(step, **options)(*copied(args))
    assert_same(expected, compiled(*copied(args)))
    assert not compiled.plan.placement_note
    assert compiled.plan.predicted_bytes == compiled.plan.peak_bytes  # not what was assigned
    assert compiled.plan.assigned_bytes <= 1.002 * compiled.plan.peak_bytes


def test_large_arguments_make_room_for_what_comes_later():
    """XLA copies each weight into another layout, first the smallest, which then fits nowhere."""
    model = models.build("lenet", batch_size=4, optimizer="sgd")
    with models.tracing(model.name):
        compiled = own(model.step, **model.jit_options).lower(*model.arguments).compile()
    assert compiled.plan.placement == "own"
    assert compiled.plan.assigned_bytes <= 1.001 * compiled.plan.peak_bytes


def test_places_by_the_integer_program():
    """Where the order comes from one."""
    state, batch = layer_arguments()
    step = own(layers, donate_argnums=0, method="ilp", backend="cpsat", time_limit=5)
    assert_same(jax.jit(layers)(copied(state), batch), step(copied(state), batch))
    (found,) = step.plans
    order, places = found.proofs
    assert (order.what, places.what, places.backend) == ("order", "places", "cpsat")
    assert places.bound_bytes <= places.peak_bytes < places.start_bytes
    assert found.placement == "own" and found.assigned_bytes <= 1.001 * found.peak_bytes


def proof(what, message):
    return Proof("t", "highs", "optimal", 1, 1, 1, 1, 0, 0, 2.0, message, what)


def test_a_stored_plan_solves_nothing_that_search_finds_again():
    order, given = proof("order", ""), SimpleNamespace(time_limit=8, seconds=3, tolerance=0.001)
    assert own_places._how(given, []) == {}
    for earlier, solves in (("", True), ("by ilp, highs", True), ("by search", False)):
        proofs = [order, proof("places", earlier)] if earlier else [order]
        how = own_places._how(given, proofs)
        assert bool(how) == solves and len(proofs) == 2 - solves
        assert not how or (how["time_limit"], how["backend"]) == (5, "highs")


def test_the_second_order_has_what_is_left_of_the_time():
    options = PlanOptions(method="ilp", placement="own", gap=0.01, time_limit=8)
    plan = SimpleNamespace(seconds=4.0, proofs=(proof("places", "by search"),))
    other = planned._for_xlas_places(options, plan)
    assert (other.method, other.placement, other.time_limit) == ("search", "xla", 2)
    plan.seconds = 9.0
    assert planned._for_xlas_places(options, plan).time_limit == 2
    assert planned._for_xlas_places(PlanOptions(placement="own"), plan).time_limit is None


PROGRAMS = (
    "cond", "counted_optimizer", "loop_in_a_loop", "slices_that_are_updated", "called_sums",
)  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_and_branches_are_identical(name):
    step, arguments = loop_programs.PROGRAMS[name]()
    arguments = jax.tree.map(jnp.asarray, arguments)
    compiled = own(step).lower(*arguments).compile()
    assert_same(jax.jit(step)(*copied(arguments)), compiled(*copied(arguments)))
    assert not compiled.plan.placement_note


def sums_of_rows(w, x):
    """A loop that reads of `w` in each iteration, then has other values in use."""

    def row(i, total):
        part = jax.lax.dynamic_slice_in_dim(w, 16 * i, 16) @ x
        return jax.lax.dynamic_update_slice_in_dim(total, jnp.sin(part) @ part.T @ part, 16 * i, 0)

    return jax.lax.fori_loop(0, 8, row, w)


def test_an_argument_that_each_iteration_reads_is_not_written_over():
    arguments = jnp.linspace(0, 1, 128 * 64).reshape(128, 64), jnp.eye(64)
    compiled = own(sums_of_rows, donate_argnums=0).lower(*arguments).compile()
    assert_same(jax.jit(sums_of_rows)(*arguments), compiled(*copied(arguments)))
    assert not compiled.plan.placement_note


def test_steps_over_several_devices_are_identical():
    for row in printed("tests.support.sharded_places"):
        assert row["same"] and not row["note"], row
        assert row["own"] <= row["xla"], row


def test_arguments_that_are_not_donated_at_run_time_are_kept():
    state, batch = layer_arguments()
    step = own(layers, donate_argnums=0)
    views = jax.tree.map(np.asarray, state)  # holds the memory, so that it cannot be given away
    before = jax.tree.map(np.copy, views)
    step(state, batch)
    assert step.plans[0].placement == "own"
    assert_same(before, views)


def test_stored_and_given_plans_have_their_places(tmp_path):
    state, batch = layer_arguments()
    first = own(layers, donate_argnums=0).lower(state, batch).compile().plan
    again = own(layers, donate_argnums=0).lower(state, batch).compile().plan
    assert (again.placement, again.assigned_bytes) == ("own", first.assigned_bytes)
    first.save(tmp_path / "plan")
    given = olla_xla.Plan.load(tmp_path / "plan")
    assert given == first
    compiled = plan(layers, plan=given, donate_argnums=0).lower(state, batch).compile()
    assert compiled.plan.placement == "own"
    assert compiled.plan.assigned_bytes == first.assigned_bytes


def test_what_is_not_known_keeps_xlas_places_and_says_why(monkeypatch, caplog):
    state, batch = layer_arguments()
    monkeypatch.setattr(own_places, "_TESTED", ())
    step = own(layers, donate_argnums=0, seed=1)
    assert_same(jax.jit(layers)(state, batch), step(copied(state), batch))
    (found,) = step.plans
    assert found.placement == "xla" and "jaxlib" in found.placement_note
    assert (
        "buffers keep XLA's addresses: olla_xla cannot change executables of jaxlib" in caplog.text
    )
    assert "jaxlib" in found.summary()
    monkeypatch.undo()

    def calls(state, x):
        (weights, momenta), value = layers(state, x)
        jax.debug.callback(lambda v: None, value)
        return weights, momenta, value

    step = own(calls, donate_argnums=0)
    step(copied(state), batch)
    assert "Python" in step.plans[0].placement_note


def test_a_wrong_place_is_not_run(monkeypatch):
    state, batch = layer_arguments()

    def overlapping(executable):
        places = [[a.slice for a in thunk.accesses] for thunk in executable.flat]
        temp = max(s.allocation for row in places for s in row)
        places = [
            [dataclasses.replace(s, offset=0) if s.allocation == temp else s for s in row]
            for row in places
        ]
        return executable.relocated(places, {}, {})

    monkeypatch.setattr(own_places.extensions, "own_places", overlapping)
    step = own(layers, donate_argnums=0, seed=2)
    assert_same(jax.jit(layers)(state, batch), step(copied(state), batch))
    assert "check failed" in step.plans[0].placement_note


def test_unknown_fields_are_refused():
    state, batch = layer_arguments()
    compiled = jax.jit(layers, donate_argnums=0).lower(state, batch).compile()
    data = compiled.runtime_executable().serialize()
    length, start = read_varint(data, 0)
    outer = Message(data[start + length :])
    outer.set_blob(1, outer.blob(1) + varint(99 << 3) + varint(1))
    with pytest.raises(HloError, match=r"not known: \[99\]"):
        CpuExecutable(data[: start + length] + outer.encode())
    for broken in (b"", b"\x05hello", data[:-7], data[: len(data) // 2]):
        with pytest.raises(HloError):
            CpuExecutable(broken)
    read = CpuExecutable(data)
    unchanged = [[a.slice for a in thunk.accesses] for thunk in read.flat]
    assert read.relocated(unchanged, {}, {}) == data
