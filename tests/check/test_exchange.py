"""What devices gather of each other, and slices of weights as either of two loops sees them."""

import pytest

from hlo.text import from_hlo_text
from olla_xla.check.executable import results_digest
from olla_xla.check.executable.element_expressions import ElementExpressions
from olla_xla.check.executable.program import read_program

pytestmark = pytest.mark.quick

MODULE = """HloModule m, is_scheduled=true, num_partitions=8

narrow {{
  p = {whole} parameter(0)
  k = s32[] parameter(1)
  zero = s32[] constant(0)
  s = {slice} dynamic-slice(p, {places}), dynamic_slice_sizes={sizes}
  ROOT c = {narrow} convert(s)
}}

ENTRY e {{
  w = f32[6,4,8] parameter(0)
  k = s32[] parameter(1)
  x = bf16[32] parameter(2)
  seen = {whole} {seen}
  f = {narrow} fusion(seen, k), kind=kLoop, calls=narrow
  b = bf16[4,8] bitcast(f)
  {gather}
}}
"""
ONE = (
    "ROOT g = bf16[32,8] all-gather(b), dimensions={0}, replica_groups={{0,1,2,3,4,5,6,7}}, "
    "channel_id=CHANNEL, use_global_device_ids=true"
)
PLAIN = {
    "whole": "f32[6,4,8]{2,1,0}",
    "seen": "copy(w)",
    "slice": "f32[1,4,8]{2,1,0}",
    "narrow": "bf16[1,4,8]{2,1,0}",
    "places": "k, zero, zero",
    "sizes": "{1,4,8}",
    "gather": ONE.replace("CHANNEL", "1"),
}
TURNED = {
    "whole": "f32[4,6,8]{2,0,1}",
    "seen": "bitcast(w)",
    "slice": "f32[4,1,8]{2,0,1}",
    "narrow": "bf16[4,1,8]{2,0,1}",
    "places": "zero, k, zero",
    "sizes": "{4,1,8}",
}
"""The same slices by another shape."""


def digest(**changes):
    return results_digest(from_hlo_text(MODULE.format(**PLAIN | changes)), "cuda", loops=True)


def test_a_slice_is_the_same_bytes_by_another_shape():
    assert digest() == digest(**TURNED)
    assert digest() == digest(gather=ONE.replace("CHANNEL", "7"))


@pytest.mark.parametrize(
    "changes",
    [
        {"gather": ONE.replace("CHANNEL", "1").replace("{{0,1,2,3,4,5,6,7}}", "{{0,1,2,3}}")},
        {
            "gather": ONE.replace("CHANNEL", "1").replace(
                "{{0,1,2,3,4,5,6,7}}", "{{1,0,2,3,4,5,6,7}}"
            )
        },
        TURNED
        | {"whole": "f32[4,6,8]{2,1,0}", "slice": "f32[4,1,8]{2,1,0}"}
        | {"narrow": "bf16[4,1,8]{2,1,0}"},
        TURNED
        | {"places": "k, zero, zero", "whole": "f32[6,4,8]{2,1,0}"}
        | {"slice": "f32[4,1,8]{2,1,0}", "narrow": "bf16[4,1,8]{2,1,0}"},
        {"places": "zero, zero, k"},
    ],
    ids=[
        "fewer devices",
        "another order",
        "not in one piece",
        "another dimension",
        "another place",
    ],
)
def test_other_bytes_are_not(changes):
    assert digest() != digest(**changes)


PAIR = (
    "g = (bf16[32,8], bf16[256]) all-gather(FIRST), dimensions={0}, "
    "replica_groups={{0,1,2,3,4,5,6,7}}, channel_id=1, use_global_device_ids=true\n"
    "  u = bf16[32,8] get-tuple-element(g), index=FIRST_AT\n"
    "  v = bf16[256] get-tuple-element(g), index=SECOND_AT\n"
    "  ROOT r = (bf16[32,8], bf16[256]) tuple(u, v)"
)


def test_what_is_gathered_of_one_array_does_not_depend_on_what_goes_with_it():
    first = PAIR.replace("FIRST_AT", "0").replace("SECOND_AT", "1").replace("FIRST", "b, x")
    other = PAIR.replace("FIRST_AT", "1").replace("SECOND_AT", "0").replace("FIRST", "x, b")
    other = other.replace("g = (bf16[32,8], bf16[256])", "g = (bf16[256], bf16[32,8])")
    assert _numbers(first) == _numbers(other)


def _numbers(gather):
    """Of the results, where the arguments have the numbers 0, 1 and 2."""
    program = read_program(from_hlo_text(MODULE.format(**PLAIN | {"gather": gather})))
    return ElementExpressions("cuda").run(program.entry, [{(): bytes([k])} for k in range(3)], [])
