"""What elements of a result may depend on, through loops, branches and starts."""

import pytest

from hlo.text import from_hlo_text
from olla_xla.check.executable.loops import reach
from olla_xla.check.executable.program import read_program

pytestmark = pytest.mark.quick

BODIES = """
cond { s = (s32[], f32[], f32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
body { s = (s32[], f32[], f32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[] get-tuple-element(s), index=1
  b = f32[] get-tuple-element(s), index=2
  c = f32[] get-tuple-element(s), index=3
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[], f32[], f32[]) tuple(j, b, c, c) }
left { p = f32[] parameter(0)
  ROOT r = f32[] negate(p) }
right { p = f32[] parameter(0)
  ROOT r = f32[] constant(0) }
noisy { p = f32[] parameter(0)
  ROOT r = f32[] custom-call(p), custom_call_target="f", custom_call_has_side_effect=true }
"""


def reached(entry):
    """(what each element of the result depends on, what each effect does), in parameters."""
    program = read_program(from_hlo_text(f"HloModule m, is_scheduled=true\n{BODIES}{entry}"))
    given = [{(): 1 << k} for k in range(len(program.entry.parameters))]
    effects = []
    found = reach(program.entry, given, effects)

    def numbers(bits):
        return {k for k in range(8) if bits >> k & 1}

    return {i: numbers(bits) for i, bits in found.items()}, [numbers(bits) for bits in effects]


def test_tuples_keep_elements_apart():
    found, _ = reached("""ENTRY e { a = f32[] parameter(0)
  b = f32[] parameter(1)
  s = f32[] add(a, b)
  t = (f32[], f32[]) tuple(s, b)
  u = f32[] get-tuple-element(t), index=1
  ROOT r = (f32[], (f32[], f32[])) tuple(u, t) }""")
    assert found == {(0,): {1}, (1, 0): {0, 1}, (1, 1): {1}}


def test_a_loop_hands_elements_on_turn_by_turn():
    """b goes to a, c to b: after two iterations a depends on c; what counts decides all."""
    found, _ = reached("""ENTRY e { i = s32[] parameter(0)
  a = f32[] parameter(1)
  b = f32[] parameter(2)
  c = f32[] parameter(3)
  s = (s32[], f32[], f32[], f32[]) tuple(i, a, b, c)
  ROOT w = (s32[], f32[], f32[], f32[]) while(s), condition=cond, body=body }""")
    assert found == {(0,): {0}, (1,): {0, 1, 2, 3}, (2,): {0, 2, 3}, (3,): {0, 3}}


def test_a_branch_depends_on_what_chooses_it():
    found, _ = reached("""ENTRY e { p = pred[] parameter(0)
  a = f32[] parameter(1)
  b = f32[] parameter(2)
  ROOT r = f32[] conditional(p, a, b), true_computation=left, false_computation=right }""")
    assert found == {(): {0, 1}}, "the other branch reads nothing of b"


def test_effects_within_branches_depend_on_the_choice_too():
    _, effects = reached("""ENTRY e { p = pred[] parameter(0)
  a = f32[] parameter(1)
  b = f32[] parameter(2)
  ROOT r = f32[] conditional(p, a, b), true_computation=noisy, false_computation=right }""")
    assert effects == [{0, 1}]


def test_an_exchange_is_no_effect():
    _, effects = reached("""sum { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y) }
ENTRY e { a = f32[] parameter(0)
  ROOT r = f32[] all-reduce(a), to_apply=sum }""")
    assert effects == []


def test_a_start_passes_its_operands_and_its_result():
    found, _ = reached("""ENTRY e { a = f32[] parameter(0)
  b = f32[] parameter(1)
  s = ((f32[]), f32[], u32[]) call-start(a), to_apply=left
  d = f32[] call-done(s)
  ROOT r = (f32[], f32[]) tuple(d, b) }""")
    assert found == {(0,): {0}, (1,): {1}}
