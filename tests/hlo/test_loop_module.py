"""A module whose loops are changed: what its parts hand out."""

import dataclasses

import pytest

from hlo import xla_pb2
from hlo.instructions import copied
from hlo.module import HloError
from hlo.rewrite.loop_edit import LoopEdit
from hlo.rewrite.loop_module import LoopModule
from hlo.rewrite.loop_states import States
from hlo.text import from_hlo_text
from tests.support.two_loops import two_loops

pytestmark = pytest.mark.quick


UPDATES = """HloModule m, is_scheduled=true

fused {
  a = f32[2,4] parameter(0)
  b = f32[2,4] parameter(1)
  x = f32[4] parameter(2)
  i = s32[] parameter(3)
  zero = s32[] constant(0)
  y = f32[4] negate(x)
  one = f32[1,4] bitcast(x)
  two = f32[1,4] bitcast(y)
  u = f32[2,4] dynamic-update-slice(a, one, i, zero)
  v = f32[2,4] dynamic-update-slice(b, two, i, zero)
  ROOT t = (f32[2,4], f32[2,4], f32[4]) tuple(u, v, y)
}

ENTRY e {
  p = f32[4] parameter(0)
  n = s32[] parameter(1)
  c = f32[2,4] custom-call(), custom_call_target="AllocateBuffer"
  d = f32[2,4] custom-call(), custom_call_target="AllocateBuffer"
  f = (f32[2,4], f32[2,4], f32[4]) fusion(c, d, p, n), kind=kLoop, calls=fused
  g = f32[2,4] get-tuple-element(f), index=0
  h = f32[2,4] get-tuple-element(f), index=1
  k = f32[4] get-tuple-element(f), index=2
  ROOT r = (f32[2,4], f32[2,4], f32[4]) tuple(g, h, k)
}
"""


EDIT = LoopEdit(
    writer="", reader="", dropped=(), added=(), counter="", iterations=1, written=(1, 0),
    place=(1, 0), iteration=(1, 0), made=(), taken=(), target="tpu",
)  # fmt: skip


@pytest.mark.parametrize("read", [(0,), (1,), (0, 2), (1, 2), (0, 1, 2)])
def test_new_fusions_give_what_is_read(read):
    """As XLA:TPU leaves them, with the memory for the other results."""
    proto = xla_pb2.HloModuleProto.FromString(from_hlo_text(UPDATES))
    module = LoopModule(proto, EDIT)
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    body = module.body(entry.id)
    old = body.named("f")
    computation = module.new_fused("fused.again")
    computation.copy_from(module.called(old), module.names.new)
    copy = copied(old, "f.again")
    copy.called_computation_ids[0] = computation.computation.id
    begun = [module.unwritten(body, f"{name}.again", body.named(name).shape) for name in "cd"]
    copy.operand_ids[:2] = [i.id for i in begun]
    body.add(copy)
    for n in read:
        body.replace(body.named("ghk"[n]), module.leaf(body, copy, (n,)))
    module.trim()
    module.write()
    kept = {i.name: i for i in entry.instructions}
    assert len(kept["f"].shape.tuple_shapes) == 3, "what was there stays as it is"
    made = kept["f.again"]
    assert [kept.keys() & {"c.again"}, kept.keys() & {"d.again"}] == [
        {name} if n in read else set() for n, name in enumerate(("c.again", "d.again"))
    ]
    sizes = [list(s.dimensions) for s in made.shape.tuple_shapes] or [list(made.shape.dimensions)]
    assert sizes == [[[2, 4], [2, 4], [4]][n] for n in read]
    assert len(made.operand_ids) == len({0, 1} & {*read}) + 1 + bool({0, 1} & {*read})


def test_a_loop_of_which_nothing_else_is_read_is_left_alone():
    """Without its scan residual nothing would be left of it."""
    text = two_loops(read="f32[1,4] reshape(h)").replace("(zero, out,", "(zero, x,")
    text = "\n".join(line for line in text.split("\n") if "  out = " not in line)
    proto = xla_pb2.HloModuleProto.FromString(from_hlo_text(text))
    names = [i.name for c in proto.computations for i in c.instructions if i.opcode == "while"]
    module = LoopModule(proto, dataclasses.replace(EDIT, writer=names[0], reader=names[1]))
    writer, states = module.writer, States(module)
    states.shrink(module.reader, [2])
    with pytest.raises(HloError, match="nothing reads first"):
        states.forget(writer, [2])
