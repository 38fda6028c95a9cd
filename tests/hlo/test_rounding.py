"""Which fusions may round otherwise in other memory: two products in one sum, and what is unclear.

The referee has a test of its own, written apart; on all fusions here both say the same.
"""

import pytest

from hlo.module import module_from_bytes
from hlo.rounding import may_depend_on_memory
from hlo.text import from_hlo_text
from olla_xla.check.executable.program import read_program
from olla_xla.check.executable.rounding import Rounding

pytestmark = pytest.mark.quick

MODULE = """
HloModule m, is_scheduled=true

sum {{
  x = {type}[] parameter(0)
  y = {type}[] parameter(1)
  ROOT s = {type}[] add(x, y)
}}

product {{
  x = {type}[] parameter(0)
  y = {type}[] parameter(1)
  ROOT s = {type}[] multiply(x, y)
}}

fused {{
  a = {type}[8,8] parameter(0)
  b = {type}[8,8] parameter(1)
  {body}
}}

ENTRY main {{
  a = {type}[8,8] parameter(0)
  b = {type}[8,8] parameter(1)
  ROOT f = {result} fusion(a, b), kind=kLoop, calls=fused
}}
"""

ROW = "reverse(a), dimensions={0}"  # what XLA's tiled code generator does not take
BODIES = {
    "two products": (f"r = f32[8,8] {ROW}\n p = f32[8,8] multiply(r, b)\n"
                     "q = f32[8,8] multiply(a, b)\n ROOT s = f32[8,8] add(p, q)", True),
    "one product": (f"r = f32[8,8] {ROW}\n p = f32[8,8] multiply(r, b)\n"
                    "ROOT s = f32[8,8] add(p, b)", False),
    "none": (f"r = f32[8,8] {ROW}\n ROOT s = f32[8,8] subtract(r, b)", False),
    "a sum is no product": (f"r = f32[8,8] {ROW}\n p = f32[8,8] multiply(r, b)\n"
                            "q = f32[8,8] multiply(a, b)\n t = f32[8,8] add(p, a)\n"
                            "u = f32[8,8] add(q, a)\n ROOT s = f32[8,8] add(t, u)", False),
    "moved and negated": (f"r = f32[8,8] {ROW}\n p = f32[8,8] multiply(r, b)\n"
                          "t = f32[8,8] transpose(p), dimensions={1,0}\n"
                          "n = f32[8,8] negate(t)\n q = f32[8,8] multiply(a, b)\n"
                          "ROOT s = f32[8,8] subtract(n, q)", True),
    "an index is no product": ("i = s32[] constant(1)\n j = s32[] multiply(i, i)\n"
                               "k = s32[] and(j, i)\n p = f32[8,8] multiply(a, b)\n"
                               "w = f32[1,8] slice(a), slice={[0:1], [0:8]}\n"
                               "t = f32[8,8] add(a, b)\n"
                               "u = f32[8,8] dynamic-update-slice(t, w, j, k)\n"
                               "ROOT s = f32[8,8] add(p, u)", False),
    "through a reduction": ("z = f32[] constant(0)\n p = f32[8,8] multiply(a, b)\n"
                            "r = f32[8] reduce(p, z), dimensions={0}, to_apply=sum\n"
                            "w = f32[8,8] broadcast(r), dimensions={0}\n"
                            "q = f32[8,8] multiply(a, b)\n ROOT s = f32[8,8] add(w, q)", False),
    "a reduction that multiplies": ("z = f32[] constant(1)\n r = f32[8] reduce(a, z), "
                                    "dimensions={0}, to_apply=product\n"
                                    "w = f32[8,8] broadcast(r), dimensions={0}\n"
                                    "q = f32[8,8] multiply(a, b)\n ROOT s = f32[8,8] add(w, q)",
                                    True),
    "what ends in a product or not": (f"r = f32[8,8] {ROW}\n e = f32[8,8] exponential(r)\n"
                                      "q = f32[8,8] multiply(a, b)\n ROOT s = f32[8,8] add(e, q)",
                                      True),
    "tiles": ("p = f32[8,8] multiply(a, b)\n q = f32[8,8] multiply(b, b)\n"
              "ROOT s = f32[8,8] add(p, q)", False),
}  # fmt: skip


def _both(text: str, target: str) -> tuple[bool, bool]:
    data = from_hlo_text(text)
    ours = next(i for i in module_from_bytes(data).entry.instructions if i.name == "f")
    theirs = next(op for op in read_program(data).entry.ops if op.name == "f")
    return may_depend_on_memory(ours, target), Rounding(target).depends_on_memory(theirs)


@pytest.mark.parametrize("name", BODIES)
def test_products_on_both_sides(name):
    body, sensitive = BODIES[name]
    text = MODULE.format(type="f32", result="f32[8,8]", body=body)
    assert _both(text, "cpu") == (sensitive, sensitive)


def test_tiles_are_for_cpus_only():
    text = MODULE.format(type="f32", result="f32[8,8]", body=BODIES["tiles"][0])
    assert _both(text, "cuda") == (True, True)


@pytest.mark.parametrize("kind, sensitive", [("c64", True), ("s32", False)])
def test_complex_numbers_are_and_integers_are_not(kind, sensitive):
    body = BODIES["two products"][0].replace("f32", kind)
    text = MODULE.format(type=kind, result=f"{kind}[8,8]", body=body)
    assert _both(text, "cpu") == (sensitive, sensitive)
