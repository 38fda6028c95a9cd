"""Transfers of a loop's body start where the work up to their dones takes as long as they do."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla.remat.cost.path import path_seconds
from olla_xla.remat.cost.roofline import CostModel, Device
from olla_xla.remat.overlap import hide_transfers

COST = CostModel(
    Device("D", 64.0, math.inf, math.inf, math.inf, 0.0, sent_bytes_per_second=32), "cuda"
)
"""An array of eight floats is written and read in a second, and gathered in as much or more."""


def module(steps: str):
    text = f"""HloModule m, is_scheduled=true, num_partitions=2
gather {{
  c = f32[8] parameter(0)
  ROOT d = f32[16] all-gather(c), dimensions={{0}}, replica_groups={{{{0,1}}}}, channel_id=1,
    use_global_device_ids=true
}}
ENTRY e {{
  p = (f32[8], f32[8]) parameter(0)
  q = f32[8] get-tuple-element(p), index=1
  {steps} }}
"""
    return module_from_bytes(from_hlo_text(text))


LATE = """
  a = f32[8] negate(q)
  b = f32[8] negate(a)
  n = f32[8] negate(b)
  x = f32[8] get-tuple-element(p), index=0
  h = f32[8] convert(x)
  s = ((f32[8]), f32[16]) async-start(h), calls=gather
  t = f32[16] async-done(s)
  ROOT r = (f32[8], f32[16]) tuple(n, t)"""


def order(found):
    return [i.name for i in found.entry.schedule]


def test_a_gather_starts_before_the_work_that_hides_it():
    before = module(LATE)
    after = hide_transfers(before, {"e"}, COST)
    assert path_seconds(after, COST) < path_seconds(before, COST)
    names = order(after)
    assert names.index("h") + 1 == names.index("s") < names.index("b") < names.index("t")


def test_what_is_hidden_already_stays():
    early = """
  x = f32[8] get-tuple-element(p), index=0
  s = ((f32[8]), f32[16]) async-start(x), calls=gather
  a = f32[8] negate(q)
  b = f32[8] negate(a)
  t = f32[16] async-done(s)
  ROOT r = (f32[8], f32[16]) tuple(b, t)"""
    before = module(early)
    assert hide_transfers(before, {"e"}, COST) is before


@st.composite
def bodies(draw):
    """A body of gathers of arguments and of computed values, in any possible order."""
    lines, arrays, open_starts = [], ["q"], []
    lines.append("x = f32[8] get-tuple-element(p), index=0")
    arrays.append("x")
    names = itertools.count()
    for what in draw(st.lists(st.sampled_from("rrrsd"), min_size=3, max_size=12)):
        k = next(names)
        if what == "r":
            lines.append(f"n{k} = f32[8] negate({draw(st.sampled_from(arrays))})")
            arrays.append(f"n{k}")
        elif what == "s":
            given_array = draw(st.sampled_from(arrays))
            lines.append(f"go{k} = ((f32[8]), f32[16]) async-start({given_array}), calls=gather")
            open_starts.append(f"go{k}")
        elif open_starts:
            start = open_starts.pop(0)
            lines.append(f"t{k} = f32[16] async-done({start})")
            lines.append(f"w{k} = f32[8] slice(t{k}), slice={{[0:8]}}")
            arrays.append(f"w{k}")
    ends = []
    for start in open_starts:
        lines.append(f"end.{start} = f32[16] async-done({start})")
        ends.append(f"end.{start}")
    result = ", ".join([arrays[-1], *ends])
    shapes = ", ".join(["f32[8]", *["f32[16]"] * len(ends)])
    lines.append(f"ROOT r = ({shapes}) tuple({result})")
    return "\n  ".join(lines)


@settings(max_examples=60, deadline=None)
@given(bodies())
def test_any_body_stays_in_a_possible_order_and_takes_no_longer(steps):
    before = module(steps)
    after = hide_transfers(before, {"e"}, COST)
    assert sorted(order(after)) == sorted(order(before))
    assert path_seconds(after, COST) <= path_seconds(before, COST)
    seen = set()
    for i in after.entry.schedule:
        assert seen.issuperset(o.name for o in i.operands)
        seen.add(i.name)


def test_no_order_is_faster_on_a_small_body():
    """By brute force over all places of the start."""
    before = module(LATE)
    rest = ["p", "q", "x", "a", "b", "n", "t", "r"]
    assert sorted([*rest, "h", "s"]) == sorted(order(before))
    best = min(
        path_seconds(before, COST, {"e": [*rest[:k], "h", "s", *rest[k:]]})
        for k in range(rest.index("x") + 1, rest.index("t") + 1)
    )
    assert path_seconds(hide_transfers(before, {"e"}, COST), COST) == pytest.approx(best)
