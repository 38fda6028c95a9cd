"""HLO text of two loops, of which one writes what the other reads slice by slice."""

from __future__ import annotations

__all__ = ["two_loops"]

_PARTS = {
    "slot": "n",
    "update": "f32[5,4] dynamic-update-slice(all, row, {slot}, zero)",
    "kept": "put",
    "more": "",
    "condition": "n",
    "between": "f32[5,4] get-tuple-element(first), index=2",
    "begin": "moved",
    "turn": "s32[] subtract(last, n)",
    "read": "f32[1,4] dynamic-slice(all, turned, zero), dynamic_slice_sizes={1,4}",
    "flat": "reshape(row)",
    "root": "",
    "after": "ROOT end = f32[4] get-tuple-element(second), index=1",
    "extra": "",
}

_LOOPS = """HloModule m, is_scheduled=true

write {{
  s = (s32[], f32[4], f32[5,4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  h = f32[4] get-tuple-element(s), index=1
  all = f32[5,4] get-tuple-element(s), index=2
  zero = s32[] constant(0)
  one = s32[] constant(1)
  last = s32[] constant(4)
  up = s32[] add(n, one)
  down = s32[] subtract(last, n)
  g = f32[4] tanh(h)
  row = f32[1,4] reshape(g)
  put = {update}
  {more}
  ROOT t = (s32[], f32[4], f32[5,4]) tuple(up, g, {kept})
}}

read {{
  s = (s32[], f32[4], f32[5,4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  h = f32[4] get-tuple-element(s), index=1
  all = f32[5,4] get-tuple-element(s), index=2
  zero = s32[] constant(0)
  one = s32[] constant(1)
  last = s32[] constant(4)
  up = s32[] add(n, one)
  turned = {turn}
  row = {read}
  flat = f32[4] {flat}
  g = f32[4] multiply(h, flat)
  ROOT t = (s32[], f32[4], f32[5,4]) tuple(up, g, all)
}}

below {{
  s = (s32[], f32[4], f32[5,4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  five = s32[] constant(5)
  ROOT less = pred[] compare({condition}, five), direction=LT
}}

below_too {{
  s = (s32[], f32[4], f32[5,4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  five = s32[] constant(5)
  ROOT less = pred[] compare(n, five), direction=LT
}}

ENTRY main {{
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  none = f32[] constant(0)
  empty = f32[5,4] broadcast(none), dimensions={{}}
  begin = (s32[], f32[4], f32[5,4]) tuple(zero, x, empty)
  first = (s32[], f32[4], f32[5,4]) while(begin), condition=below, body=write
  {root} moved = {between}
  {extra}
  out = f32[4] get-tuple-element(first), index=1
  start = (s32[], f32[4], f32[5,4]) tuple(zero, out, {begin})
  second = (s32[], f32[4], f32[5,4]) while(start), condition=below_too, body=read
  {after}
}}
"""


def two_loops(**parts: str) -> str:
    """The text, with other lines in the places of `_PARTS` that are named."""
    given = {**_PARTS, **parts}
    given["update"] = given["update"].format(slot=given.pop("slot"))
    return _LOOPS.format(**given)
