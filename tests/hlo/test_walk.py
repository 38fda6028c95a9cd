"""The order in which XLA walks instructions is the one in which a view lists them."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.rewritten import compile_rewritten
from hlo.module import Module, module_from_bytes
from hlo.rewrite.barriers import without_barriers
from hlo.sharing import sharing
from hlo.values import analyse
from olla_xla.compile.accounting import final_module
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.planner import apply_plan, plan_module
from olla_xla.problem.options import PlanOptions
from olla_xla.tools.capture import capture
from tests.support.compiles import on_h100, xla_schedule


def _step(params, x):
    """Layers with statistics of their own, some of them recomputed, and a momentum."""

    @jax.checkpoint
    def layer(p, x):
        y = x @ p["w"]
        return jnp.tanh((y - y.mean(0)) * jax.lax.rsqrt(y.var(0) + 1e-3) * p["s"] + p["b"])

    def loss(params):
        y = x
        for p in params:
            y = layer(p["now"], y)
        return (y * y).mean()

    value, gradients = jax.value_and_grad(loss)(params)

    def changed(p, g):
        momentum = {k: 0.9 * m + g["now"][k] for k, m in p["then"].items()}
        return {"now": {k: a - 0.1 * momentum[k] for k, a in p["now"].items()}, "then": momentum}

    return [changed(p, g) for p, g in zip(params, gradients, strict=True)], value


def _arguments():
    def layer():
        return {"w": jnp.ones((64, 64)), "s": jnp.ones(64), "b": jnp.ones(64)}

    return [{"now": layer(), "then": layer()} for _ in range(6)], jnp.ones((32, 64))


def _lists(module: bytes | Module) -> dict[str, list[str]]:
    view = module_from_bytes(module) if isinstance(module, bytes) else module
    return {c.name: [i.name for i in c.instructions] for c in view.control_computations}


def test_without_barriers_xla_walks_as_the_view_lists():
    lowered = jax.jit(_step, donate_argnums=0).lower(*_arguments())
    captured = capture(lowered)
    assert b"opt-barrier" in captured.module
    assert _lists(without_barriers(captured.module)) == _lists(captured.final)


@pytest.mark.cuda13
def test_a_planned_module_is_walked_as_the_view_lists():
    """On a GPU control edges are added, which change the walk."""
    lowered = jax.jit(_step, donate_argnums=0).lower(*on_h100(_arguments()))
    captured = capture(lowered)
    plan = plan_module(captured.module, PlanOptions(step_limit=2000), target="cuda")
    planned = apply_plan(captured.module, plan)
    assert _lists(planned) != _lists(captured.module)
    compiled = compile_rewritten(lowered, lambda module: apply_plan(module, plan))
    assert _lists(planned) == _lists(final_module(compiled))


@pytest.mark.cuda13
@pytest.mark.parametrize("change", ["rewritten", "guarded"])
def test_what_was_not_changed_is_not_read_again(change):
    """The view of a changed module is that of its bytes."""
    lowered = jax.jit(_step, donate_argnums=0).lower(*on_h100(_arguments()))
    planned = PlannedModule(scheduled_module(xla_schedule(lowered)), "cuda")
    if change == "rewritten":
        fusion = next(i for i in planned.module.entry.instructions if i.opcode == "fusion")
        found = planned.rewritten({}, planned.orders, {fusion.name: [0]})
    else:
        found = planned.guarded()
    before = {c.name: c for c in planned.module.computations}
    shared = [c for c in found.module.computations if before[c.name] is c]
    assert shared and len(shared) < len(before)
    read = module_from_bytes(found.module.data)
    assert read.fingerprint == found.module.fingerprint
    dataflow = analyse(read, "cuda")
    assert [(v.name, v.buffer) for v in dataflow.values] == [
        (v.name, v.buffer) for v in found.dataflow.values
    ]
    assert sharing(dataflow, "cuda") == found.pairs
