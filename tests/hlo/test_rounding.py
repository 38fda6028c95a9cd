"""Which fusions may round otherwise in other memory: two products in one sum, what is unclear.

The referee has a test of its own, written apart; on all fusions here both say the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
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


AGAIN = (f"r = f32[8,8] {ROW}\n p = f32[8,8] multiply(r, b)\n q = f32[8,8] multiply(a, b)\n"
         "s = f32[8,8] add(p, q)\n t = f32[8,8] multiply(q, r)\n")  # fmt: skip
READ_AGAIN = {
    "one product is read again": (AGAIN + "ROOT u = f32[8,8] subtract(s, t)", False),
    "both are": (AGAIN + "v = f32[8,8] multiply(p, r)\n w = f32[8,8] add(v, s)\n"
                 "ROOT u = f32[8,8] subtract(w, t)", True),
    "by an addition": (AGAIN + "v = f32[8,8] add(q, r)\n w = f32[8,8] maximum(v, t)\n"
                       "ROOT u = f32[8,8] maximum(w, s)", True),
    "at another element": (AGAIN + "v = f32[8,8] reverse(t), dimensions={1}\n"
                           "ROOT u = f32[8,8] maximum(v, s)", True),
    "in another block of code": (AGAIN + "ROOT u = f32[16,8] concatenate(s, t), dimensions={0}",
                                 True),
}  # fmt: skip


@pytest.mark.parametrize("name", READ_AGAIN)
def test_a_cpu_fuses_the_product_that_nothing_else_reads(name):
    body, sensitive = READ_AGAIN[name]
    result = "f32[16,8]" if "concatenate" in body else "f32[8,8]"
    text = MODULE.format(type="f32", result=result, body=body)
    large = text.replace("8,8]", "99,99]").replace("[16,8]", "[198,99]")
    assert _both(large, "cpu") == (sensitive, sensitive)
    assert _both(large, "cuda") == (True, True)
    assert _both(text, "cpu") == (True, True)  # loops over few elements are unrolled


@pytest.mark.optimized
@pytest.mark.parametrize("slices", [1, 2, 8])
@pytest.mark.parametrize("first", ["once", "again"])
def test_llvm_rounds_the_product_that_is_read_again(first, slices):
    random = np.random.default_rng(0)
    a, b, c, d = random.standard_normal((4, slices, 99, 99)).astype(np.float32)

    def sum_of_products(*arrays):
        a, b, c, d = (x[0] for x in arrays)
        once, again = a * b, c * d
        sums = once + again if first == "once" else again + once
        return jnp.where(a < 9, sums, again * jnp.sin(b[::-1]))

    compiled = jax.jit(sum_of_products).lower(a, b, c, d).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    entry = module_from_bytes(module.as_serialized_hlo_module_proto()).entry
    assert not any(may_depend_on_memory(i, "cpu") for i in entry.instructions)
    exact = a[0].astype(np.float64) * b[0] + (c[0] * d[0])  # FMA: rounds once, to float32
    assert np.array_equal(compiled(a, b, c, d), exact.astype(np.float32))


@pytest.mark.parametrize("kind, sensitive", [("c64", True), ("s32", False)])
def test_complex_numbers_are_and_integers_are_not(kind, sensitive):
    body = BODIES["two products"][0].replace("f32", kind)
    text = MODULE.format(type=kind, result=f"{kind}[8,8]", body=body)
    assert _both(text, "cpu") == (sensitive, sensitive)
