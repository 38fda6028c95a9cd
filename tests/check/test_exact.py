"""Fusions whose code does not matter are seen through; of others kind and configuration count."""

import itertools

import pytest

from hlo.text import from_hlo_text
from olla_xla.check.executable import results_digest

pytestmark = pytest.mark.quick

TRITON = (
    'kind=kCustom, calls=fused, backend_config={"fusion_backend_config":{"kind":"__triton",'
    '"block_level_fusion_config":{"num_warps":"1","output_tiles":[{"sizes":["1"]}]}}}'
)
KINDS = ("kind=kLoop, calls=fused", "kind=kInput, calls=fused", TRITON)

MODULE = """HloModule m, is_scheduled=true

step {{
  x = {kind}[] parameter(0)
  y = {kind}[] parameter(1)
  ROOT s = {kind}[] {reducer}(x, y)
}}

fused {{
  p = {given} parameter(0)
{body}
}}

ENTRY e {{
  a = {given} parameter(0)
  ROOT f = {result} fusion(a), {fusion}
}}
"""

REDUCE = """  c = s32[] constant({start})
  ROOT r = s32[8] reduce({what}, c), dimensions={{1}}, to_apply=step"""

NARROW = """  z = {kind}[] constant(0)
  b = {kind}[8,16] broadcast(z), dimensions={{}}
  g = pred[8,16] compare(p, b), direction=GT
  n = s32[8,16] convert(g)
"""


def digests(body, given, result, reducer="add", kind="s32"):
    """Of a module with a fused computation, made by code of each kind."""
    text = {"body": body, "given": given, "result": result, "reducer": reducer, "kind": kind}
    return {
        results_digest(from_hlo_text(MODULE.format(**text, fusion=fusion)), target, loops=loops)
        for fusion, target, loops in itertools.product(KINDS, ["cuda"], [False])
    }


def sums(start=0, reducer="add", before="", what="p", given="s32[8,16]"):
    return digests(before + REDUCE.format(start=start, what=what), given, "s32[8]", reducer)


EXACT = {
    "transpose": lambda: digests(
        "  ROOT t = f32[3,5]{1,0} transpose(p), dimensions={1,0}", "f32[5,3]", "f32[3,5]"
    ),
    "sum": sums,
    "maximum": lambda: sums(7, "maximum"),
    "compared integers": lambda: sums(before=NARROW.format(kind="s32"), what="n"),
    "compared floats": lambda: sums(before=NARROW.format(kind="f32"), what="n", given="f32[8,16]"),
}

ROUNDED = {
    "product": lambda: digests("  ROOT t = f32[5] multiply(p, p)", "f32[5]", "f32[5]"),
    "sum of floats": lambda: digests(
        "  c = f32[] constant(0)\n  ROOT r = f32[8] reduce(p, c), dimensions={1}, to_apply=step",
        "f32[8,16]",
        "f32[8]",
        kind="f32",
    ),
    "a start that may be taken in twice": lambda: sums(1),
    "differences": lambda: sums(reducer="subtract"),
    "rounded before": lambda: sums(
        before="  e = f32[8,16] tanh(p)\n"
        + NARROW.format(kind="f32").replace("compare(p", "compare(e"),
        what="n",
        given="f32[8,16]",
    ),
    "to integers": lambda: sums(before="  n = s32[8,16] convert(p)\n", what="n", given="f32[8,16]"),
}


@pytest.mark.parametrize("name", EXACT)
def test_code_of_exact_fusions_does_not_count(name):
    assert len(EXACT[name]()) == 1


@pytest.mark.parametrize("name", ROUNDED)
def test_code_of_others_does(name):
    assert len(ROUNDED[name]()) == len(KINDS)


def test_what_they_compute_counts():
    assert sums() != sums(0, "xor") and sums(7, "maximum") != sums(8, "maximum")
    assert EXACT["compared floats"]() != sums(
        before=NARROW.format(kind="f32").replace("GT", "GE"), what="n", given="f32[8,16]"
    )
    exchanged = digests(
        "  b = f32[5,3] reverse(p), dimensions={0}\n"
        "  ROOT t = f32[3,5]{1,0} transpose(b), dimensions={1,0}",
        "f32[5,3]",
        "f32[3,5]",
    )
    assert exchanged != EXACT["transpose"]()


INSIDE = """HloModule m, is_scheduled=true

moved {{
  p = f32[64,32] parameter(0)
  ROOT b = f32[32,64]{{1,0}} transpose(p), dimensions={{1,0}}
}}

fused {{
  p = f32[64,32] parameter(0)
  q = f32[64,16] parameter(1)
  t = f32[32,64] fusion(p), kind=kCustom, calls=moved, backend_config={{"tile":"{tile}"}}
  ROOT d = f32[32,16] dot(t, q), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

ENTRY e {{
  a = f32[64,32] parameter(0)
  b = f32[64,16] parameter(1)
  ROOT f = f32[32,16] fusion(a, b), kind=kCustom, calls=fused
}}
"""


@pytest.mark.parametrize("loops", [False, True])
def test_how_a_dot_is_read_counts(loops):
    found = (from_hlo_text(INSIDE.format(tile=tile)) for tile in (16, 32))
    assert len({results_digest(module, "cuda", loops=loops) for module in found}) == 2


def test_a_tpu_computes_a_result_alike_under_other_dimensions():
    """As recomputation gives it: alone, without the sum that XLA made of it in the same fusion."""
    text = """HloModule m, is_scheduled=true

step {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

whole {
  p = f32[8,64] parameter(0)
  v = f32[8,64] sine(p)
  c = f32[] constant(0)
  r = f32[64] reduce(v, c), dimensions={0}, to_apply=step
  b = f32[1,8,64] bitcast(v)
  ROOT t = (f32[1,8,64], f32[64]) tuple(b, r)
}

alone {
  p = f32[8,64] parameter(0)
  v = f32[8,64] sine(p)
  ROOT b = f32[1,8,64] bitcast(v)
}

ENTRY e {
  a = f32[8,64] parameter(0)
  """
    made = (
        "f = (f32[1,8,64], f32[64]) fusion(a), kind=kLoop, calls=whole\n"
        "  ROOT g = f32[1,8,64] get-tuple-element(f), index=0\n}",
        "ROOT f = f32[1,8,64] fusion(a), kind=kLoop, calls=alone\n}",
    )

    def found(target):
        return {results_digest(from_hlo_text(text + how), target, loops=True) for how in made}

    assert (len(found("tpu")), len(found("cuda"))) == (1, 2)
