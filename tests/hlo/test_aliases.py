"""Results bound to operands of fusions: what is written into the module, and what is refused."""

import pytest

from hlo.module import HloError, module_from_bytes, parse_module_proto
from hlo.rewrite.aliases import add_aliases
from hlo.text import from_hlo_text

pytestmark = pytest.mark.quick

TEXT = """
HloModule m, is_scheduled=true

two {
  p = f32[4,8] parameter(0)
  q = f32[8,4] parameter(1)
  n = f32[4,8] negate(p)
  r = f32[4,8] bitcast(q)
  s = f32[4,8] add(n, r)
  ROOT t = (f32[4,8], f32[4,8]) tuple(n, s)
}

ENTRY e {
  a = f32[4,8] parameter(0)
  b = f32[8,4] parameter(1)
  x = f32[4,8] tanh(a)
  y = f32[8,4] tanh(b)
  f = (f32[4,8], f32[4,8]) fusion(x, y), kind=kLoop, calls=two
  ROOT g = f32[4,8] get-tuple-element(f), index=1
}
"""


def bound(aliases):
    """The module with results bound, the fusion, and ids of what changed beside it."""
    proto = parse_module_proto(from_hlo_text(TEXT))
    names = {i.name.split(".")[0]: i.name for c in proto.computations for i in c.instructions}
    changed = add_aliases(proto, {names.get(k, k): v for k, v in aliases.items()})
    module = module_from_bytes(proto.SerializeToString())
    (fusion,) = [i for i in module.entry.instructions if i.opcode == "fusion"]
    return module, fusion, changed


def test_a_result_of_the_operands_shape_is_bound_and_nothing_else_changes():
    plain = module_from_bytes(from_hlo_text(TEXT))
    module, fusion, changed = bound({"f": [((0,), 0)]})
    assert fusion.aliasing == (((0,), 0, ()),) and not changed
    assert len(module.entry.instructions) == len(plain.entry.instructions)


def test_an_operand_of_other_dimensions_goes_through_bitcasts():
    module, fusion, changed = bound({"f": [((1,), 1)]})
    assert fusion.aliasing == (((1,), 1, ()),)
    outer, body = fusion.operands[1], fusion.called[0]
    assert outer.opcode == "bitcast" and outer.operands[0].name.startswith("y")
    assert outer.shape.dimensions == (4, 8)
    (given,) = [i for i in body.instructions if i.parameter_number == 1]
    assert given.shape.dimensions == (4, 8) and len(changed) == 1
    (inside,) = [i for i in body.instructions if given in i.operands]
    assert inside.opcode == "bitcast" and inside.shape.dimensions == (8, 4)
    schedule = module.entry.schedule
    assert schedule is not None and schedule.index(outer) + 1 == schedule.index(fusion)


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"nobody": [((), 0)]}, "no instruction nobody"),
        ({"x": [((), 0)]}, "is not a fusion with an operand 0"),
        ({"f": [((0,), 2)]}, "is not a fusion with an operand 2"),
        ({"f": [((2,), 0)]}, r"has no result \(2,\)"),
    ],
)
def test_what_the_module_does_not_have_is_refused(aliases, message):
    with pytest.raises(HloError, match=message):
        bound(aliases)
