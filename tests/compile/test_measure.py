"""Memory measured in fresh processes, on CPU; what a profile says; what cannot be measured."""

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla.compile import process_memory
from tests.support.compiles import on_h100
from tests.support.steps import branches, rows, weights

MB = 2**20


def waves(scale, key, x):
    """Two results of 64 MB, from elementwise operators, which need no library's scratch."""
    noise = jax.random.uniform(key, ())
    return jnp.sin(x * scale) + noise, jnp.cos(x) * noise


def test_predicted_assigned_and_measured_agree_on_cpu():
    x = jnp.arange(16 * MB, dtype=jnp.float32)
    step = jax.jit(waves, static_argnames="scale")
    found = olla_xla.measure(step, 1, jax.random.key(0), x)
    assert found.device == "cpu" and found.xla.reason == ""
    for row in filter(None, (found.xla, found.planned)):
        assert row.arguments == pytest.approx(64 * MB, rel=0.01)
        assert row.predicted == pytest.approx(row.assigned, rel=0.01)
        assert row.measured == pytest.approx(row.assigned, rel=0.2), str(row)
        assert row.profiled is None, "the profiler sees no memory of a CPU"
    assert "xla: predicted 192.0" in str(found) and "(arguments 64.0)" in str(found)


def test_planned_functions_and_shapes():
    planned = olla_xla.plan(branches, donate_argnums=0, step_limit=2000, time_limit=5)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (weights(), rows()))
    found = olla_xla.measure(planned, *shapes)
    assert found.planned.assigned == planned.plans[0].assigned_bytes < found.xla.assigned
    assert found.planned.measured > 0 and found.planned.way == "planned"
    assert found.planned.arguments == sum(a.size * 4 for a in jax.tree.leaves(shapes))


@pytest.mark.cuda13
def test_a_card_that_is_not_here_is_not_measured():
    found = olla_xla.measure(branches, *on_h100((weights(), rows())))
    assert found.xla.measured is None and found.xla.assigned > 0
    assert "not measured: this machine has no NVIDIA H100 80GB HBM3" in str(found)


def test_what_cannot_be_handed_over_is_said():
    def step(x):
        jax.debug.print("{}", x[0])
        return x + 1

    with pytest.raises(olla_xla.InputError, match="must not call back to Python"):
        olla_xla.measure(step, jnp.ones(8))


def test_a_process_that_dies_is_a_reason(monkeypatch):
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "nonsense")
    found = olla_xla.measure(jnp.sin, rows())
    assert found.xla.measured is None and "the process ended with code" in found.xla.reason


def test_the_peak_of_a_memory_profile():
    """As XProf gives it: JSON of a proto, so that integers are text."""

    def allocator(peak):
        return {"profileSummary": {"peakStats": {"peakBytesInUse": str(peak)}}}

    profile = {"memoryProfilePerAllocator": {"0": allocator(5), "host": allocator(7)}}
    assert process_memory.peak_of(profile) == 7
    assert process_memory.peak_of({"memoryProfilePerAllocator": {}}) is None
    assert process_memory.peak_of({"memoryProfilePerAllocator": {"0": {}}}) is None


def test_resident_memory_is_seen():
    assert process_memory.reset_peak()
    before = process_memory.status_bytes("VmHWM")
    held = bytearray(64 * MB)
    after = process_memory.status_bytes("VmHWM")
    assert after - before >= 60 * MB and len(held) == 64 * MB
    assert process_memory.status_bytes("NoSuchField") is None
