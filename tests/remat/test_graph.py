"""The recomputation problem of a computation: who reads what, what may go, what runs again."""

import numpy as np

from hlo.dumps.read import with_program_order
from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.memory.module_state import PlannedModule
from olla_xla.remat.evictions import expand
from olla_xla.remat.graph import remat_graph
from tests.support import rates


def problem(text, runs=1, kernels=None, *, stay=False, header=""):
    """(graph, name -> number of the tensor that an instruction makes, names in order)."""
    view = module_from_bytes(with_program_order(from_hlo_text(f"HloModule m{header}\n{text}")))
    planned = PlannedModule(view, "cpu")
    lowered = planned.charge_all()
    cost = rates.cost()
    graph = remat_graph(planned.dataflow, lowered, cost, kernels, runs)
    graph = graph.with_arguments_held() if stay else graph
    names = [i.name for i in graph.instructions]
    values = [planned.dataflow.values[v] for v in graph.values]
    tensors = {v.instruction.name: t for t, v in enumerate(values)}
    return graph, tensors, names


def test_a_random_state_is_not_advanced_twice():
    graph, tensors, names = problem("""ENTRY e { a = u64[2] parameter(0)
  s = u64[2] rng-get-and-update-state(), delta=1
  b = u64[2] add(a, s)
  ROOT r = u64[2] multiply(b, a) }""")
    assert not graph.marks.rerun[names.index("s")] and not graph.evictable[tensors["s"]]
    assert graph.marks.rerun[names.index("b")]


def test_what_others_wait_for_runs_once():
    graph, _, names = problem("""ENTRY e { a = f32[256] parameter(0)
  b = f32[256] tanh(a)
  c = f32[256] sine(a), control-predecessors={b}
  d = f32[256] cosine(c)
  ROOT r = f32[256] add(b, d) }""")
    assert not graph.marks.rerun[names.index("b")] and graph.marks.rerun[names.index("d")]


def test_a_buffer_that_a_loop_writes_over_can_be_read_until_then():
    graph, tensors, names = problem("""cond { s = (s32[], f32[256]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
body { s = (s32[], f32[256]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[256] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  d = f32[256] sine(a)
  ROOT t = (s32[], f32[256]) tuple(j, d) }
ENTRY e { first = s32[] parameter(0)
  x = f32[256] parameter(1)
  b = f32[256] cosine(x)
  k = s32[] negate(first)
  t = (s32[], f32[256]) tuple(k, b)
  w = (s32[], f32[256]) while(t), condition=cond, body=body
  ROOT r = f32[256] get-tuple-element(w), index=1 }""")
    assert graph.marks.limit[tensors["b"]] == names.index("w")
    assert graph.marks.limit[tensors["x"]] == graph.arrays.n, "nothing writes over an argument"
    assert not graph.evictable[tensors["b"]], "the loop's state lies in its buffer"


def test_what_is_updated_in_place_is_kept():
    """Made again it would lie elsewhere than what was written into it."""
    graph, tensors, _ = problem("""ENTRY e { a = f32[256] parameter(0)
  p = f32[4] parameter(1)
  i = s32[] parameter(2)
  b = f32[256] tanh(a)
  c = f32[256] sine(a)
  u = f32[256] dynamic-update-slice(b, p, i)
  ROOT r = f32[256] add(u, c) }""")
    assert graph.evictable[tensors["c"]] and not graph.evictable[tensors["b"]]


UPDATE = """f { p0 = f32[256] parameter(0)
  p1 = f32[256] parameter(1)
  ROOT r = f32[256] subtract(p0, p1) }
ENTRY e { w = f32[256] parameter(0)
  x = f32[256] parameter(1)
  c = f32[256] copy(w)
  y = f32[256] multiply(x, c)
  z = f32[256] sine(y)
  g = f32[256] multiply(z, c)
  ROOT n = f32[256] fusion(c, g), kind=kLoop, calls=f }"""
DONATED = ", input_output_alias={ {}: (0, {}, may-alias) }"


def test_what_lies_in_an_arguments_place_ends_its_reading():
    """The kernel is to write over g, and its result takes w's place: so g must lie there."""
    graph, tensors, names = problem(UPDATE, header=DONATED)
    assert graph.marks.limit[tensors["w"]] == names.index("n")
    graph, tensors, names = problem(UPDATE, kernels={"n": (0, 1, 1)}, header=DONATED)
    assert graph.marks.limit[tensors["g"]] == names.index("n")
    assert graph.marks.limit[tensors["w"]] == names.index("g")
    later = np.array([[tensors["c"], (2 * names.index("g") + 1) * graph.arrays.n + 1]], np.int64)
    assert not expand(graph, later).feasible, "made again for n, c is read of w after that"
