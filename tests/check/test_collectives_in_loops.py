"""Collectives that loops run again: the same values by groups, mode, sum and operand alone."""

import pytest

from hlo.text import from_hlo_text
from olla_xla.check.executable import check_control, results_digest
from olla_xla.errors import CheckError

MODULE = """HloModule m, is_scheduled=true, num_partitions=4

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}

plus {{
  c = f32[] parameter(0)
  d = f32[] parameter(1)
  ROOT t = f32[] add(c, d)
}}

max {{
  e = f32[] parameter(0)
  f = f32[] parameter(1)
  ROOT u = f32[] maximum(e, f)
}}

forward {{
  state = (s32[], f32[4], f32[6,4]) parameter(0)
  k = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  zero = s32[] constant(0)
  next = s32[] add(k, one)
  x = f32[4] get-tuple-element(state), index=1
  kept = f32[6,4] get-tuple-element(state), index=2
  row = f32[1,4] bitcast({kept})
  stack = f32[6,4] dynamic-update-slice(kept, row, k, zero)
  y = {type} {first}
  z = f32[4] {after}
  ROOT r = (s32[], f32[4], f32[6,4]) tuple(next, z, stack)
}}

goes {{
  p = (s32[], f32[4], f32[6,4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(6)
  ROOT l = pred[] compare(i, n), direction=LT
}}

backward {{
  state2 = (s32[], f32[4], f32[6,4]) parameter(0)
  k2 = s32[] get-tuple-element(state2), index=0
  one2 = s32[] constant(1)
  zero2 = s32[] constant(0)
  next2 = s32[] add(k2, one2)
  g = f32[4] get-tuple-element(state2), index=1
  given = f32[6,4] get-tuple-element(state2), index=2
  cut = f32[1,4] dynamic-slice(given, k2, zero2), dynamic_slice_sizes={{1,4}}
  x2 = f32[4] bitcast(cut)
  {again}
  g2 = f32[4] multiply(g, {read})
  ROOT r2 = (s32[], f32[4], f32[6,4]) tuple(next2, g2, given)
}}

ENTRY e {{
  start = f32[4] parameter(0)
  o = s32[] constant(0)
  zeros = f32[] constant(0)
  none = f32[6,4] broadcast(zeros), dimensions={{}}
  begun = (s32[], f32[4], f32[6,4]) tuple(o, start, none)
  one_way = (s32[], f32[4], f32[6,4]) while(begun), condition=goes, body=forward
  last = f32[4] get-tuple-element(one_way), index=1
  all = f32[6,4] get-tuple-element(one_way), index=2
  again = (s32[], f32[4], f32[6,4]) tuple(o, last, all)
  back = (s32[], f32[4], f32[6,4]) while(again), condition=goes, body=backward
  ROOT out = f32[4] get-tuple-element(back), index=1
}}
"""
GROUPS = "replica_groups={{0,1},{2,3}}"
REDUCED = "all-reduce({}), channel_id={}, {}, use_global_device_ids=true, to_apply={}"


def reduced(operand, channel=1, groups=GROUPS, to_apply="add"):
    return REDUCED.format(operand, channel, groups, to_apply)


def digest(first, again=None):
    """Where an iteration's `y` is kept, or `x` and `y` is made `again` of that.

    Only the second module sums in both loops; what the first one multiplies by is in its stack.
    """
    text = MODULE.format(
        kept="x" if again else "y",
        first=first,
        type="f32[4]",
        after="sine(y)",
        again=f"y2 = f32[4] {again}" if again else "",
        read="y2" if again else "x2",
    )
    return results_digest(from_hlo_text(_in_order(text)), "cuda", loops=True)


def _in_order(text):
    """With the stack after what it holds."""
    lines = text.splitlines()
    held = [k for k, line in enumerate(lines) if line.startswith(("  row =", "  stack ="))]
    moved = [lines[k] for k in held]
    left = [line for k, line in enumerate(lines) if k not in held]
    at = next(k for k, line in enumerate(left) if line.startswith("  z ="))
    return "\n".join([*left[:at], *moved, *left[at:]])


ELSEWHERE = """HloModule m, is_scheduled=true, num_partitions=4

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

yes {
  v = f32[4] parameter(0)
  IN_BRANCH
  ROOT w = f32[4] sine(v)
}

no {
  u = f32[4] parameter(0)
  ROOT q = f32[4] cosine(u)
}

ENTRY e {
  p = pred[] parameter(0)
  x = f32[4] parameter(1)
  y = f32[4] all-reduce(x), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=add
  IN_ENTRY
  ROOT r = f32[4] conditional(p, y, y), true_computation=yes, false_computation=no
}
"""
ANOTHER = "n = f32[4] all-reduce({}), channel_id={}, replica_groups={{{{0,1,2,3}}}}, to_apply=add"


def elsewhere(branch="", entry=""):
    return from_hlo_text(ELSEWHERE.replace("IN_BRANCH", branch).replace("IN_ENTRY", entry))


def test_one_more_counts_where_not_all_devices_come_to_it():
    digests = [
        results_digest(module, "cuda", loops=True)
        for module in (
            elsewhere(),
            elsewhere(entry=ANOTHER.format("y", 2)),
            elsewhere(branch=ANOTHER.format("v", 2)),
        )
    ]
    assert digests[0] == digests[1] != digests[2]


def test_who_came_to_one_comes_to_the_next_of_the_same_groups():
    one = ANOTHER.format("v", 2)
    two = one + "\n  " + ANOTHER.format("n", 3).replace("n =", "n2 =", 1)
    others = one + "\n  " + ANOTHER.format("n", 3).replace("n =", "n2 =", 1).replace("1,2,3", "1")
    digests = [
        results_digest(elsewhere(branch=branch), "cuda", loops=True)
        for branch in (one, two, others)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_each_is_on_a_channel_of_its_own():
    check_control(elsewhere(), elsewhere(entry=ANOTHER.format("y", 2)))
    with pytest.raises(CheckError, match="n shares a channel with y"):
        check_control(elsewhere(), elsewhere(entry=ANOTHER.format("y", 1)))


KEPT = digest(reduced("x"))


@pytest.mark.parametrize(
    "again",
    [
        reduced("x2", 2),
        reduced("x2", 9, to_apply="plus"),
        reduced("x2", 2, "replica_groups=[2,2]<=[4]"),
        reduced("x2", 2, "replica_groups={{2,3},{0,1}}"),
    ],
    ids=["channel", "name of the sum", "groups by extents", "groups in another order"],
)
def test_a_sum_made_again_is_the_one_that_was_kept(again):
    assert digest(reduced("x"), again) == KEPT


@pytest.mark.parametrize(
    "again",
    [
        reduced("x2", 2, "replica_groups={{0,2},{1,3}}"),
        reduced("x2", 2, "replica_groups=[2,2]<=[2,2]T(1,0)"),
        reduced("x2", 2).replace(", use_global_device_ids=true", ""),
        reduced("x2").replace("channel_id=1, ", "").replace(", use_global_device_ids=true", ""),
        reduced("x2", 2, to_apply="max"),
        reduced("g", 2),
    ],
    ids=["groups", "groups by extents", "mode", "no channel", "sum", "operand"],
)
def test_another_sum_is_not(again):
    assert digest(reduced("x"), again) != KEPT
