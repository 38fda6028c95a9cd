"""Which operands an operation may write over, told one by one."""

import pytest

from hlo.text import from_hlo_text
from olla_xla.check.executable.overwrite import may_overwrite, must_share
from olla_xla.check.executable.program import read_program

pytestmark = pytest.mark.quick

_MODULE = """HloModule m, is_scheduled=true

less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT l = pred[] compare(a, b), direction=LT
}

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

body {
  p = (f32[8], s32[]) parameter(0)
  x = f32[8] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ROOT r = (f32[8], s32[]) tuple(x, n)
}

condition {
  p = (f32[8], s32[]) parameter(0)
  n = s32[] get-tuple-element(p), index=1
  ROOT r = pred[] compare(n, n), direction=LT
}

product {
  x = f32[4,4] parameter(0)
  y = f32[4,4] parameter(1)
  z = f32[4,4] parameter(2)
  d = f32[4,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = f32[4,4] add(d, z)
}

turned {
  x = f32[4,4] parameter(0)
  y = f32[4,4] parameter(1)
  s = f32[4,4] add(x, y)
  t = f32[4,4] transpose(x), dimensions={1,0}
  ROOT r = (f32[4,4], f32[4,4]) tuple(s, t)
}

beside {
  x = f32[4,4] parameter(0)
  y = f32[4,4] parameter(1)
  t = f32[4,4] transpose(y), dimensions={1,0}
  s = f32[4,4] add(x, t)
  n = f32[4,4] negate(x)
  ROOT r = (f32[4,4], f32[4,4]) tuple(s, n)
}

itself {
  x = f32[4,4] parameter(0)
  y = f32[4,4] parameter(1)
  a = f32[4,4] add(x, x)
  n = f32[4,4] negate(x)
  t = f32[4,4] copy(y)
  c = f32[4,4]{0,1} copy(n)
  b = f32[4,4]{0,1} negate(c)
  ROOT r = (f32[4,4], f32[4,4]{0,1}) tuple(a, b)
}

aside {
  x = f32[4,4]{1,0} parameter(0)
  y = f32[4,4]{0,1} parameter(1)
  a = f32[4,4]{0,1} copy(x)
  s = f32[4,4]{0,1} add(a, y)
  b = f32[4,4]{1,0} copy(s)
  ROOT r = f32[4,4]{1,0} add(b, x)
}

moved {
  x = f32[4,4]{1,0} parameter(0)
  a = f32[4,4]{0,1} copy(x)
  f = f32[16] bitcast(a)
  g = f32[4,4]{1,0} bitcast(f)
  ROOT r = f32[4,4]{1,0} add(g, x)
}

again {
  a = f32[8] parameter(0)
  i = s32[] parameter(1)
  part = f32[2] dynamic-slice(a, i), dynamic_slice_sizes={2}
  twice = f32[2] add(part, part)
  ROOT r = f32[8] dynamic-update-slice(a, twice, i)
}

ahead {
  a = f32[8] parameter(0)
  i = s32[] parameter(1)
  j = s32[] add(i, i)
  part = f32[2] dynamic-slice(a, j), dynamic_slice_sizes={2}
  ROOT r = f32[8] dynamic-update-slice(a, part, i)
}

summed {
  a = f32[8] parameter(0)
  i = s32[] parameter(1)
  zero = f32[] constant(0)
  part = f32[2] dynamic-slice(a, i), dynamic_slice_sizes={2}
  s = f32[] reduce(part, zero), dimensions={0}, to_apply=sum
  all = f32[2] broadcast(s), dimensions={}
  ROOT r = f32[8] dynamic-update-slice(a, all, i)
}

kept {
  a = f32[8] parameter(0)
  i = s32[] parameter(1)
  before = f32[2,8] parameter(2)
  zero = s32[] constant(0)
  nought = s32[] constant(0)
  row = f32[1,8] bitcast(a)
  stack = f32[2,8] dynamic-update-slice(before, row, i, zero)
  part = f32[2] dynamic-slice(a, zero), dynamic_slice_sizes={2}
  twice = f32[2] add(part, part)
  new = f32[8] dynamic-update-slice(a, twice, nought)
  ROOT r = (f32[2,8], f32[8]) tuple(stack, new)
}

stepped {
  h = f32[4,4] parameter(0)
  all = f32[2,4,4] parameter(1)
  i = s32[] parameter(2)
  zero = s32[] constant(0)
  n = f32[4,4] negate(h)
  e = f32[4,4] exponential(n)
  part = f32[1,4,4] bitcast(e)
  w = f32[2,4,4] dynamic-update-slice(all, part, i, zero, zero)
  ROOT r = (f32[2,4,4], f32[4,4]) tuple(w, n)
}

crossed {
  h = f32[4,4] parameter(0)
  all = f32[2,4,4] parameter(1)
  i = s32[] parameter(2)
  zero = s32[] constant(0)
  n = f32[4,4] negate(h)
  t = f32[4,4] transpose(n), dimensions={1,0}
  part = f32[1,4,4] bitcast(t)
  w = f32[2,4,4] dynamic-update-slice(all, part, i, zero, zero)
  ROOT r = (f32[2,4,4], f32[4,4]) tuple(w, n)
}

ENTRY e {
  p = f32[8] parameter(0)
  q = f32[8] parameter(1)
  u = f32[2] parameter(2)
  i = s32[] parameter(3)
  j = s32[] parameter(4)
  m = f32[4,4] parameter(5)
  o = f32[4,4] parameter(6)
  k = s32[8] parameter(7)
  at = s32[2,1] parameter(8)
  added = f32[8] add(p, q)
  bits = s32[8] bitcast-convert(p)
  halves = u16[8,2] bitcast-convert(p)
  backwards = f32[8] reverse(p), dimensions={0}
  same = f32[4,4]{1,0} copy(m)
  other = f32[4,4]{0,1} copy(m)
  put = f32[8] dynamic-update-slice(p, u, i)
  solved = f32[4,4] triangular-solve(m, o), left_side=true, lower=true, transpose_a=NO_TRANSPOSE
  scattered = f32[8] scatter(p, at, u), update_window_dims={}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum
  sorted = (f32[8], s32[8]) sort(p, k), dimensions={0}, to_apply=less
  reduced = f32[8] all-reduce(p), to_apply=sum
  start = (f32[8], s32[]) tuple(p, i)
  looped = (f32[8], s32[]) while(start), condition=condition, body=body
  plain = f32[4,4] custom-call(m, o), custom_call_target="mine"
  bound = f32[4,4] custom-call(m, o), custom_call_target="mine",
    output_to_operand_aliasing={{}: (1, {})}
  matmul = f32[4,4] custom-call(m, o, same), custom_call_target="__cublas$lt$matmul"
  factor = f32[4,4] custom-call(m), custom_call_target="__cusolver$cholesky"
  multiplied = f32[4,4] fusion(m, o, same), kind=kOutput, calls=product
  both = (f32[4,4], f32[4,4]) fusion(m, o), kind=kLoop, calls=turned
  near = (f32[4,4], f32[4,4]) fusion(m, o), kind=kLoop, calls=beside
  self = (f32[4,4], f32[4,4]{0,1}) fusion(m, o), kind=kLoop, calls=itself
  update = f32[8] fusion(p, i), kind=kLoop, calls=again
  before = f32[2,8] parameter(10)
  later = f32[8] fusion(p, i), kind=kLoop, calls=ahead
  total = f32[8] fusion(p, i), kind=kLoop, calls=summed
  history = (f32[2,8], f32[8]) fusion(p, i, before), kind=kLoop, calls=kept
  states = f32[2,4,4] parameter(9)
  step = (f32[2,4,4], f32[4,4]) fusion(m, states, i), kind=kLoop, calls=stepped
  cross = (f32[2,4,4], f32[4,4]) fusion(m, states, i), kind=kLoop, calls=crossed
  round = f32[4,4]{1,0} fusion(m, other), kind=kLoop, calls=aside
  square = f32[4,4]{1,0} fusion(m), kind=kLoop, calls=moved
  ROOT out = f32[8] add(put, q)
}
"""


def _operations(index: str = "i"):
    program = read_program(from_hlo_text(_MODULE.replace("i", index)))
    return {op.name: op for op in program.entry.ops}


_OPERATIONS = _operations()


@pytest.mark.parametrize(
    ("name", "result", "numbers", "target", "may"),
    [
        ("added", (), [0], "cpu", True),
        ("added", (), [1], "cuda", True),
        ("bits", (), [0], "cpu", True),
        ("halves", (), [0], "cpu", False),
        ("backwards", (), [0], "cpu", False),
        ("same", (), [0], "cpu", True),
        ("other", (), [0], "cpu", False),
        ("put", (), [0], "cpu", True),
        ("put", (), [1], "cpu", False),
        ("put", (), [0, 1], "cpu", False),
        ("solved", (), [1], "cpu", True),
        ("solved", (), [0], "cpu", False),
        ("scattered", (), [0], "cpu", True),
        ("scattered", (), [2], "cpu", False),
        ("sorted", (1,), [1], "cpu", True),
        ("sorted", (1,), [0], "cpu", False),
        ("reduced", (), [0], "cuda", True),
        ("reduced", (), [0], "cpu", False),  # another device still reads it
        ("looped", (0,), [0], "cpu", True),
        ("plain", (), [0], "cuda", False),
        ("bound", (), [1], "cpu", True),
        ("bound", (), [0], "cpu", False),
        ("matmul", (), [2], "cuda", True),
        ("matmul", (), [0], "cuda", False),
        ("matmul", (), [2], "cpu", False),
        ("factor", (), [0], "cuda", True),
        ("factor", (), [0], "cpu", False),
        ("multiplied", (), [2], "cpu", True),  # added to what is complete by then
        ("multiplied", (), [0], "cpu", False),
        ("both", (0,), [0], "cpu", False),  # which the transpose still reads
        ("both", (0,), [1], "cpu", True),
        ("near", (0,), [0], "cuda", True),  # what is transposed is not the result
        ("near", (1,), [0], "cuda", True),
        ("near", (0,), [0], "cpu", False),
        ("near", (0,), [1], "cuda", False),
        ("self", (0,), [0], "cuda", False),
        ("round", (), [0], "cpu", True),  # laid out otherwise only in between
        ("round", (), [1], "cpu", False),
        ("round", (), [0], "cuda", False),
        ("square", (), [0], "cpu", False),  # the bitcast makes it a transpose
        ("step", (1,), [0], "tpu", True),  # tile by tile, with the slice made of the same tile
        ("step", (1,), [0], "cuda", False),
        ("cross", (1,), [0], "tpu", False),
        ("update", (), [0], "cpu", True),  # its slice is read where it is written
        ("later", (), [0], "cpu", False),
        ("total", (), [0], "cuda", False),  # each element needs the whole slice
        ("history", (0,), [2], "cuda", True),
        ("history", (1,), [0], "cuda", False),  # also stored whole elsewhere
    ],
)
def test_what_an_operation_may_write_over(name, result, numbers, target, may):
    assert may_overwrite(_OPERATIONS[name], result, numbers, target) is may


@pytest.mark.parametrize("name", ["scattered", "put", "update"])
def test_what_updates_an_operand_shares_its_memory(name):
    assert must_share(_OPERATIONS[name], "cpu") == [((), 0, ())]


@pytest.mark.parametrize(("target", "pairs"), [("cpu", []), ("cuda", [((), 0, ())])])
def test_an_all_reduce_is_in_place_but_on_a_cpu(target, pairs):
    assert must_share(_OPERATIONS["reduced"], target) == pairs


def test_what_is_bound_shares_its_memory():
    assert must_share(_OPERATIONS["bound"], "cpu") == [((), 1, ())]
    assert must_share(_OPERATIONS["added"], "cpu") == []
