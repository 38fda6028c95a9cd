"""A module while it is changed: ids, orders, lists, names, and what goes with what is not read."""

import pytest

from hlo import xla_pb2
from hlo.dumps.read import with_program_order
from hlo.graph import MutableModule
from hlo.instructions import Names, instruction
from hlo.module import HloError, module_from_proto
from hlo.rewrite.placing import place_new
from hlo.text import from_hlo_text

pytestmark = pytest.mark.quick

STEPS = """HloModule m
f {
  p = f32[4] parameter(0)
  ROOT q = f32[4] negate(p)
}
ENTRY e {
  x = f32[4] parameter(0)
  a = f32[4] negate(x)
  b = f32[4] fusion(a), kind=kLoop, calls=f
  c = f32[4] cosine(x)
  d = f32[4] add(b, c), control-predecessors={a}
  ROOT r = f32[4] tanh(d)
}"""


@pytest.fixture(params=["module-wide ids", "ids within"])
def body(request):
    """The entry, in a module whose schedule has ids of either kind."""
    proto = xla_pb2.HloModuleProto.FromString(with_program_order(from_hlo_text(STEPS)))
    entry = MutableModule(proto).body(proto.entry_computation_id)
    if request.param == "ids within":
        sequence = proto.schedule.sequences[proto.entry_computation_id].instruction_ids
        sequence[:] = [k & 0xFFFFFFFF for k in sequence]
        entry = MutableModule(proto).body(proto.entry_computation_id)
    return entry


def unary(body, opcode, operand, name, **place):
    return body.add(instruction(opcode, name, operand.shape, [operand]), **place)


def order(body):
    """Names in the order that is written; a view has them only where ids are right."""
    local = body.computation.id << 32 > max(body.order)
    body.reorder()
    body._module.finish()
    written = body._module.proto.schedule.sequences[body.computation.id].instruction_ids
    assert local or all(k >> 32 for k in written) or all(not k >> 32 for k in written)
    view = module_from_proto(body._module.proto)
    return " ".join(i.name for i in view.entry.schedule)


def test_what_is_new_comes_where_it_is_put_or_right_before_its_first_reader(body):
    x, d = body.named("x"), body.named("d")
    first = unary(body, "abs", x, "first")
    second = unary(body, "exponential", first, "second")
    d.operand_ids[1] = second.id
    unary(body, "abs", x, "unread")
    unary(body, "abs", x, "early", early=True)
    place_new(body)
    unary(body, "bitcast", body.named("c"), "kept", after=d)
    assert order(body) == "x early a b c first second d kept r"
    assert "unread" not in body


def test_what_is_read_earlier_now_is_moved_and_a_circle_is_refused(body):
    new = unary(body, "abs", body.named("c"), "new")
    body.named("b").operand_ids[0] = new.id
    place_new(body)
    assert order(body) == "x a c new b d r"
    a = body.named("a")
    a.operand_ids[0] = unary(body, "abs", body.named("b"), "other").id
    body.named("b").operand_ids[0] = a.id
    with pytest.raises(HloError, match="reads itself"):
        place_new(body)


def test_what_nothing_reads_goes_and_control_edges_go_past_it(body):
    a, b, c, d = (body.named(name) for name in "abcd")
    a.control_predecessor_ids.append(c.id)
    body.replace(b, c)
    body.sweep([b])
    assert not {"a", "b"} & {i.name for i in body.instructions()}
    assert list(d.control_predecessor_ids) == [c.id], "d waited for a, and a for c"
    body.replace(body.root, d)
    body.sweep([body.named("r")])
    assert order(body) == "x c d"


def test_a_copied_computation_has_ids_of_its_own(body):
    module, fusion = body._module, body.named("b")
    copy = module.new_computation(xla_pb2.HloComputationProto(name="g"))
    copy.copy_from(module.called(fusion), lambda name: f"{name}.g")
    fusion.called_computation_ids[0] = copy.computation.id
    module.finish(prune=True)
    view = module_from_proto(module.proto)
    assert [c.name for c in view.computations] == ["g", view.entry.name], "nothing calls f"
    assert [i.opcode for i in view.computations[0].instructions] == ["parameter", "negate"]


def test_names_are_given_once():
    names = Names(xla_pb2.HloModuleProto.FromString(from_hlo_text(STEPS)))
    assert [names.new("fresh"), names.new("fresh"), names.new("fresh")] == [
        "fresh", "fresh.1", "fresh.2",
    ]  # fmt: skip
    with pytest.raises(HloError, match="the module has fresh.2 already"):
        names.claim("fresh.2")


def test_what_is_not_there_is_named(body):
    with pytest.raises(HloError, match="has no nothing; plan it again"):
        body.named("nothing")
    with pytest.raises(HloError, match="no instruction nothing; plan it again"):
        body._module.find(["x", "nothing"])
