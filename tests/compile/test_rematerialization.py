"""XLA:GPU's own rematerialization is off where a step fits without it."""

import functools
import logging

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from hlo.module import module_from_bytes
from olla_xla.compile import rematerialization
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.tools import models
from tests.support.compiles import QUICK, on_h100

LIMIT = "xla_gpu_memory_limit_slop_factor"


@functools.cache
def mlp():
    """A training step of the zoo, jit's options, and shapes."""
    model = models.build("mlp", batch_size=124_000, optimizer="adam")
    return model.step, model.jit_options, model.arguments


def with_adam(layers, means, squares, x):
    """Two layers, whose products XLA's fusions overwrite: its estimate counts both."""

    def loss(layers):
        y = x
        for up, down in layers:
            y = y + jax.nn.silu(y @ up) @ down
        return (y.astype(jnp.float32) ** 2).mean()

    def adam(p, m, v, g):
        g = g.astype(jnp.float32)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return p - (1e-3 * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype), m, v

    value, gradients = jax.value_and_grad(loss)(layers)
    return jax.tree.map(adam, layers, means, squares, gradients), value


def of_layers(dtype):
    shapes = jax.ShapeDtypeStruct((1024, 4096), dtype), jax.ShapeDtypeStruct((4096, 1024), dtype)
    return [shapes] * 2


def adam():
    state = of_layers(jnp.bfloat16), of_layers(jnp.float32), of_layers(jnp.float32)
    shapes = (*state, jax.ShapeDtypeStruct((65_536, 1024), jnp.bfloat16))
    return with_adam, {"donate_argnums": (0, 1, 2)}, shapes


def two_phases(x, w, a, m):
    """First two large products, at the peak; then one that is overwritten, beside a softmax."""
    h = x @ w
    total = (h @ w).sum()
    q = jax.nn.softmax(a)
    b = h * (total + (q @ (m * total)).sum())
    total = ((b * b) @ m[:1024]).sum()
    return total + (q @ (m * total)).sum()


def phases():
    shapes = (80_000, 1024), (1024, 1024), (8192, 2048), (2048, 8)
    return two_phases, {}, tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)


def short(percent):
    """Compiler options that leave so many hundredths of an H100 for temporaries."""
    return {**QUICK, LIMIT: percent}


def planned(step, percent, **options):
    function, jit, shapes = step
    lowered = olla_xla.plan(function, **jit, **options).lower(*on_h100(shapes))
    return lowered.compile(short(percent))


def own(step, percent):
    function, jit, shapes = step
    lowered = jax.jit(function, **jit).lower(*on_h100(shapes))
    return lowered.compile(compiler_options=short(percent))


def again(compiled):
    plan = getattr(compiled, "plan", None)
    known = () if plan is None else {name for order in plan.order.values() for name in order}
    return len(rematerialization.ran_again(module_from_bytes(final_module(compiled)), known))


@pytest.mark.cuda13
def test_a_plan_that_fits_runs_nothing_again_and_takes_no_more_than_xla():
    """Its total is below XLA's limit, but what XLA estimates for it is not."""
    alone = own(mlp(), 1)
    found = planned(mlp(), 1)
    assert found.planned and found.plan is not None and found.plan.without_rematerialization
    assert again(alone) > 0 == again(found) and found.plan.slowdown <= 0
    assert found.plan.assigned_bytes == found.plan.predicted_bytes <= assigned_bytes(alone)
    assert found.plan.xla_bytes == assigned_bytes(alone)
    assert "not needed: the plan fits" in found.plan.summary()
    stored = planned(mlp(), 1)
    assert stored.plan == found.plan and again(stored) == 0


@pytest.mark.cuda13
def test_xlas_own_order_runs_nothing_again_where_it_fits():
    total = assigned_bytes(own(phases(), 1))
    assert again(own(phases(), 1)) == 1
    for _ in range(2):  # the second time the plan is stored
        found = planned(phases(), 1, step_limit=200)
        assert not found.planned and found.plan is not None and again(found) == 0
        assert found.plan.without_rematerialization
        assert found.plan.xla_bytes == found.plan.assigned_bytes == assigned_bytes(found) == total
    given = planned(phases(), 1, plan=found.plan)
    assert again(given) == 0


@pytest.mark.cuda13
def test_where_running_again_saves_bytes_it_is_kept_and_told(caplog):
    """Neither XLA's order without the pass nor a plan takes as few bytes in as little time."""
    alone = own(adam(), 4)
    with caplog.at_level(logging.INFO, "olla_xla"):
        found = planned(adam(), 4, step_limit=200)
    assert again(found) == again(alone) == 1
    assert assigned_bytes(found) == assigned_bytes(alone)
    told = (
        "jit_with_adam: XLA recomputes 1 instruction, which takes 0.9 ms; else the step takes "
        "512.0 MB more"
    )
    assert told in caplog.messages


@pytest.mark.cuda13
def test_what_does_not_fit_is_recomputed_by_a_plan_or_the_pass():
    alone = own(adam(), 3)
    found = planned(adam(), 3, step_limit=200)
    assert found.planned and found.plan is not None and again(found) == 0 < again(alone)
    assert assigned_bytes(found) <= assigned_bytes(alone)
    found = planned(adam(), 3, step_limit=200, max_overhead=0)
    assert found.plan is not None and not found.plan.without_rematerialization
    assert again(found) > 0 and assigned_bytes(found) == assigned_bytes(alone)


@pytest.mark.cuda13
def test_what_xla_runs_again_is_analysed():
    function, jit, shapes = mlp()
    jitted = jax.jit(function, **jit, compiler_options=short(1))
    found = olla_xla.analyze(jitted, *shapes, target="h100")
    assert found.ran_again is not None and found.ran_again.instructions == 3
    assert 0 < found.ran_again.seconds < 0.001
    # XLA's warning names a limit of 682015928 bytes and a peak of 895296820.
    assert found.ran_again.excess_bytes == pytest.approx(895296820 - 682015928, rel=0.001)
    assert "0.4 ms; XLA's estimate is 203.4 MB above its limit" in " ".join(str(found).split())
    assert found.to_dict()["ran_again"]["instructions"] == 3


@pytest.mark.cuda13
def test_what_does_not_fit_needs_the_pass():
    lowered = jax.jit(jnp.sin).lower(*on_h100((jax.ShapeDtypeStruct((2**20,), jnp.float32),)))
    compiled = lowered.compile(compiler_options=QUICK)
    most = rematerialization.limit(lowered, short(1), compiled)
    kept = assigned_bytes(compiled)
    why = functools.partial(rematerialization.why_it_must, lowered, short(1), compiled)
    assert most is not None and 640 * 2**20 < most < 650 * 2**20
    assert why(kept + most) == ""
    assert why(kept + most + 2**20) == "the step exceeds XLA's memory limit by 1.0 MB"


def test_the_pass_is_off_beside_others(monkeypatch):
    lowered = jax.jit(jnp.sin).lower(1.0)
    off = "xla_disable_hlo_passes"
    found = functools.partial(rematerialization.without_pass, lowered)
    monkeypatch.setenv("XLA_FLAGS", f"--{off}=one --xla_dump_to=x")
    assert found(None) == {off: "one,rematerialization"}
    assert found({off: "two, three", "x": 1}) == {off: "two,three,rematerialization", "x": 1}
    lowered = jax.jit(jnp.sin, compiler_options={off: "four"}).lower(1.0)
    assert rematerialization.without_pass(lowered, {}) == {off: "four,rematerialization"}
    assert "how much memory" in rematerialization.why_it_must(
        lowered, {}, jax.jit(jnp.sin).lower(1.0).compile(), 0
    )
