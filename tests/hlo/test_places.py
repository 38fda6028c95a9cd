"""Fusions that read one value twice: XLA is asked about the place that forbids to share memory."""

import pytest

from hlo.inplace import can_share, in_place_pairs
from hlo.module import module_from_bytes
from hlo.rewrite.aliases import ask_about_others, unasked
from hlo.rewrite.edit import Edit
from hlo.text import from_hlo_text
from olla_xla.check.executable import results_digest
from olla_xla.check.executable.overwrite import may_overwrite
from olla_xla.check.executable.program import read_program

pytestmark = pytest.mark.quick

TEXT = """HloModule m, is_scheduled=true

within {
  x = f32[8,8] parameter(0)
  w = f32[8,8] parameter(1)
  z = f32[8,8] parameter(2)
  d = f32[8,8] OTHER
  ROOT r = f32[8,8] add(x, d)
}

ENTRY e {
  p = f32[8,8] parameter(0)
  w = f32[8,8] parameter(1)
  a = f32[8,8] sine(p)
  f = f32[8,8] fusion(a, w, a), kind=kCustom, calls=within,
    backend_config={"fusion_config":{"kind":"__ynn_fusion"}}
  ROOT n = f32[8,8] negate(f)
}
"""

DOT = "dot(z, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def shares(module):
    """Whether XLA may put the fusion's result over the value that it reads twice; and whether it
    is right to.
    """
    view = module_from_bytes(module)
    fusion = next(i for i in view.entry.instructions if i.name == "f")
    pairs = in_place_pairs(fusion, "cpu")
    may = can_share(fusion.operands[0], (), fusion, (), "cpu", pairs)
    op = next(op for op in read_program(module).entry.ops if op.name == "f")
    return may, may_overwrite(op, (), [0, 2], "cpu")


def test_a_place_that_is_read_otherwise_comes_first():
    before = from_hlo_text(TEXT.replace("OTHER", DOT))
    view = module_from_bytes(before)
    places = unasked(view)
    after = Edit(view).rewrite(ask_about_others, places).to_bytes()
    assert shares(before) == (True, False)
    assert shares(after) == (False, False)
    assert not unasked(module_from_bytes(after))
    assert results_digest(after, "cpu") == results_digest(before, "cpu")


def test_places_that_are_all_read_element_by_element_stay():
    module = from_hlo_text(TEXT.replace("OTHER", "multiply(z, w)"))
    assert not unasked(module_from_bytes(module))
    assert shares(module) == (True, True)
