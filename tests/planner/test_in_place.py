"""In-place chains: bindings are safe, lower the total, and XLA assigns what was predicted."""

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import xla

from olla_xla.check.graph import check_schedule
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.planner import apply_plan, in_place, plan_module
from olla_xla.planner.work import Candidates
from olla_xla.problem.options import PlanOptions
from olla_xla.schedule.search import phases
from tests.support.compiles import h100_device


def test_choice_keeps_what_lowers_the_total():
    found = [in_place.Binding(f"f{k}", (), 0, (2 * k, 2 * k + 1), 10 - k) for k in range(4)]
    gain = {(0, 1): 5, (2, 3): -1, (4, 5): 0, (6, 7): 2}
    kept, total = in_place.choose(found, lambda pairs: 100 - sum(gain[p] for p in pairs))
    assert [b.fusion for b in kept] == ["f0", "f3"] and total == 93
    kept, total = in_place.choose(found, lambda pairs: 100 + len(pairs))
    assert kept == [] and total == 100
    assert in_place.choose([], lambda pairs: 7) == ([], 7)


def softmax_loss(weights, x, labels):
    """The logits' gradient overwrites the logits; XLA's GPU heap holds both."""
    logits = jnp.tanh(x) @ weights
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def step(weights, x, labels):
    loss, gradient = jax.value_and_grad(softmax_loss)(weights, x, labels)
    return weights - 0.1 * gradient, loss


def _compiled_on_h100(transform):
    sharding = jax.sharding.SingleDeviceSharding(h100_device())
    shapes = [((256, 4096), jnp.float32), ((8, 256, 256), jnp.float32), ((8, 256), jnp.int32)]
    arguments = [jax.ShapeDtypeStruct(s, d, sharding=sharding) for s, d in shapes]
    modules = []

    def callback(module):
        if b"jit_step" not in module:  # XLA also compiles pieces of it, to try them out
            return None
        modules.append(module)
        return transform(module)

    stage = xla.PipelineStage.POST_SCHEDULER
    xla.register_hlo_module_transformation(
        callback, name="test_chains", stage=stage, platforms=("cuda",)
    )
    try:
        compiled = jax.jit(functools.partial(step), donate_argnums=0).lower(*arguments).compile()
    finally:
        xla.clear_hlo_module_transformation("test_chains", stage=stage, platforms=("cuda",))
    stats = compiled.memory_analysis()
    total = (
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
        + stats.temp_size_in_bytes
    )
    return modules[-1], total


@pytest.mark.cuda13
def test_xla_assigns_the_predicted_total_to_bound_results():
    module, xla_total = _compiled_on_h100(lambda module: None)
    plan = plan_module(module, PlanOptions(time_limit=20, step_limit=20_000), target="cuda")
    without = plan_module(
        module, PlanOptions(time_limit=20, step_limit=20_000, in_place=False), target="cuda"
    )
    assert plan.xla_predicted_bytes == pytest.approx(xla_total, rel=0.005)
    assert plan.aliases and not without.aliases
    assert plan.predicted_bytes < 0.75 * without.predicted_bytes
    _, total = _compiled_on_h100(lambda module: apply_plan(module, plan))
    assert total == pytest.approx(plan.predicted_bytes, rel=0.005)


@pytest.mark.cuda13
def test_nothing_is_bound_once_a_limit_has_passed(monkeypatch):
    search = phases.search

    def slow(*args, **kwargs):
        time.sleep(0.1)
        return search(*args, **kwargs)

    monkeypatch.setattr(phases, "search", slow)
    module, _ = _compiled_on_h100(lambda module: None)
    plan = plan_module(module, PlanOptions(time_limit=1e-4), target="cuda")
    assert not plan.aliases and plan.predicted_bytes <= plan.xla_predicted_bytes
    assert plan.time_limit == 1e-4


@pytest.mark.cuda13
def test_bound_results_stay_legal_for_every_order_of_the_rewritten_graph():
    module, _ = _compiled_on_h100(lambda module: None)
    planned = PlannedModule(scheduled_module(module), "cuda")
    lowered = planned.lowered(planned.module.entry)
    identity = np.arange(len(lowered.instructions))
    found = in_place.bindings(Candidates(planned, lowered), identity)
    assert found
    rewritten = planned.rewritten(in_place.aliases(found), planned.orders)
    graph = rewritten.lowered(rewritten.module.entry).graph
    check_schedule(graph, range(len(graph.operators)))
    edges = set(graph.alias_edges) - set(lowered.graph.alias_edges)
    assert edges  # readers of the operand now run before the fusion that overwrites it
    assert dataclasses.replace(graph, alias_edges=()) != graph
