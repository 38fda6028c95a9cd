"""A plan handed over as a policy of `jax.checkpoint`, which put by hand gives the plan's total."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import olla_xla
from hlo.module import module_from_bytes
from olla_xla import targets
from olla_xla.compile.accounting import assigned_bytes, host_bytes
from olla_xla.planner import plan_module
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import LoopRecord
from olla_xla.remat.cost import devices
from olla_xla.remat.cost.roofline import Device
from olla_xla.remat.loops.pairs import pairs
from olla_xla.tools.capture import capture
from olla_xla.tools.policy import policy_of
from tests.support import four_products
from tests.support.plugins import mark

ARGUMENTS = jnp.zeros((16, 2, 64, 64)), jnp.zeros((2048, 64))
LIMITS = {"time_limit": 5, "step_limit": 2000, "donate_argnums": 0}
RATES = Device(
    "CPU", 5e10, 5e10, 5e9, 1e11, 2e-6, transposed_bytes_per_second=2e9, fresh_bytes_per_second=4e9
)


@pytest.fixture(autouse=True)
def rates(monkeypatch):
    """What is cheapest depends on them, and a machine's own are measured beside what else runs."""
    monkeypatch.setattr(devices, "calibrated_cpu", lambda: RATES)


def named(h, w):
    up = checkpoint_name(h @ w[0], "up")
    down = checkpoint_name(jnp.sin(up) @ w[1], "down")
    return h + jnp.sin(down), None


def half_named(h, w):
    up = h @ w[0]
    return h + jnp.sin(checkpoint_name(jnp.sin(up) @ w[1], "down")), None


def step_of(body):
    def step(w, x):
        def loss(w):
            return (jax.lax.scan(body, x, w)[0] ** 2).mean()

        return w - jax.grad(loss)(w)

    return step


@functools.cache
def planned_within(overhead):
    """The planned step, which has its plan, and that as a policy.

    Each layer has six products: one that is computed again takes a seventh of it, two a quarter.
    """
    planned = olla_xla.plan(step_of(named), max_overhead=overhead, **LIMITS)
    return planned, planned.as_policy(*ARGUMENTS)


@pytest.mark.parametrize(("overhead", "kept"), [(0.2, 1), (0.5, 0)])
def test_by_hand_it_gives_the_plans_total(overhead, kept):
    planned, policy = planned_within(overhead)
    assert not policy.unnamed and sorted((*policy.names, *policy.recomputed)) == ["down", "up"]
    assert len(policy.names) == kept
    by_hand = step_of(jax.checkpoint(named, policy=policy.policy()))
    total = olla_xla.plan(by_hand, **LIMITS).lower(*ARGUMENTS).compile().plan.assigned_bytes
    assert abs(total / planned.plans[-1].assigned_bytes - 1) <= 0.05
    jitted = jax.jit(by_hand, donate_argnums=0).lower(*ARGUMENTS)
    assert abs(capture(jitted).assigned_bytes / planned.plans[-1].assigned_bytes - 1) <= 0.1


def test_what_is_kept_and_has_no_name_is_told_with_its_line():
    policy = olla_xla.plan(step_of(half_named), **LIMITS).as_policy(*ARGUMENTS)
    assert policy.names == ("down",)
    first = policy.unnamed[0]
    assert first.bytes == 8 * 2**20 and "test_policy.py:" in first.line
    text = str(policy)
    assert text.startswith(
        "jax.checkpoint_policies.save_only_these_names('down')\n# unnamed residual: 8.0"
    )


def twice_read(h, w):
    """Of `up` and `down` themselves JAX stacks nothing, but six times what is made of them."""
    up = checkpoint_name(h @ w[0], "up")
    down = checkpoint_name((jnp.sin(up) * jnp.exp(up)) @ w[1], "down")
    return h + jnp.sin(down) * jnp.exp(down), None


def test_what_gets_a_new_residual_has_its_name():
    traced = jax.jit(step_of(twice_read), donate_argnums=0).trace(*ARGUMENTS)
    data = capture(traced.lower()).module
    module, plan = module_from_bytes(data), plan_module(data, PlanOptions(), target="cpu")
    (pair,) = pairs(module, "cpu")
    products = [
        i.name
        for i in pair.writer.body.computation.instructions
        if i.op_name.endswith("dot_general") and i.shape.dimensions == (2048, 64)
    ]
    derived = [r.written for r in pair.scan_residuals if r.value.i.opcode != "parameter"]

    def policy(*kept):
        new = tuple((name, ()) for name in kept)
        record = LoopRecord(pair.writer.i.name, pair.reader.i.name, tuple(derived), 0, new)
        return policy_of(traced.jaxpr, module, dataclasses.replace(plan, loops=(record,)))

    assert len(products) == 2 and len(derived) >= 7
    both = policy(*products)
    assert both.names == ("up", "down") and not both.unnamed
    one = policy(products[1])
    assert len(one.names) == len(one.recomputed) == 1 and not one.unnamed
    assert {one.names, policy(products[0]).names} == {("up",), ("down",)}
    body = pair.writer.body.computation.instructions
    (unnamed,) = policy(next(i.name for i in body if i.op_name.endswith("/exp"))).unnamed
    assert unnamed.bytes == 8 * 2**20


def test_as_maxtexts_flags():
    _, policy = planned_within(0.2)
    (kept,), (made,) = policy.names, policy.recomputed
    assert policy.maxtext() == f"remat_policy=custom {kept}=device {made}=remat"


def four_named(h, w):
    x = h = checkpoint_name(h, "input")
    for k in "abcd":
        x = jnp.tanh(checkpoint_name(x @ w[k], k))
    return h + x, None


def on_h100(width, rows):
    targets.prepare_environment("h100")
    weights, x = four_products.shapes(width, rows)
    return targets.target("h100").place([weights, x], [dict.fromkeys(weights, -1), 0])


@mark("cuda13")
def test_what_waits_in_host_memory_does_so_by_hand_too():
    """Kept, recomputed and spilled together, by XLA's totals on the device and on the host."""
    given = on_h100(4096, 8192)
    options = {"donate_argnums": 0, "step_limit": 1000}
    planned = olla_xla.plan(
        four_products.step_of(four_named), host_budget="512MiB", memory_budget="2800MiB", **options
    )
    policy, plan = planned.as_policy(*given), planned.lower(*given).compile().plan
    assert policy.offloaded == ("input",) and not policy.unnamed
    assert policy.maxtext().startswith("remat_policy=custom input=offload ")
    called = "save_and_offload_only_these_names(names_which_can_be_saved=[], names_which_can_be_o"
    assert str(policy).startswith(
        f"jax.checkpoint_policies.{called}ffloaded=['input'], offload_src"
    )
    body = jax.checkpoint(four_named, policy=policy.policy())
    by_hand = jax.jit(four_products.step_of(body), donate_argnums=0).lower(*given).compile()
    assert host_bytes(by_hand) == pytest.approx(plan.host_bytes, rel=0.1) and plan.host_bytes
    assert assigned_bytes(by_hand) == pytest.approx(plan.assigned_bytes, rel=0.05)


@mark("cuda13")
def test_what_is_spilled_and_has_no_name_is_told():
    planned = olla_xla.plan(olla_xla.spill(four_products.step), donate_argnums=0, step_limit=1000)
    policy = planned.as_policy(*on_h100(1024, 2048))
    assert not policy.names + policy.offloaded and any(one.spilled for one in policy.unnamed)
    assert "# unnamed residual (spilled): 32.0 MB of " in str(policy)


def test_without_scans_there_is_nothing_to_name():
    step = olla_xla.plan(lambda w, x: jnp.tanh(x @ w).sum(), time_limit=1)
    policy = step.as_policy(jnp.zeros((64, 64)), jnp.zeros((8, 64)))
    assert (policy.names, policy.recomputed, policy.unnamed) == ((), (), ())


def test_without_a_plan_it_says_why():
    step = olla_xla.plan(step_of(named), enabled=False)
    with pytest.raises(olla_xla.CheckError, match="step has no plan: enabled=False"):
        step.as_policy(*ARGUMENTS)
