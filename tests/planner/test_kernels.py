"""Kernels that may round otherwise have the memory that they have in XLA's own order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from benchmarks.rewritten import compile_rewritten
from hlo.module import module_from_bytes
from hlo.rewrite.aliases import hold_name
from hlo.text import from_hlo_text
from olla_xla.check.executable import check_executable, differing
from olla_xla.compile.accounting import assignment_proto, final_module
from olla_xla.memory.kernels import find_kernels, pattern
from olla_xla.memory.module_state import PlannedModule, facts_of, scheduled_module
from olla_xla.planner import apply_plan, plan_module
from olla_xla.planner.kernels import keep_kernels
from olla_xla.planner.orders import plan_order
from olla_xla.problem.options import PlanOptions
from olla_xla.tools.capture import capture
from tests.support.rewrites import edit
from tests.support.steps import assert_same


def _net(tokens: int, batch: int, width: int, seed: int):
    """An unrolled recurrent net whose loss sums a variance and a mean: one sum of two products."""
    r = np.random.default_rng(seed)

    def values(*shape):
        return jnp.asarray((r.normal(size=shape) / 4).astype(np.float32))

    params = {"x": values(16, width), "h": values(width, width), "v": values(width, 16)}

    def step(p, x):
        def loss(p):
            h, hs = jnp.zeros((batch, width)), []
            for t in range(tokens):
                h = jnp.tanh(x[:, t] @ p["x"] + h @ p["h"])
                hs.append(h)
            return (jnp.stack(hs, 1) @ p["v"]).var() + (h**2).mean()

        value, gradient = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient), value

    return step, params, values(batch, tokens, 16)


@functools.cache
def _captured(tokens: int = 10, batch: int = 64, width: int = 32):
    step, params, x = _net(tokens, batch, width, 1)
    lowered = jax.jit(step, donate_argnums=0).lower(params, x)
    return lowered, capture(lowered)


@pytest.mark.parametrize("shape", [(10, 64, 32, 1), (7, 64, 32, 2)])
@pytest.mark.optimized
def test_a_loss_of_two_means_is_jits(shape):
    """The last kernel, `a*k1 + reduce(b)*k2` with a scalar result, was rounded otherwise."""
    step, params, x = _net(*shape)

    def copy():
        return jax.tree.map(jnp.array, params)

    expected = jax.jit(step, donate_argnums=0)(copy(), x)
    planned = olla_xla.plan(step, donate_argnums=0, time_limit=2)
    assert_same(expected, planned(copy(), x))
    assert planned.plans[0].assigned_bytes < planned.plans[0].xla_bytes


def _kernels(compiled):
    return check_executable(
        final_module(compiled), "cpu", assignment=assignment_proto(compiled, "cpu")
    )


def test_patterns_are_xlas_own_in_the_executable():
    lowered, captured = _captured()
    plan = plan_module(captured.module, PlanOptions(step_limit=2000), target="cpu")
    assert plan.predicted_bytes < plan.xla_predicted_bytes
    own = check_executable(captured.final, "cpu", assignment=captured.assignment)
    planned = compile_rewritten(lowered, lambda module: apply_plan(module, plan))
    found = _kernels(planned)
    assert found.keys() == own.keys() and len(found) > 2
    assert {n: k.found for n, k in found.items()} == {n: k.found for n, k in own.items()}
    assert not differing(found, plan.kernels)
    assert any(k.found != k.forced for k in own.values()), "some share memory by choice"


def test_without_it_an_order_gives_kernels_other_memory():
    """The test above could fail."""
    _, captured = _captured()
    planned = PlannedModule(scheduled_module(captured.module), "cpu")
    kept = _patterns(planned)
    computation = planned.module.entry
    lowered = planned.lowered(computation)
    orders = np.random.default_rng(0)
    changed = 0
    for _ in range(20):
        order = _legal(lowered.graph, orders)
        planned.orders[computation] = tuple(lowered.instructions[k] for k in order)
        changed += _patterns(planned) != kept
    assert changed


def _patterns(planned):
    """Kernels' patterns in the module's present orders."""
    found, now = find_kernels(planned.dataflow, planned.pairs, planned.target), planned.simulate()
    return {i.name: pattern(i, planned.dataflow, now) for i in found}


def _legal(graph, random):
    """A random order that precedence allows."""
    before = [set(b) for b in graph.predecessors]
    done: list[int] = []
    left = set(range(len(before)))
    while left:
        ready = sorted(k for k in left if before[k] <= set(done))
        done.append(ready[random.integers(len(ready))])
        left.remove(done[-1])
    return done


@pytest.mark.parametrize("seed", range(8))
def test_any_order_that_kernels_allow_can_keep_them(seed):
    """What was simulated is what the module has that is written."""
    _, captured = _captured(6, 32, 32)
    planned = PlannedModule(scheduled_module(captured.module), "cpu")
    planned.kept = _patterns(planned)
    computation = planned.module.entry
    lowered = planned.lowered(computation)
    order = _legal(lowered.graph, np.random.default_rng(seed))
    planned.orders[computation] = tuple(lowered.instructions[k] for k in order)
    found = keep_kernels(planned)
    assert found is not None
    assert _patterns(found.module).items() >= planned.kept.items() - _bound(found, planned)


def _bound(found, planned):
    """Kernels that are bound have no choice any more, and are not among those of the module."""
    left = _patterns(found.module)
    return {(n, p) for n, p in planned.kept.items() if n not in left}


def test_a_held_operand_is_not_written_over():
    lowered, captured = _captured()
    own = check_executable(captured.final, "cpu", assignment=captured.assignment)
    module = module_from_bytes(captured.module)
    by_name = {i.name: i for i in module.entry.instructions}
    name, number = next(
        (n, k.found[-1])
        for n, k in own.items()
        if k.found != k.forced
        and k.found[-1] < len(by_name[n].operands)
        and not by_name[n].shape.is_tuple
    )
    compiled = compile_rewritten(lowered, lambda data: edit(data).hold({name: [number]}).to_bytes())
    names = [i.name for i in module_from_bytes(final_module(compiled)).entry.schedule or ()]
    assert names[names.index(name) + 1] == hold_name(name, number)
    assert differing(_kernels(compiled), {n: k.found for n, k in own.items()}) == [name]


@pytest.mark.optimized
def test_a_kernel_of_many_operands_is_not_tried_one_by_one():
    """All of them die there; held one after the other, the result took the next one's memory."""
    random = np.random.default_rng(0)
    weights = [random.normal(size=(256, 256)).astype(np.float32) / 16 for _ in range(6)]
    x = random.normal(size=(512, 256)).astype(np.float32)

    def step(weights, x):
        def loss(weights):
            y = x
            for w in weights:
                y = jnp.sin(y @ w) * jnp.exp(-y * y)
            return (y**2).mean()

        return jax.tree.map(lambda a, b: a - 0.1 * b, weights, jax.grad(loss)(weights))

    options = {"max_overhead": 0.3, "step_limit": 5_000, "time_limit": 20}
    planned = olla_xla.plan(step, donate_argnums=0, **options)
    copies = [jnp.array(w) for w in weights]
    assert_same(jax.jit(step)(weights, x), planned(copies, x))
    (plan,) = planned.plans
    assert plan.clones and plan.predicted_bytes < plan.xla_predicted_bytes


TWO_READERS = """HloModule m, is_scheduled=true

half {
  x = f32[4096] parameter(0)
  h = f32[] constant(0.5)
  b = f32[4096] broadcast(h), dimensions={}
  m = f32[4096] multiply(x, b)
  n = f32[4096] multiply(x, x)
  ROOT r = f32[4096] add(m, n)
}

third {
  x = f32[4096] parameter(0)
  h = f32[] constant(0.3)
  b = f32[4096] broadcast(h), dimensions={}
  m = f32[4096] multiply(x, b)
  n = f32[4096] multiply(x, x)
  ROOT r = f32[4096] add(m, n)
}

ENTRY e {
  a = f32[4096] parameter(0)
  s = f32[4096] sine(a)
  f = f32[4096] fusion(s), kind=kLoop, calls=half
  g = f32[4096] fusion(s), kind=kLoop, calls=third
  p = f32[4096] subtract(f, g)
  ROOT q = f32[4096] cosine(p)
}
"""


def test_a_kernel_that_writes_over_what_it_reads_comes_last_whatever_the_module_says():
    """Nothing is to gain here, so no order was looked for; that of the module has f first."""
    module = scheduled_module(from_hlo_text(TWO_READERS))
    own = facts_of(module, "cpu").all_kernels
    assert (own["f"], own["g"]) == ((0, 1), (0, 0))
    plan = plan_order(module, PlanOptions(), "cpu", kept={"f": own["g"], "g": own["f"]})
    assert plan.order["e"] == ("a", "s", "g", "f", "p", "q")


def test_a_library_s_kernel_rounds_alike_wherever_its_arrays_lie():
    """A YNNPACK fusion that reads a value twice gets its own memory; XLA's order shares it."""

    def layer(z, w):
        scores = jnp.einsum("rid,rjd->rij", z @ w[0], z @ w[1])
        scores += w[3][:1, :1] * z.mean(-1)[:, :, None]
        return jnp.swapaxes(z + jax.nn.softmax(scores) @ (z @ w[2]), 0, 1), None

    def loss(w, z):
        return (jax.lax.scan(jax.checkpoint(layer), z, w)[0] ** 2).mean()

    given = jnp.linspace(-0.2, 0.2, 16384).reshape(4, 4, 32, 32), jnp.ones((64, 64, 32)) / 3
    planned = olla_xla.plan(jax.grad(loss), step_limit=1000)
    assert (planned(*given) == jax.jit(jax.grad(loss))(*given)).all()
    assert planned.plans[0].assigned_bytes < 0.95 * planned.plans[0].xla_bytes
