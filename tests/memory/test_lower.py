"""Tensor graphs of compiled modules: precedence that XLA's own order keeps, and safe orders."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from hlo.module import module_from_bytes
from hlo.sharing import sharing
from hlo.text import from_hlo_text
from hlo.values import analyse
from olla_xla.compile.accounting import final_module
from olla_xla.memory.assignment.model import AssignmentModel
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.lower import lower
from tests.support.compiles import STEPS, compile_step, h100_device
from tests.support.plugins import CUDA


def lowered(name, target):
    """(value analysis, lowered computations with callees first) of one of STEPS."""
    if target == "cuda":
        h100_device()
    module, _, total = compile_step(name, target)
    flow = analyse(module, target)
    pairs = sharing(flow, target)
    peaks, result = {}, []
    for computation in module.control_computations:
        one = lower(flow, computation, pairs, peaks)
        peaks[computation] = peak_bytes(one.graph, np.arange(len(one.instructions)))
        result.append(one)
    return flow, pairs, result, total


def shuffled(graph, seed):
    """A random legal order."""
    before = graph.predecessors
    after = [[] for _ in before]
    for v, us in enumerate(before):
        for u in us:
            after[u].append(v)
    waiting = [len(us) for us in before]
    ready = [v for v, k in enumerate(waiting) if not k]
    rng = random.Random(seed)
    order = []
    while ready:
        u = ready.pop(rng.randrange(len(ready)))
        order.append(u)
        for v in after[u]:
            waiting[v] -= 1
            if not waiting[v]:
                ready.append(v)
    return np.array(order)


@pytest.mark.parametrize("target", ["cpu", CUDA])
@pytest.mark.parametrize("name", sorted(STEPS))
def test_xla_order_is_legal_and_peak_is_below_its_total(name, target):
    _, _, result, total = lowered(name, target)
    for one in result:
        one.graph.validate()
        edges = (*one.graph.edges, *one.graph.alias_edges)
        assert all(u < v for u, v in edges)
    entry = result[-1].graph
    peak = peak_bytes(entry, np.arange(len(entry.operators)))
    assert forced_live_bound(entry)[0] <= peak <= total


@pytest.mark.parametrize("target", ["cpu", CUDA])
@pytest.mark.parametrize("name", sorted(STEPS))
def test_any_legal_order_keeps_aliased_values_apart(name, target):
    """In every legal order each value of an alias set is dead when the next is written."""
    flow, pairs, result, _ = lowered(name, target)
    model = AssignmentModel(flow, target, pairs)
    for seed in range(5):
        orders, steps, offset = {}, {}, 0
        for one in result:
            order = shuffled(one.graph, seed)
            orders[one.computation] = tuple(one.instructions[k] for k in order)
            for t, i in enumerate(orders[one.computation]):
                steps[i] = offset + t
            offset += len(order)
        entry = result[-1]
        for members in flow.buffers:
            here = [v for v in members if v.instruction.computation is entry.computation]
            here.sort(key=lambda v: (v.instruction.opcode != "parameter", steps[v.instruction]))
            for a, b in zip(here, here[1:], strict=False):
                if a.shape.is_tuple or b.instruction is a.instruction:
                    continue
                last = max((steps[u.instruction] for u in a.uses if u.instruction in steps),
                           default=steps[a.instruction])  # fmt: skip
                assert last <= steps[b.instruction], (a, b)
        simulated = model.simulate(orders)
        peak = peak_bytes(entry.graph, shuffled(entry.graph, seed))
        assert peak <= simulated.total_bytes
        assert forced_live_bound(entry.graph)[0] <= peak


def test_donated_arguments_die_before_their_output_is_written():
    _, _, result, _ = lowered("two_layers", "cpu")
    graph = result[-1].graph
    buffers = {}
    for t in graph.tensors:
        buffers.setdefault(t.buffer, []).append(t)
    pairs = [b for b in buffers.values() if len(b) > 1 and b[0].category == "argument"]
    assert len(pairs) == 3
    for argument, output in pairs:
        for reader in argument.sinks:
            assert reader == output.source or (reader, output.source) in graph.alias_edges
        assert not argument.live_out
        assert output.live_out


def test_loops_are_charged_their_body():
    _, _, result, _ = lowered("scan_gradient", "cpu")
    loops = [op for op in result[-1].graph.operators if op.opcode == "while"]
    assert loops and all(op.transient_bytes > 0 for op in loops)


def test_what_a_loop_shows_the_host_keeps_its_turn():
    """A loop with a callback in it stands where it stood among other callbacks."""

    def step(x):
        def body(c, _):
            return c * 2 + io_callback(lambda v: v, jax.ShapeDtypeStruct((), jnp.float32), c), None

        looped, _ = jax.lax.scan(body, x, None, length=3)
        jax.debug.callback(print, x + 1)
        return looped

    module = final_module(jax.jit(step).lower(jnp.float32(1)).compile())
    view = module_from_bytes(module)
    dataflow = analyse(view)
    pairs = sharing(dataflow, "cpu")
    peaks = dict.fromkeys(view.control_computations, 0)
    graph = lower(dataflow, view.entry, pairs, peaks).graph
    seen = [k for k, op in enumerate(graph.operators) if op.opcode in ("while", "custom-call")]
    assert {graph.operators[k].opcode for k in seen} == {"while", "custom-call"}
    assert all(pair in graph.edges for pair in zip(seen, seen[1:], strict=False))


TWICE = """
HloModule twice, is_scheduled=true

body {
  p = f32[64] parameter(0)
  n = f32[64] negate(p)
  e = f32[64] exponential(p)
  ROOT t = (f32[64], f32[64]) tuple(n, e)
}

ENTRY main {
  a = f32[64] parameter(0)
  c = f32[64] add(a, a)
  f = (f32[64], f32[64]) fusion(c), kind=kLoop, calls=body, ALIASING
  g = f32[64] get-tuple-element(f), index=0
  ROOT r = f32[64] multiply(g, a)
}
"""


def test_two_results_in_one_buffer_are_written_at_once():
    aliasing = "output_to_operand_aliasing={{0}: (0, {}), {1}: (0, {})}"
    module = module_from_bytes(from_hlo_text(TWICE.replace("ALIASING", aliasing)))
    flow = analyse(module, "tpu")
    graph = lower(flow, module.entry, sharing(flow, "tpu"), {}).graph
    graph.validate()  # the readers of the first were to run before the second, which is the same
    order = [o.name for o in graph.operators]
    assert peak_bytes(graph, np.arange(len(order))) == 3 * 256
