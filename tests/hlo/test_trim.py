"""Outputs of fusions that nothing reads go, and what only they needed; nothing else does."""

import pytest

from hlo import xla_pb2
from hlo.graph import MutableModule
from hlo.module import module_from_proto
from hlo.rewrite.trim import drop_unread, trim_branches
from hlo.text import from_hlo_text

pytestmark = pytest.mark.quick

BODY = """
three { p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  a = f32[4] sine(p)
  b = f32[4] cosine(q)
  c = f32[4] add(a, b)
  ROOT t = (f32[4], f32[4], f32[4]) tuple(a, b, c) }
"""


def trimmed(entry, repeated, attributes="kind=kLoop"):
    """(names that are left, name -> instruction, the fused body, name of the root)."""
    text = f"HloModule m\n{BODY}\nENTRY e {{ {entry.replace('KIND', attributes)} }}"
    proto = xla_pb2.HloModuleProto.FromString(from_hlo_text(text))
    module = MutableModule(proto)
    computation = module.body(proto.entry_computation_id)
    known = {i.name.split(".")[0]: i for i in computation.instructions()}
    drop_unread(module, computation, [known[name] for name in repeated])
    module.finish()
    by_name = {i.name.split(".")[0]: i for i in computation.instructions()}
    (body,) = [c for c in proto.computations if c.id != proto.entry_computation_id]
    return list(by_name), by_name, body, computation.root.name.split(".")[0]


HEAD = """x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  v = f32[4] tanh(y)
  f = (f32[4], f32[4], f32[4]) fusion(x, v), KIND, calls=three
"""
FIRST = f"""{HEAD}
  g = f32[4] get-tuple-element(f), index=0
  ROOT r = f32[4] negate(g)"""


def opcodes(body):
    return sorted(i.opcode for i in body.instructions)


def test_a_single_output_is_handed_over_as_it_is():
    left, by_name, body, root = trimmed(FIRST, ["f"])
    assert left == ["x", "y", "v", "f", "r"] and root == "r", "y and v are not computed again"
    fusion = by_name["f"]
    assert list(by_name["r"].operand_ids) == [fusion.id]
    assert list(fusion.operand_ids) == [by_name["x"].id]
    assert fusion.shape.element_type and not fusion.shape.tuple_shapes
    assert opcodes(body) == ["parameter", "sine"]


def test_what_only_a_dropped_output_needed_goes_with_it():
    left, _, _, _ = trimmed(FIRST, ["f", "v"])
    assert left == ["x", "y", "f", "r"]


def test_some_outputs_of_several_are_numbered_anew():
    entry = f"""{HEAD}
  g = f32[4] get-tuple-element(f), index=1
  h = f32[4] get-tuple-element(f), index=2
  ROOT r = f32[4] add(g, h)"""
    left, by_name, body, _ = trimmed(entry, ["f"])
    assert left == ["x", "y", "v", "f", "g", "h", "r"]
    assert (by_name["g"].tuple_index, by_name["h"].tuple_index) == (0, 1)
    assert len(by_name["f"].shape.tuple_shapes) == 2
    assert opcodes(body) == ["add", "cosine", "parameter", "parameter", "sine", "tuple"]
    (result,) = [i for i in body.instructions if i.id == body.root_id]
    names = {i.id: i.opcode for i in body.instructions}
    assert [names[k] for k in result.operand_ids] == ["cosine", "add"]


def test_the_root_may_be_what_was_handed_on():
    entry = f"{HEAD}\n  ROOT g = f32[4] get-tuple-element(f), index=2"
    left, _, body, root = trimmed(entry, ["f"])
    assert root == "f" and left == ["x", "y", "v", "f"]
    assert opcodes(body) == ["add", "cosine", "parameter", "parameter", "sine"]


def test_a_clone_that_nothing_reads_goes():
    entry = f"""{HEAD}
  g = f32[4] get-tuple-element(f), index=0
  w = f32[4] tanh(y)
  u = f32[4] bitcast(w)
  ROOT r = f32[4] negate(g)"""
    left, _, _, _ = trimmed(entry, ["w"])
    assert "w" in left, "the bitcast that reads it is not computed again"
    left, _, _, _ = trimmed(entry, ["w", "u"])
    assert not {"w", "u"} & set(left)


@pytest.mark.parametrize(
    ("entry", "attributes"),
    [
        (FIRST, "kind=kCustom"),
        (FIRST, "kind=kLoop, output_to_operand_aliasing={{0}: (0, {})}"),
        (FIRST.replace("negate(g)", "negate(g), control-predecessors={f}"), "kind=kLoop"),
        (f"{HEAD}\n  ROOT r = ((f32[4], f32[4], f32[4])) tuple(f)", "kind=kLoop"),
    ],
    ids=["custom", "bound", "awaited", "read whole"],
)
def test_what_xla_leaves_alone_stays(entry, attributes):
    left, by_name, body, _ = trimmed(entry, ["f", "v"], attributes)
    assert "v" in left and len(by_name["f"].shape.tuple_shapes) == 3
    assert "tuple" in opcodes(body)


BRANCHES = """HloModule m, is_scheduled=true
same { p = (f32[4]) parameter(0)
  e = f32[4] get-tuple-element(p), index=0
  s = f32[4] sine(e)
  ROOT t = (f32[4], f32[4]) tuple(s, e) }
inner { r = (f32[4]) parameter(0)
  g = f32[4] get-tuple-element(r), index=0
  v = f32[4] cosine(g)
  ROOT u = (f32[4], f32[4]) tuple(g, v) }
outer { q = (f32[4], pred[]) parameter(0)
  f = f32[4] get-tuple-element(q), index=0
  w = pred[] get-tuple-element(q), index=1
  o = (f32[4]) tuple(f)
  h = (f32[4], f32[4]) conditional(w, o, o), true_computation=inner, false_computation=same
  a = f32[4] get-tuple-element(h), index=0
  b = f32[4] get-tuple-element(h), index=1
  ROOT k = (f32[4], f32[4]) tuple(a, b) }
none { y = (f32[4]) parameter(0)
  z = f32[4] get-tuple-element(y), index=0
  ROOT x = (f32[4], f32[4]) tuple(z, z) }
ENTRY e { c = pred[] parameter(0)
  d = f32[4] parameter(1)
  l = (f32[4], pred[]) tuple(d, c)
  m = (f32[4]) tuple(d)
  i = (f32[4], f32[4]) conditional(c, l, m), true_computation=outer, false_computation=none
  j = f32[4] get-tuple-element(i), index=1
  ROOT n = f32[4] negate(j) }"""


def test_branches_give_what_is_read_as_xla_will_have_them():
    """A tuple of all elements of another in order is that one: of a parameter, or a conditional."""
    proto = xla_pb2.HloModuleProto.FromString(from_hlo_text(BRANCHES))
    module = MutableModule(proto)
    entry = module.body(proto.entry_computation_id)
    trim_branches(module, entry, entry.named("i"), whole=True)
    module.finish()
    found = {c.name: c for c in module_from_proto(proto).computations}
    left = {name: [i.name for i in found[name].schedule] for name in ("outer", "none", "same")}
    assert left == {"outer": ["q", "f", "w", "o", "h"], "none": ["y"], "same": ["p"]}
    assert [found[name].root.name for name in left] == ["h", "y", "p"]
    assert [i.opcode for i in found["inner"].schedule].count("cosine") == 1
    assert found["e"].schedule[-2].tuple_index == 0
