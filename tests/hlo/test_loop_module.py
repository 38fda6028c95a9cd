"""A module whose loops are changed: what its parts hand out."""

import pytest

from hlo import xla_pb2
from hlo.parse import from_hlo_text
from hlo.rewrite.loop_module import LoopModule

pytestmark = pytest.mark.quick

NESTED = """HloModule m, is_scheduled=true

greater {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  c = pred[] compare(a, b), direction=GT
  d = f32[] select(c, a, b)
  k = s32[] select(c, i, j)
  ROOT t = (f32[], s32[]) tuple(d, k)
}

fused {
  x = f32[32,4] parameter(0)
  n = s32[32,4] iota(), iota_dimension=1
  low = f32[] constant(-inf)
  zero = s32[] constant(0)
  r = (f32[32], s32[32]) reduce(x, n, low, zero), dimensions={1}, to_apply=greater
  s = f32[32,2] slice(x), slice={[0:32],[0:2]}
  ROOT t = ((f32[32], s32[32]), f32[32,2]) tuple(r, s)
}

ENTRY e {
  p = f32[32,4] parameter(0)
  ROOT f = ((f32[32], s32[32]), f32[32,2]) fusion(p), kind=kInput, calls=fused
}
"""


@pytest.mark.parametrize(
    ("index", "path", "dimensions"),
    [((), [], []), ((1,), [1], [32, 2]), ((0, 1), [0, 1], [32]), ((0,), [0], [])],
)
def test_an_element_of_a_tuple_inside_a_tuple(index, path, dimensions):
    proto = xla_pb2.HloModuleProto.FromString(from_hlo_text(NESTED))
    module = LoopModule(proto)
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    body = module.body(entry)
    whole = body.named("f")
    i = module.leaf(body, whole, index)
    assert list(i.shape.dimensions) == dimensions
    found = []
    while i is not whole:  # JAX's argmax beside a slice is such a fusion on a GPU
        assert i.opcode == "get-tuple-element"
        found.append(i.tuple_index)
        (i,) = body.operands(i)
    assert found[::-1] == path
