"""Values, alias sets and in-place rules, on small HLO text and against XLA's own assignment."""

import pytest

from hlo.inplace import can_share, in_place_pairs
from hlo.module import module_from_bytes
from hlo.sharing import sharing
from hlo.text import from_hlo_text, module_text
from hlo.values import analyse
from tests.support.compiles import STEPS, compile_step, h100_device
from tests.support.plugins import CUDA

WHILE = """HloModule loop, is_scheduled=true

body {
  p = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4] get-tuple-element(p), index=1
  w = f32[4] get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[4] add(x, w)
  ROOT t = (s32[], f32[4], f32[4]) tuple(next, y, w)
}

condition {
  q = (s32[], f32[4], f32[4]) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  ten = s32[] constant(10)
  ROOT less = pred[] compare(j, ten), direction=LT
}

ENTRY main {
  zero = s32[] parameter(0)
  a = f32[4] parameter(1)
  b = f32[4] parameter(2)
  ca = f32[4] copy(a)
  start = (s32[], f32[4], f32[4]) tuple(zero, ca, b)
  loop = (s32[], f32[4], f32[4]) while(start), condition=condition, body=body
  ROOT out = f32[4] get-tuple-element(loop), index=1
}
"""

IN_PLACE = """HloModule updates, is_scheduled=true

fused {
  p0 = f32[64] parameter(0)
  p1 = f32[8] parameter(1)
  p2 = s32[] parameter(2)
  ROOT u = f32[64] dynamic-update-slice(p0, p1, p2)
}

loop_fused {
  l0 = f32[64] parameter(0)
  l1 = f32[64] parameter(1)
  n = f32[64] negate(l0)
  ROOT s = f32[64] add(n, l1)
}

reversed {
  r0 = f32[64] parameter(0)
  ROOT r = f32[64] reverse(r0), dimensions={0}
}

ENTRY main {
  a = f32[64] parameter(0)
  b = f32[8] parameter(1)
  k = s32[] parameter(2)
  c = f32[64] copy(a)
  d = f32[64] fusion(c, b, k), kind=kLoop, calls=fused
  e = f32[64] fusion(d, a), kind=kLoop, calls=loop_fused
  f = f32[64] fusion(e), kind=kLoop, calls=reversed
  g = f32[64] bitcast(f)
  h = (f32[64], f32[64]) custom-call(g, e), custom_call_target="x",
      output_to_operand_aliasing={{0}: (1, {})}
  ROOT i = f32[64] get-tuple-element(h), index=0
}
"""


def instruction(module, name):
    return next(i for c in module.computations for i in c.instructions if i.name == name)


def test_loop_state_is_one_alias_set_and_invariants_pass_through():
    module = module_from_bytes(from_hlo_text(WHILE))
    flow = analyse(module)
    at = {(i.name, index): v for (i, index), v in flow.at.items()}
    state = at["ca", ()]
    for position in (("p", (1,)), ("y", ()), ("q", (1,)), ("loop", (1,)), ("out", ())):
        assert at[position].buffer == state.buffer, position
    assert at["loop", (2,)] is at["b", ()]  # the loop only reads it
    assert at["w", ()] is at["b", ()]
    assert at["loop", (1,)].live_out
    assert not at["a", ()].live_out


def test_an_element_that_is_always_another_that_began_alike_passes_through():
    text = WHILE.replace("tuple(next, y, w)", "tuple(next, w, w)")
    for start, names in (("(zero, b, b)", {"b"}), ("(zero, ca, b)", {"loop", "p"})):
        module = module_from_bytes(from_hlo_text(text.replace("(zero, ca, b)", start)))
        at = {(i.name, index): v for (i, index), v in analyse(module).at.items()}
        found = {at[name, (1,)].instruction.name for name in ("loop", "p")}
        assert found == names and at["loop", (2,)] is at["b", ()]


ALL_REDUCE = """HloModule sum, is_scheduled=true

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

ENTRY main {
  a = f32[64] parameter(0)
  b = f32[64] negate(a)
  ROOT c = f32[64] all-reduce(b), to_apply=add
}
"""


@pytest.mark.parametrize(("target", "is_one"), [("cpu", False), ("cuda", True)])
def test_an_all_reduce_takes_its_operand_over_on_a_gpu(target, is_one):
    module = module_from_bytes(from_hlo_text(ALL_REDUCE))
    pairs = in_place_pairs(instruction(module, "c"), target)
    assert pairs == ([(0, (), ())] if is_one else [])


def test_in_place_operations_take_their_operand_over():
    module = module_from_bytes(from_hlo_text(IN_PLACE))
    flow = analyse(module)
    at = {(i.name, index): v for (i, index), v in flow.at.items()}
    assert in_place_pairs(instruction(module, "d"), "cpu") == [(0, (), ())]
    assert at["d", ()].buffer == at["c", ()].buffer
    assert at["h", (0,)].buffer == at["e", ()].buffer
    assert at["g", ()] is at["f", ()]
    assert at["e", ()].buffer != at["d", ()].buffer


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_elementwise_fusions_may_reuse_a_dying_operand(target):
    module = module_from_bytes(from_hlo_text(IN_PLACE))
    d, e, f, a = (instruction(module, n) for n in "defa")
    assert can_share(d, (), e, (), target, in_place_pairs(e, target))
    assert can_share(a, (), e, (), target, in_place_pairs(e, target))
    assert not can_share(
        e, (), f, (), target, in_place_pairs(f, target)
    )  # reverse reads other elements first
    flow = analyse(module, target)
    found = {
        (v.name, flow.values[o].name)
        for v, pairs in zip(flow.values, sharing(flow, target), strict=True)
        for o, _ in pairs
    }
    assert ("e", "d") in found
    assert ("c", "a") not in found  # a copy keeps its source


@pytest.mark.parametrize("name", sorted(STEPS))
@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_values_are_those_of_xla(name, target):
    """Same values and sizes as in XLA's buffer assignment; without loops, in the same order."""
    if target == "cuda":
        h100_device()
    module, assignment, _ = compile_step(name, target)
    flow = analyse(module, target)
    ours = {v.name: v for v in flow.values}
    theirs = {
        s.name: s
        for a in assignment.allocations
        for s in a.assigned
        if not a.is_thread_local and not a.is_constant
    }
    assert len(theirs) > 5 and theirs.keys() <= ours.keys()
    assert all(ours[n].shape.bytes == s.size for n, s in theirs.items() if s.size < 2**20)
    ordered = sorted(theirs, key=lambda n: theirs[n].id)
    ids = [ours[n].id for n in ordered]
    if len(module.control_computations) == 1:
        assert ids == sorted(ids)


@pytest.mark.parametrize("said", ["{}: (0, {})", "{0}: (0, {}), {1}: (1, {})"])
def test_what_xla_prints_of_an_all_reduce_start_is_read(said):
    """XLA prints what a start's result is over, and reads that for some opcodes only."""
    start = "s = f32[64] all-reduce-start(b), to_apply=add"
    text = ALL_REDUCE.replace("ROOT c = f32[64] all-reduce(b), to_apply=add", start)
    text = text.replace(start, f"{start}\n  ROOT c = f32[64] all-reduce-done(s)")
    other = text.replace(start, f"{start}, output_to_operand_aliasing={{{said}}}")
    assert other != text
    assert module_text(from_hlo_text(other)) == module_text(from_hlo_text(text))
