"""A computation while it is changed: places of what is new, what goes with what is not read."""

import pytest

from hlo import xla_pb2
from hlo.module import HloError
from hlo.parse import from_hlo_text
from hlo.read import with_program_order
from hlo.rewrite.bodies import MutableComputation, Names, list_computations

Instruction = xla_pb2.HloInstructionProto

STEPS = """HloModule m
ENTRY e {
  x = f32[4] parameter(0)
  a = f32[4] negate(x)
  b = f32[4] sine(a)
  c = f32[4] cosine(x)
  d = f32[4] add(b, c), control-predecessors={a}
  ROOT r = f32[4] tanh(d)
}"""


def proto_of(text):
    return xla_pb2.HloModuleProto.FromString(with_program_order(from_hlo_text(text)))


def body_of(proto, name=""):
    computations = {c.name.split(".")[0]: c for c in proto.computations}
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    return MutableComputation(proto, computations[name] if name else entry, Names(proto))


def unary(opcode, operand, name):
    i = Instruction(name=name, opcode=opcode, operand_ids=[operand.id])
    i.shape.CopyFrom(operand.shape)
    return i


def order(body):
    """Names in the order that is written."""
    body.finish()
    names = {i.id & 0xFFFFFFFF: i.name for i in body.computation.instructions}
    sequence = body._proto.schedule.sequences[body.computation.id].instruction_ids
    return " ".join(names[k & 0xFFFFFFFF] for k in sequence)


def test_a_name_that_is_taken_gets_a_number():
    names = Names(proto_of(STEPS))
    assert [names.new("fresh"), names.new("fresh"), names.new("fresh")] == [
        "fresh", "fresh.1", "fresh.2",
    ]  # fmt: skip
    assert names.new("a") == "a.1", "an instruction's"


def test_without_an_order_there_is_nothing_to_change():
    proto = proto_of(STEPS)
    proto.schedule.sequences.clear()
    with pytest.raises(HloError, match="has no schedule"):
        body_of(proto)


def test_what_is_not_there_is_named():
    with pytest.raises(HloError, match="has no nothing; plan it again"):
        body_of(proto_of(STEPS)).named("nothing")


def test_what_is_new_comes_right_before_its_first_reader():
    body = body_of(proto_of(STEPS))
    first = body.add(unary("abs", body.named("x"), "first"))
    second = body.add(unary("exponential", first, "second"))
    body.named("d").operand_ids[1] = second.id
    body.add(unary("abs", body.named("x"), "unread"))
    body.place_new()
    assert order(body) == "x a b c first second d r"
    assert "unread" not in {i.name for i in body.computation.instructions}


def test_what_is_early_comes_first():
    body = body_of(proto_of(STEPS))
    early = body.add(unary("abs", body.named("x"), "early"), early=True)
    body.named("d").operand_ids[1] = early.id
    body.place_new()
    assert order(body) == "x early a b c d r"


def test_what_is_read_earlier_now_is_moved_and_a_circle_is_refused():
    body = body_of(proto_of(STEPS))
    new = body.add(unary("abs", body.named("c"), "new"))
    body.named("b").operand_ids[0] = new.id
    body.place_new()
    assert order(body) == "x a c new b d r"
    body = body_of(proto_of(STEPS))
    new = body.add(unary("abs", body.named("b"), "new"))
    body.named("a").operand_ids[0] = new.id
    with pytest.raises(HloError, match="reads itself"):
        body.place_new()


def test_all_readers_read_the_other_one_and_a_root_may_be_replaced():
    body = body_of(proto_of(STEPS))
    a, c = body.named("a"), body.named("c")
    body.replace(a, c)
    assert list(body.named("b").operand_ids) == [c.id]
    body.replace(body.root(), c)
    assert body.root() is c
    assert body.alive([a.id]) == "a", "a control edge is no reader"


def test_what_nothing_reads_goes_with_what_it_alone_needed():
    body = body_of(proto_of(STEPS))
    a, b = body.named("a"), body.named("b")
    body.named("d").operand_ids[0] = body.named("x").id
    body.sweep([b.id])
    assert {i.name for i in body.instructions()} == {"x", "c", "d", "r"}
    assert not body.alive([a.id, b.id]) and body.alive([b.id, body.named("c").id]) == "c"
    body.sweep([body.root().id, body.named("x").id])
    assert order(body) == "x c d r"


def test_control_edges_go_past_what_is_gone():
    body = body_of(proto_of(STEPS))
    a, c, d = (body.named(name) for name in "acd")
    a.control_predecessor_ids.append(c.id)
    body.replace(a, c)
    body.sweep([a.id])
    assert list(d.control_predecessor_ids) == [c.id], "d waited for a, and a for c"


ACTS = """HloModule m
ENTRY e {
  x = f32[4] parameter(0)
  a = f32[4] custom-call(x), custom_call_target="f", custom_call_has_side_effect=true
  b = f32[4] custom-call(x), custom_call_target="f"
  ROOT r = f32[4] negate(x)
}"""


def test_what_acts_stays_though_nothing_reads_it():
    body = body_of(proto_of(ACTS))
    body.sweep([body.named("a").id, body.named("b").id])
    assert order(body) == "x a r"


LOOP = """HloModule m
b {
  s = (s32[], f32[4], f32[4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  v = f32[4] get-tuple-element(s), index=1
  w = f32[4] negate(v)
  u = f32[4] sine(w)
  one = s32[] constant(1)
  m = s32[] add(n, one)
  z = f32[4] get-tuple-element(s), index=2
  ROOT t = (s32[], f32[4], f32[4]) tuple(m, w, u)
}
c {
  p = (s32[], f32[4], f32[4]) parameter(0)
  k = s32[] get-tuple-element(p), index=0
  most = s32[] constant(3)
  ROOT l = pred[] compare(k, most), direction=LT
}
ENTRY e {
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  i = (s32[], f32[4], f32[4]) tuple(zero, x, x)
  o = (s32[], f32[4], f32[4]) while(i), condition=c, body=b
  ROOT r = f32[4] get-tuple-element(o), index=1
}"""


def test_an_element_of_the_state_is_the_one_that_is_there_or_a_new_one():
    body = body_of(proto_of(LOOP), "b")
    assert body.element(1) is body.named("v")
    del body.named("z").operand_ids[:]
    body.named("z").opcode = "iota"
    made = body.element(2)
    assert (made.tuple_index, made.opcode) == (2, "get-tuple-element")
    assert made.shape == body.parameter().shape.tuple_shapes[2]
    assert body.element(2) is made


def test_a_loop_s_state_is_read_before_the_next_is_written_over_it():
    body = body_of(proto_of(LOOP), "b")
    late = body.add(unary("abs", body.named("v"), "late"))
    body.root().operand_ids[2] = late.id
    body.sweep([body.named("u").id])
    body.place_new()
    assert order(body).split().index("late") < order(body).split().index("w")


def test_the_same_bytes_are_cast_only_where_the_shape_is_another():
    body = body_of(proto_of(STEPS))
    x = body.named("x")
    assert body.cast(x, x.shape) is x
    shape = xla_pb2.ShapeProto()
    shape.CopyFrom(x.shape)
    shape.dimensions[:] = [2]
    cast = body.cast(x, shape)
    assert (cast.opcode, list(cast.operand_ids), cast.shape) == ("bitcast", [x.id], shape)


TWO = """HloModule m
f {
  p = f32[4] parameter(0)
  q = f32[4] negate(p)
  s = f32[4] sine(p)
  ROOT t = (f32[4], f32[4]) tuple(q, s)
}
ENTRY e {
  x = f32[4] parameter(0)
  y = (f32[4], f32[4]) fusion(x), kind=kLoop, calls=f
  a = f32[4] get-tuple-element(y), index=0
  b = f32[4] get-tuple-element(y), index=1
  c = f32[4] add(a, b)
  ROOT r = f32[4] negate(a)
}"""


def test_outputs_of_fusions_that_were_read_by_what_is_gone_go():
    proto = proto_of(TWO)
    body = body_of(proto)
    lost = [body.named(name).id for name in "cb"]
    body.sweep([lost[0]])
    body.trim(lost, {c.id: c for c in proto.computations})
    assert order(body) == "x y r"
    fused = next(c for c in proto.computations if c.id != proto.entry_computation_id)
    assert [i.opcode for i in fused.instructions] == ["parameter", "negate"]
    assert body.named("y").shape == body.named("x").shape


def test_computations_are_listed_callees_first_and_without_what_nothing_calls():
    proto = proto_of(LOOP)
    body, condition = (next(c for c in proto.computations if c.name[0] == n) for n in "bc")
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    new = xla_pb2.HloComputationProto(name="new", id=1 + max(c.id for c in proto.computations))
    loop = next(i for i in entry.instructions if i.opcode == "while")
    loop.called_computation_ids[:] = [
        new.id if k == body.id else k for k in loop.called_computation_ids
    ]
    gone, kept = body.id, condition.id
    list_computations(proto, [new])
    assert {c.id for c in proto.computations} == {kept, new.id, proto.entry_computation_id}
    assert proto.computations[-1].id == proto.entry_computation_id
    assert gone not in proto.schedule.sequences and kept in proto.schedule.sequences
