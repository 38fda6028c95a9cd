"""Scan residuals of which a slice is not contiguous, and what transposes them between the loops."""

import pytest

from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.check.executable import check_rewrite
from olla_xla.remat.loops.pairs import pairs
from olla_xla.remat.loops.recipe import recipe
from tests.support.rewrites import record, with_loops_changed

pytestmark = pytest.mark.quick

_LOOPS = """HloModule m, is_scheduled=true

write {{
  s = (s32[], f32[3,4], f32[3,5,4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  h = f32[3,4] get-tuple-element(s), index=1
  all = f32[3,5,4] get-tuple-element(s), index=2
  zero = s32[] constant(0)
  one = s32[] constant(1)
  up = s32[] add(n, one)
  g = f32[3,4] tanh(h)
  row = f32[3,1,4] reshape(g)
  put = f32[3,5,4] dynamic-update-slice(all, row, zero, n, zero)
  ROOT t = (s32[], f32[3,4], f32[3,5,4]) tuple(up, h, put)
}}

read {{
  s = (s32[], f32[3,4], f32[{whole}], f32[3,4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  h = f32[3,4] get-tuple-element(s), index=1
  all = f32[{whole}] get-tuple-element(s), index=2
  same = f32[3,4] get-tuple-element(s), index=3
  zero = s32[] constant(0)
  one = s32[] constant(1)
  last = s32[] constant(4)
  up = s32[] add(n, one)
  turned = s32[] subtract(last, n)
  row = f32[{part}] dynamic-slice(all, {at}), dynamic_slice_sizes={{{part}}}
  flat = f32[3,4] {flat}
  g = f32[3,4] multiply(h, flat)
  ROOT t = (s32[], f32[3,4], f32[{whole}], f32[3,4]) tuple(up, g, all, same)
}}

below {{
  s = (s32[], f32[3,4], f32[3,5,4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  five = s32[] constant(5)
  ROOT less = pred[] compare(n, five), direction=LT
}}

below_too {{
  s = (s32[], f32[3,4], f32[{whole}], f32[3,4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  five = s32[] constant(5)
  ROOT less = pred[] compare(n, five), direction=LT
}}

moves {{
  p = f32[3,5,4] parameter(0)
  flipped = f32[4,5,3] transpose(p), dimensions={{2,1,0}}
  ROOT again = f32[4,5,3] copy(flipped)
}}

ENTRY main {{
  x = f32[3,4] parameter(0)
  zero = s32[] constant(0)
  none = f32[] constant(0)
  empty = f32[3,5,4] broadcast(none), dimensions={{}}
  begin = (s32[], f32[3,4], f32[3,5,4]) tuple(zero, x, empty)
  first = (s32[], f32[3,4], f32[3,5,4]) while(begin), condition=below, body=write
  stored = f32[3,5,4] get-tuple-element(first), index=2
  out = f32[3,4] get-tuple-element(first), index=1
  {between}
  start = (s32[], f32[3,4], f32[{whole}], f32[3,4]) tuple(zero, out, moved, x)
  second = (s32[], f32[3,4], f32[{whole}], f32[3,4]) while(start), condition=below_too, body=read
  ROOT end = f32[3,4] get-tuple-element(second), index=1
}}
"""

_ALONG = {"whole": "4,5,3", "part": "4,1,3", "at": "zero, turned, zero"}

CASES = {
    "as it is": {
        "whole": "3,5,4", "part": "3,1,4", "at": "zero, turned, zero", "flat": "reshape(row)",
        "between": "moved = f32[3,5,4] bitcast(stored)",
    },
    "in another shape": {
        "whole": "3,5,2,2", "part": "3,1,2,2", "at": "zero, turned, zero, zero",
        "flat": "reshape(row)", "between": "moved = f32[3,5,2,2] bitcast(stored)",
    },
    "transposed": {
        **_ALONG, "flat": "transpose(other), dimensions={1,0}",
        "between": "moved = f32[4,5,3] transpose(stored), dimensions={2,1,0}",
    },
    "by a fusion": {
        **_ALONG, "flat": "transpose(other), dimensions={1,0}",
        "between": "moved = f32[4,5,3] fusion(stored), kind=kLoop, calls=moves",
    },
    "to the front": {
        "whole": "5,3,4", "part": "1,3,4", "at": "turned, zero, zero", "flat": "reshape(row)",
        "between": "moved = f32[5,3,4] transpose(stored), dimensions={1,0,2}",
    },
    "divided": {  # among a CPU's threads, in a way that is made for all slices
        **_ALONG, "flat": "transpose(other), dimensions={1,0}",
        "between": "moved = f32[4,5,3] fusion(stored), kind=kLoop, calls=moves, "
        'backend_config={"outer_dimension_partitions":["2"]}',
    },
    "mixed": {  # a slice of what is read is made of parts of several that were written
        "whole": "3,5,4", "part": "3,1,4", "at": "zero, turned, zero", "flat": "reshape(row)",
        "between": "front = f32[5,3,4] transpose(stored), dimensions={1,0,2}\n"
        "  moved = f32[3,5,4] bitcast(front)",
    },
}  # fmt: skip


def _module(case):
    text = _LOOPS.format(**CASES[case])
    if "other" in CASES[case]["flat"]:
        text = text.replace("  flat =", "  other = f32[4,3] reshape(row)\n  flat =")
    return from_hlo_text(text)


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("divided", "mixed")])
def test_a_slice_is_made_again_where_it_is_read(case):
    before = _module(case)
    view = module_from_bytes(before)
    (pair,) = pairs(view, "cuda")
    (residual,) = pair.scan_residuals
    after = with_loops_changed(before, [recipe(view, pair, record(pair, residual.written))])
    check_rewrite(before, after, "cuda", loops=True)
    left = {i.shape.bytes for i in module_from_bytes(after).entry.instructions}
    assert residual.bytes == 240 and 240 not in left, "the array of all slices is gone"


@pytest.mark.parametrize("case", ["divided", "mixed"])
def test_what_no_single_slice_can_be_moved_like_stays(case):
    assert pairs(module_from_bytes(_module(case)), "cuda") == []
