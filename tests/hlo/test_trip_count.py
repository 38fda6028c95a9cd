"""How often loops run: what XLA wrote on them, else what their condition says."""

import pytest

from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from hlo.trip_count import trip_count

pytestmark = pytest.mark.quick

LOOP = """
HloModule loop, is_scheduled=true

body {
  s = (s32[], f32[8]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  old = s32[] copy(k)
  one = s32[] constant(STEP)
  next = s32[] add(old, one)
  x = f32[8] get-tuple-element(s), index=1
  y = f32[8] negate(x)
  ROOT t = (s32[], f32[8]) tuple(next, y)
}

condition {
  s = (s32[], f32[8]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  end = s32[] constant(12)
  ROOT lt = pred[] compare(k, end), direction=LT
}

ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(BEGIN)
  start = (s32[], f32[8]) tuple(zero, x)
  w = (s32[], f32[8]) while(start), condition=condition, body=body NOTE
  ROOT y = f32[8] get-tuple-element(w), index=1
}
"""


def loop(step=1, begin=0, note=""):
    text = LOOP.replace("STEP", str(step)).replace("BEGIN", str(begin)).replace("NOTE", note)
    module = module_from_bytes(from_hlo_text(text))
    return next(i for i in module.entry.instructions if i.opcode == "while")


@pytest.mark.parametrize("step, begin, expected", [(1, 0, 12), (2, 0, None), (1, 3, None)])
def test_the_condition_says_it(step, begin, expected):
    assert trip_count(loop(step, begin)) == expected


def test_what_xla_wrote_counts():
    note = """, backend_config={"known_trip_count":{"n":"5"}}"""
    assert trip_count(loop(note=note)) == 5
