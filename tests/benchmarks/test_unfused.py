"""Programs run eagerly: the graph of a module written by hand, what is timed, and a whole row."""

import types

import pytest

from benchmarks.papers.eager import static
from benchmarks.papers.eager.graph import Program, _forwarded, program
from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.problem.graph import Operator, Tensor, TensorGraph

# Calls within calls, a loop that leaves one leaf as it was and swaps two, a condition whose
# branches need memory of their own, updates in place, views of views, a barrier, two results of
# one operator, and arguments that are donated: one to its reader, one too early, one too small.
MODULE = """
HloModule hand, input_output_alias={ {0}: (0, {}), {1}: (1, {}), {2}: (2, {}), {4}: (4, {}) }

double (p: MAT) -> MAT {
  p = MAT parameter(0)
  t = MAT transpose(p), dimensions={1,0}
  s = MAT sine(t)
  ROOT d = MAT add(s, s)
}

twice (q: MAT) -> MAT {
  q = MAT parameter(0)
  a = MAT call(q), to_apply=double
  ROOT b = MAT call(a), to_apply=double, metadata={op_name="transpose(jvp(f))/call"}
}

plus (x: f32[], y: f32[]) -> f32[] {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}

body {
  state = STATE parameter(0)
  i = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  u = MAT get-tuple-element(state), index=1
  v = MAT get-tuple-element(state), index=2
  w = MAT get-tuple-element(state), index=3
  k = f32[4] get-tuple-element(state), index=4
  uw = MAT dot(u, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  su = MAT call(uw), to_apply=double
  ROOT out = STATE tuple(next, v, su, w, k)
}

until {
  state = STATE parameter(0)
  i = s32[] get-tuple-element(state), index=0
  ten = s32[] constant(10)
  ROOT less = pred[] compare(i, ten), direction=LT
}

yes (c: MAT) -> MAT {
  c = MAT parameter(0)
  m = MAT dot(c, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  n = MAT cosine(m)
  ROOT o = MAT multiply(m, n)
}

no (c: MAT) -> MAT {
  c = MAT parameter(0)
  ROOT o = MAT negate(c)
}

ENTRY main {
  w = MAT parameter(0)
  x = MAT parameter(1)
  y = MAT parameter(2)
  i = s32[] parameter(3)
  g = f32[4] parameter(4)
  h = MAT call(x), to_apply=twice
  state = STATE tuple(i, h, x, w, g)
  loop = STATE while(state), condition=until, body=body
  first = MAT get-tuple-element(loop), index=1
  second = MAT get-tuple-element(loop), index=2
  kept = MAT get-tuple-element(loop), index=3
  zero = s32[] constant(0)
  update = f32[1,8] slice(second), slice={[0:1], [0:8]}
  written = MAT dynamic-update-slice(first, update, i, zero)
  pair = (MAT, MAT) tuple(second, written)
  barrier = (MAT, MAT) opt-barrier(pair)
  nest = (f32[4], (MAT, MAT)) tuple(g, barrier)
  inside = (MAT, MAT) get-tuple-element(nest), index=1
  ahead = MAT get-tuple-element(inside), index=1
  is = pred[] compare(i, zero), direction=EQ
  chosen = MAT conditional(is, ahead, kept), true_computation=yes, false_computation=no
  grad = MAT dot(chosen, ahead), lhs_contracting_dims={0}, rhs_contracting_dims={0},
    metadata={op_name="jit(f)/transpose(jvp(f))/dot"}
  new = MAT subtract(w, grad)
  flat = f32[64] reshape(chosen)
  again = f32[16,4] reshape(flat)
  stands = f32[16,4] exponential(again)
  f0 = f32[] constant(0)
  sums = f32[8] reduce(y, f0), dimensions={0}, to_apply=plus
  wide = MAT broadcast(sums), dimensions={0}
  both = MAT add(wide, y)
  small = f32[4] slice(sums), slice={[0:4]}
  less = f32[4] negate(small)
  last = MAT add(x, both)
  gg = f32[4] add(g, g)
  ROOT result = (MAT, MAT, f32[4], MAT, f32[4], f32[16,4], MAT)
    tuple(new, last, less, both, gg, stands, kept)
}
"""
MODULE = MODULE.replace("STATE", "(s32[], MAT, MAT, MAT, f32[4])").replace("MAT", "f32[8,8]")


def test_a_module_by_hand():
    found = program(module_from_bytes(from_hlo_text(MODULE)))
    found.graph.validate()
    # What an operator needs while it runs is a tensor too.
    assert {o.transient_bytes for o in found.graph.operators} == {0}
    assert all(o.free == (o.opcode == "parameter") for o in found.graph.operators)
    # Own memory have `both` and `stands`, and `less`, for which the argument is too large.
    assert (found.argument_bytes, found.output_bytes) == (3 * 256 + 4 + 16, 2 * 256 + 16)
    names = [t.name.rsplit(".", 1)[0] for t in found.graph.tensors]
    inner = {t.name: t.bytes for t in found.graph.tensors if "/inner" in t.name}
    # A count, and a product beside its sine or that beside the sum; three of a branch at once.
    assert sorted(inner.values()) == [4 + 2 * 256, 3 * 256] and names.count("s") == 2


def test_arguments_that_are_named_only():
    """Less than all results replace arguments; a scalar result is no tuple."""
    text = """
HloModule one, input_output_alias={ {}: (0, {}) }
ENTRY main (w: f32[8]) -> f32[8] {
  w = f32[8] parameter(0)
  ROOT n = f32[8] negate(w)
}
"""
    found = program(module_from_bytes(from_hlo_text(text)))
    first, second = found.graph.tensors
    assert first.buffer == second.buffer and not first.live_out and second.live_out
    assert (found.argument_bytes, found.output_bytes) == (32, 0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_barrier_of_several_values_is_a_tuple(count):
    values = [{(): ((k, True),)} for k in range(count)]
    barrier = types.SimpleNamespace(opcode="optimization-barrier")
    each = {(k,): ((k, True),) for k in range(count)}
    assert _forwarded(barrier, values) == (each if count > 1 else values[0])
    assert _forwarded(types.SimpleNamespace(opcode="tuple"), values) == each


def test_a_constant_replaces_no_argument():
    text = """
HloModule two, input_output_alias={ {0}: (0, {}), {1}: (1, {}) }
ENTRY main (w: f32[], x: f32[]) -> (f32[], f32[]) {
  w = f32[] parameter(0)
  x = f32[] parameter(1)
  c = f32[] constant(3)
  n = f32[] add(w, x)
  ROOT r = (f32[], f32[]) tuple(c, n)
}
"""
    first, second, third = program(module_from_bytes(from_hlo_text(text))).graph.tensors
    assert not first.live_out and not second.live_out  # both are donated
    assert (first.buffer, third.buffer) == (0, second.buffer)


def test_a_gradient_that_the_backward_pass_reads_too():
    """What any operator after the backward pass reads is one, whatever else reads it."""
    text = """
HloModule three
ENTRY main (w: f32[8]) -> (f32[8], f32[8]) {
  w = f32[8] parameter(0)
  s = f32[8] sine(w)
  g = f32[8] cosine(s), metadata={op_name="transpose(jvp(f))/cos"}
  h = f32[8] exponential(g), metadata={op_name="transpose(jvp(f))/exp"}
  i = f32[8] negate(h), metadata={op_name="transpose(jvp(f))/neg"}
  n = f32[8] add(g, w)
  m = f32[8] multiply(i, w)
  ROOT r = (f32[8], f32[8]) tuple(n, m)
}
"""
    found = program(module_from_bytes(from_hlo_text(text)))
    names = [found.graph.tensors[t].name.split(".")[0] for t in sorted(found.gradients)]
    assert names == ["g", "i"]


def test_addends_of_a_sum_of_sums_are_external():
    """Of p + q + r, which an update reads, each lies in the gradient's memory; a larger one not."""
    opcodes = ("dot", "dot", "add", "dot", "add", "dot", "subtract")
    read = ((2,), (2,), (4,), (4,), (6,), (4,), ())
    tensors = tuple(
        Tensor(f"t{k}", 99 if k == 5 else 8, k, sinks, k) for k, sinks in enumerate(read)
    )
    graph = TensorGraph("sums", tuple(Operator("op", name) for name in opcodes), tensors)
    found = Program(graph, frozenset(range(6)), frozenset({4}))
    assert static.external(found) == frozenset(range(5))


def test_more_paths_than_colours():
    """70 operators that all may run in parallel: NNVM has 64 colours, the rest are without."""
    graph = TensorGraph("apart", (Operator("op", "add"),) * 70, ())
    assert sorted(static.colours(graph)) == [-1] * 6 + list(range(64))
    assert static.colours(TensorGraph("none", (), ())) == []
