"""`olla_xla.spill`: what is kept in host memory, with the same results as without."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.ad_checkpoint import checkpoint_name

import olla_xla
from hlo.module import module_from_bytes
from olla_xla import targets
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.errors import InputError, LimitError
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.loops import selection
from olla_xla.segments import spill as spilling
from olla_xla.segments.equations import scan_counts
from olla_xla.segments.spill import Spilled, SpillPlan
from tests.support import four_products
from tests.support.compiles import total_bytes
from tests.support.drawn import normals
from tests.support.plugins import H100, mark

WEIGHTS, X = (4, 16, 16), (8, 16)


def layer(h, w):
    return h + jnp.sin(jnp.tanh(h @ w)), None


def loss(w, x):
    return jnp.square(jax.lax.scan(layer, x, w)[0]).mean()


def step(w, x):
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * gradient, value


def microbatches(w, xs):
    def add(total, x):
        return total + jax.grad(loss)(w, x), loss(w, x)

    return jax.lax.scan(add, jnp.zeros_like(w), xs)


def over_time(w, xs):
    def cell(w):
        def body(h, x):
            h = jnp.tanh(h @ w[0] + x @ w[1])
            return h, jax.nn.softplus(h @ w[2])

        return jnp.sum(jax.lax.scan(body, xs[0], xs, reverse=True)[1] ** 2)

    return jax.grad(jax.jit(cell))(w)


def of_scans(w, x):
    def outer(h, ws):
        return jax.lax.scan(layer, jnp.cos(h), ws)[0], h.sum()

    def whole(w):
        h, sums = jax.lax.scan(outer, x, w.reshape(2, 2, 16, 16), unroll=2)
        return h.mean() + sums.sum()

    return jax.value_and_grad(whole)(w)


def also_returned(w, x):
    def body(h, w):
        h = jnp.tanh(h @ w)
        return h, h

    states = jax.lax.scan(body, x, w)[1]
    return states, jax.lax.scan(lambda c, h: (c + h.sum(), jnp.sin(h).sum()), 0.0, states)


PROGRAMS = {
    "layers": (step, (WEIGHTS, X), 2),
    "microbatches": (microbatches, (WEIGHTS, (3, *X)), 2),
    "over time": (over_time, ((3, 16, 16), (6, *X)), 2),
    "scans of scans": (of_scans, (WEIGHTS, X), 2),
    "layers under jax.checkpoint": (
        lambda w, x: jax.grad(lambda w: jax.lax.scan(jax.checkpoint(layer), x, w)[0].sum())(w),
        (WEIGHTS, X),
        1,
    ),
    "returned as well": (also_returned, (WEIGHTS, X), 0),
    "no scan": (lambda w, x: jax.grad(lambda w: (x @ w[0]).sum())(w), (WEIGHTS, X), 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_the_function(name):
    function, shapes, least = PROGRAMS[name]
    given = normals(*shapes, scale=1 / 4)
    spilled = olla_xla.spill(function, least_bytes=1)
    assert len(spilled.explain(*given).arrays) >= least
    assert bool(spilled.explain(*given).arrays) == bool(least)
    want, got = jax.jit(function)(*given), jax.jit(spilled)(*given)
    jax.tree.map(np.testing.assert_array_equal, want, got)


@pytest.mark.parametrize("name", [name for name, (_, _, least) in PROGRAMS.items() if least])
def test_copies_in_neighbouring_iterations_keep_the_bits(name, monkeypatch):
    function, shapes, _ = PROGRAMS[name]
    given = normals(*shapes, scale=1 / 4)
    in_place = str(jax.make_jaxpr(olla_xla.spill(function, least_bytes=1))(*given))
    monkeypatch.setattr(spilling, "_OF_THE_LINK", 100.0)
    spilled = olla_xla.spill(function, least_bytes=1)
    assert str(jax.make_jaxpr(spilled)(*given)) != in_place
    want, got = jax.jit(function)(*given), jax.jit(spilled)(*given)
    jax.tree.map(np.testing.assert_array_equal, want, got)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_random_scans_keep_their_bits(data):
    operations = (jnp.sin, jnp.tanh, jax.nn.gelu, jnp.exp, lambda h: h - h.mean(-1, keepdims=True))
    chosen = data.draw(st.lists(st.sampled_from(operations), min_size=1, max_size=4))
    reverse, unroll = data.draw(st.booleans()), data.draw(st.sampled_from((1, 2)))
    budget = data.draw(st.integers(1, 2**14))
    speed = data.draw(st.sampled_from((1.0, 30.0, 100.0, 300.0, 1e4)))  # which copies get how long

    def body(h, w):
        h = h @ w
        for operation in chosen:
            h = operation(h)
        return jnp.tanh(h), h.sum()

    def function(w, x):
        def of(w):
            h, sums = jax.lax.scan(body, x, w, reverse=reverse, unroll=unroll)
            return h.mean() + jnp.sin(sums).sum()

        return jax.value_and_grad(of)(w)

    w, x = normals(WEIGHTS, X, scale=1 / 4)
    share = data.draw(st.sampled_from((0.3, 1.0, math.inf)))  # as `plan(host_budget=)` tries them
    spilled = spilling.of_scans(function, 1, budget, share)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling, "_OF_THE_LINK", speed)
        got = jax.jit(spilled)(w, x)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(function)(w, x), got)


def test_it_composes_with_donation_a_plan_and_vmap():
    w, x = normals(WEIGHTS, X, scale=1 / 4)
    spilled = olla_xla.spill(step, least_bytes=1)
    want = jax.jit(step)(w, x)
    for function in (
        jax.jit(spilled, donate_argnums=0),
        olla_xla.plan(spilled, donate_argnums=0),
        lambda w, x: jax.tree.map(lambda a: a[0], jax.jit(jax.vmap(spilled))(w[None], x[None])),
    ):
        got = function(w.copy(), x)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), want, got)


def test_what_is_spilled_is_told():
    w, x = normals(WEIGHTS, X, scale=1 / 4)
    size = 4 * 8 * 16 * 4
    plan = olla_xla.spill(step, least_bytes=1).explain(w, x)
    assert [a.bytes for a in plan.arrays] == [size] * len(plan.arrays)
    assert plan.host_bytes == size * len(plan.arrays)
    assert {a.array for a in plan.arrays} == {"float32[4,8,16]"}
    assert all(a.line.startswith("test_spill.py:") and a.readers == 1 for a in plan.arrays)
    assert "float32[4,8,16]  test_spill.py:" in str(plan) and "in host memory" in str(plan)
    one = olla_xla.spill(step, least_bytes=1, host_budget=2 * size - 1).explain(w, x)
    assert len(one.arrays) == 1
    assert olla_xla.spill(step).explain(w, x).arrays == ()  # below 1 MiB
    assert str(SpillPlan((Spilled("f32[2]", 2**20, "", 1),))).splitlines()[0].endswith("f32[2]")


def in_a_call(function):
    return jax.checkpoint(function, policy=jax.checkpoint_policies.save_only_these_names("kept"))


@pytest.mark.parametrize("wrapped", [lambda function: function, jax.jit, in_a_call])
def test_a_budget_goes_to_copies_that_computation_hides(wrapped):
    """Not to the widest array, which is made last and read first."""

    def body(h, w):
        early = checkpoint_name(jnp.sin(h @ w[0]), "kept")
        for _ in range(3):
            early = jnp.tanh(early @ w[1])
        late = checkpoint_name(jnp.concatenate([early @ w[2]] * 2), "kept")
        return jnp.sin(late[:8] * late[8:]), None

    def function(w, x):
        return jax.grad(lambda w: jax.lax.scan(wrapped(body), x, w)[0].sum())(w)

    given = normals((4, 3, 16, 16), X, scale=1 / 4)
    every = olla_xla.spill(function, least_bytes=1).explain(*given).arrays
    assert every[0].array == "float32[4,16,16]"
    budget = every[0].bytes + every[-1].bytes - 1
    chosen = olla_xla.spill(function, least_bytes=1, host_budget=budget).explain(*given).arrays
    assert chosen and "float32[4,16,16]" not in {a.array for a in chosen}


@pytest.mark.quick
@pytest.mark.parametrize(("copied", "filled"), [(6, [2, 3, 8]), (12, [5, 6, 8])])
def test_copies_fill_the_link_and_wait_as_long_as_they_may(copied, filled):
    """The forward scan, of 0.46 of the work, makes 8 arrays; links copy `copied` in all of it."""
    given = four_products.shapes(64, 4096)
    size = 8 * 4096 * 64 * 2
    waits = [0.01, 0.1, math.inf]
    found = spilling.spilled_by_waits(
        four_products.step, given, {}, 99 * size, waits, copied * size
    )
    assert [plan.host_bytes // size for _, plan in found] == filled
    # What the last layer stores waits in the scans' states for an iteration to be copied in.
    scans = [e for e in jax.make_jaxpr(found[1][0])(*given).eqns if e.primitive.name == "scan"]
    assert [scan_counts(e)[1] for e in scans] == [1 + copied // 6, 1 + copied // 6]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"fun": 3}, InputError),
        ({"least_bytes": "many"}, InputError),
        ({"least_bytes": 0}, LimitError),
        ({"host_budget": -1}, LimitError),
    ],
)
def test_what_is_given_wrongly_is_refused(given, error):
    with pytest.raises(error):
        olla_xla.spill(**{"fun": step, **given})


def placed(target):
    targets.prepare_environment(target)
    shapes = [jax.ShapeDtypeStruct((16, 512, 512), "float32")]
    return targets.target(target).place([*shapes, jax.ShapeDtypeStruct((4096, 512), "float32")])


@mark("cuda13")
def test_a_plan_computes_again_what_is_copied_more_slowly():
    given = placed("h100")
    spilled = olla_xla.spill(step)
    planned = olla_xla.plan(spilled, donate_argnums=0).lower(*given).compile()
    assert planned.planned and planned.plan.overhead < -0.3, planned.reason
    assert planned.memory_analysis().host_temp_size_in_bytes < spilled.explain(*given).host_bytes
    assert planned.plan.assigned_bytes <= planned.plan.xla_bytes


@mark("cuda13")
def test_copies_that_an_iteration_would_wait_for_get_a_whole_one(monkeypatch):
    """What a layer makes last and its derivative reads first."""

    def body(h, w):
        wide = checkpoint_name(h @ w @ w.T @ w, "wide")
        return jnp.sin(wide).reshape(-1, 4, h.shape[1]).sum(1), None

    def step(w, x):
        kept = jax.checkpoint_policies.save_only_these_names("wide")
        layers = jax.checkpoint(body, policy=kept)
        return jax.grad(lambda w: jax.lax.scan(layers, x, w)[0].astype("float32").sum())(w)

    targets.prepare_environment("h100")
    shapes = (8, 4096, 16384), (8192, 4096)
    w, x = targets.target("h100").place([jax.ShapeDtypeStruct(s, "bfloat16") for s in shapes])
    cost = CostModel(device("cuda", ""), "cuda")

    def compiled():
        done = jax.jit(olla_xla.spill(step)).lower(w, x).compile()
        return run_seconds(module_from_bytes(final_module(done)), cost), assigned_bytes(done)

    seconds, size = compiled()
    monkeypatch.setattr(spilling, "_OF_THE_LINK", 1e-9)
    waiting, least = compiled()
    two_slices = 2 * 8192 * 16384 * 2
    assert seconds < 0.8 * waiting and size <= least + two_slices


@mark("cuda13")
def test_a_plan_computes_from_what_is_fetched_from_the_host():
    """Copies that computation hides stay: to drop them would save no memory of the device."""

    targets.prepare_environment("h100")
    given = targets.target("h100").place(list(four_products.shapes(4096, 8192)))
    spilled = olla_xla.spill(four_products.step, host_budget="513MiB")
    allowed = {"max_overhead": 0.35, "donate_argnums": 0}
    planned = olla_xla.plan(spilled, **allowed).lower(*given).compile()
    assert planned.memory_analysis().host_temp_size_in_bytes == 2**29
    assert planned.plan.slowdown < 0.35
    assert planned.plan.assigned_bytes < planned.plan.xla_bytes - 3 * 2**29


class _Choices(list):
    """Made-up choices: (predicted seconds, total bytes, whether residuals leave the host)."""

    total, free = 100, property(len)

    def choice(self, k):
        seconds, total, _ = self[k]
        return SimpleNamespace(seconds=seconds, total=total, number=k)

    def leaves_host(self, choice):
        return self[choice.number][2]


@pytest.mark.parametrize(
    ("choices", "chosen"),
    [
        ([(-1.0, 90, False), (-2.0, 120, True)], 0),  # memory of the device comes first
        ([(-1.0, 120, True), (-2.0, 130, True)], 1),  # else the fastest
        ([(-1.995, 120, True), (-2.0, 130, True)], 0),  # of the fastest, the smallest
        ([(-1.0, 120, False), (1.0, 90, True)], None),
    ],
)
def test_what_only_saves_copies_is_free(choices, chosen, monkeypatch):
    monkeypatch.setattr(selection, "is_right", lambda choices, choice: True)
    found = selection.free(_Choices(choices))
    assert (None if found is None else found.number) == chosen


@pytest.mark.parametrize("target", [H100, pytest.param("v5e", marks=mark("tpu"))])
def test_device_memory_moves_to_the_host(target):
    given, spilled = placed(target), olla_xla.spill(step)
    plan = spilled.explain(*given)
    usual = jax.jit(step, donate_argnums=0).lower(*given).compile()
    assert usual.memory_analysis().host_temp_size_in_bytes == 0
    analysis = olla_xla.analyze(jax.jit(spilled, donate_argnums=0), *given)
    assert analysis.xla.elsewhere["host memory"] == plan.host_bytes
    assert "test_spill.py" in analysis.xla.operator_line
    saved = total_bytes(usual) - analysis.xla.total_bytes
    assert saved > 0.7 * plan.host_bytes  # a TPU had some in VMEM
