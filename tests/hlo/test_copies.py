"""Copies where values that must have one buffer are alive together: before a schedule and after."""

import pytest

from hlo import xla_pb2
from hlo.dumps.read import insert_copies, with_program_order
from hlo.module import module_from_proto
from hlo.rewrite.apart import conflicts, keep_apart
from hlo.text import from_hlo_text
from hlo.values import analyse

LOOP = """HloModule m{attributes}
runs {{
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[4] get-tuple-element(s), index=1
  w = f32[4] sine(v)
  one = s32[] constant(1)
  n = s32[] add(i, one)
  ROOT t = (s32[], f32[4]) tuple(n, w)
}}
goes_on {{
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT t = pred[] compare(i, n), direction=LT
}}
ENTRY e {{
  p = f32[4] parameter(0)
  q = s32[] parameter(1)
  zero = s32[] abs(q)
  x = f32[4] negate(p)
  {begin}
  o = (s32[], f32[4]) while(b), condition=goes_on, body=runs
  y = f32[4] get-tuple-element(o), index=1
  z = f32[4] cosine({read})
  ROOT r = (f32[4], f32[4]) tuple({results})
}}"""
BEGIN = "b = (s32[], f32[4]) tuple(zero, x)"
ONE_TUPLE = "d = (s32[], f32[4]) tuple(zero, x)\n  b = (s32[], f32[4]) opt-barrier(d)"


def proto_of(read="y", begin=BEGIN, results="y, z", attributes=""):
    text = LOOP.format(read=read, begin=begin, results=results, attributes=attributes)
    return xla_pb2.HloModuleProto.FromString(with_program_order(from_hlo_text(text)))


def reread(proto, name, operand, by="z"):
    """The same with another operand for an instruction."""
    after = xla_pb2.HloModuleProto()
    after.CopyFrom(proto)
    ids = {i.name: i.id for c in after.computations for i in c.instructions}
    for c in after.computations:
        for i in c.instructions:
            if i.name == by:
                i.operand_ids[:] = [ids[operand] if k == ids[name] else k for k in i.operand_ids]
    return after


def copies(proto):
    """Name of each copy -> what it copies, and who reads it."""
    names = {i.id: i.name for c in proto.computations for i in c.instructions}
    found = {}
    for c in proto.computations:
        for i in c.instructions:
            if i.opcode == "copy":
                readers = {k.name for k in c.instructions if i.id in k.operand_ids}
                found[i.name] = names[i.operand_ids[0]], readers
    return found


def meets(proto, target="cpu"):
    return conflicts(analyse(module_from_proto(proto), target), target)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_what_is_read_later_now_is_copied_for_what_writes_over_it(target):
    before = proto_of()
    after = reread(before, "y", "x")
    assert not meets(before, target) and meets(after, target)
    keep_apart(before, after, target)
    assert not meets(after, target)
    (copied,) = copies(after).items()
    assert copied == ("x.apart", ("x", {"b"}))
    view = module_from_proto(after)
    order = [i.name for i in view.entry.schedule]
    assert order.index("x") < order.index("x.apart") < order.index("b")
    assert [o.name for o in view.entry.schedule[order.index("z")].operands] == ["x"]


def test_what_was_alive_together_before_is_left_to_xla():
    before = proto_of(read="x")
    after = xla_pb2.HloModuleProto()
    after.CopyFrom(before)
    keep_apart(before, after, "cpu")
    assert after == before and meets(after)


def test_a_tuple_that_others_read_too_is_another_one_for_the_loop():
    """The loop's own has the copy, the other's reader the value as it was."""
    begin = BEGIN + "\n  e = f32[4] get-tuple-element(b), index=1\n  f = f32[4] abs(e)"
    before = proto_of(begin=begin, results="z, f")
    after = reread(before, "y", "x")
    keep_apart(before, after, "cpu")
    assert not meets(after)
    ((source, readers),) = copies(after).values()
    assert source == "x" and readers == {"b.1"}
    view = module_from_proto(after)
    named = {i.name: i for i in view.entry.instructions}
    assert [o.name for o in named["o"].operands] == ["b.1"]
    assert [o.name for o in named["b"].operands] == ["zero", "x"]


def test_an_argument_is_not_overwritten_by_what_takes_its_place():
    """A result that an argument's memory is for: read later, the argument's reader has a copy."""
    donated = ", input_output_alias={ {0}: (0, {}, may-alias) }"
    before = proto_of(results="y, z", attributes=donated)
    after = reread(before, "y", "p")
    keep_apart(before, after, "cpu")
    assert not meets(after)


# Before there is a schedule.


def inserted(**text):
    found = LOOP.format(**{"read": "y", "begin": BEGIN, "results": "y, z", "attributes": ""} | text)
    proto = xla_pb2.HloModuleProto.FromString(from_hlo_text(found))
    insert_copies(proto, "cpu")
    assert not meets(proto)
    return proto


def test_nothing_is_copied_where_nothing_meets():
    assert not copies(inserted())


def test_a_loops_start_that_is_read_later_is_copied():
    ((source, readers),) = copies(inserted(read="x")).values()
    assert source.split(".")[0] == "x" and len(readers) == 1


@pytest.mark.parametrize(
    ("results", "attributes", "count"),
    [
        ("y, z", "", 0),
        ("y, y", "", 1),  # one value, two outputs
        ("y, p", "", 1),  # an argument
        ("p, z", ", input_output_alias={ {0}: (0, {}, may-alias) }", 0),
        ("z, p", ", input_output_alias={ {0}: (0, {}, may-alias) }", 2),
    ],
)
def test_each_output_has_a_buffer_of_its_own(results, attributes, count):
    proto = inserted(results=results, attributes=attributes)
    assert len(copies(proto)) == count
    root = module_from_proto(proto).entry.root
    assert len({o.name for o in root.operands}) == 2


def test_ids_are_in_the_order_of_the_list():
    proto = inserted(read="x", results="y, p")
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    numbers = [i.id for i in entry.instructions]
    assert numbers == sorted(numbers) and entry.root_id in numbers
    assert all(k < i.id for i in entry.instructions for k in i.operand_ids)


def test_a_tuple_that_is_handed_on_whole_is_taken_apart():
    before = proto_of(begin=ONE_TUPLE)
    after = reread(before, "y", "x")
    keep_apart(before, after, "cpu")
    assert not meets(after)
    assert copies(after) == {"b.element.1.apart": ("b.element.1", {"b.tuple"})}


BRANCHES = """HloModule m, is_scheduled=true
same { ROOT p = (f32[4]) parameter(0) }
other { q = (f32[4]) parameter(0)
  f = f32[4] get-tuple-element(q), index=0
  n = f32[4] negate(f)
  ROOT t = (f32[4]) tuple(n) }
ENTRY e { c = pred[] parameter(0)
  d = f32[4] parameter(1)
  x = f32[4] sine(d)
  b = (f32[4]) tuple(x)
  o = (f32[4]) conditional(c, b, b), true_computation=same, false_computation=other
  y = f32[4] get-tuple-element(o), index=0
  z = f32[4] negate(y)
  ROOT r = (f32[4], f32[4]) tuple(y, z) }"""


def test_a_branch_that_hands_its_operand_on_gives_a_copy():
    before = xla_pb2.HloModuleProto.FromString(from_hlo_text(BRANCHES))
    after = reread(before, "y", "x")
    assert meets(after)
    keep_apart(before, after, "cpu")
    assert not meets(after)
    assert copies(after) == {"p.element.apart": ("p.element", {"p.tuple"})}
    (branch,) = (c for c in module_from_proto(after).computations if c.name == "same")
    assert [i.name for i in branch.schedule][-1] == branch.root.name == "p.tuple"
