"""Which value stands where: tuples, loops and branches pass values on, or make new ones."""

import pytest

from hlo.text import from_hlo_text
from olla_xla.check.executable.program import read_program
from olla_xla.check.executable.values import follow, resolve
from olla_xla.errors import CheckError

pytestmark = pytest.mark.quick

BODIES = """
cond { s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
body { s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[4] get-tuple-element(s), index=1
  b = f32[4] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  d = f32[4] add(a, b)
  ROOT t = (s32[], f32[4], f32[4]) tuple(j, d, b) }
left { p = f32[4] parameter(0)
  ROOT r = f32[4] negate(p) }
right { p = f32[4] parameter(0)
  ROOT r = f32[4] bitcast(p) }
"""


def followed(entry, head="HloModule m, is_scheduled=true", bodies=BODIES):
    """(values of the program, name -> value at each leaf of that operation of the entry)."""
    values = follow(read_program(from_hlo_text(f"{head}\n{bodies}{entry}")))
    at = {op.name.split(".")[0]: found for op, found in values.frame.at.items()}
    return values, at


def test_tuples_and_bitcasts_make_nothing():
    values, at = followed("""ENTRY e { a = f32[4] parameter(0)
  b = f32[4] sine(a)
  t = (f32[4], f32[4]) tuple(b, a)
  c = f32[4] get-tuple-element(t), index=0
  ROOT d = f32[2,2] bitcast(c) }""")
    assert at["d"][()] is at["c"][()] is at["b"][()] is at["t"][(0,)]
    assert at["t"][(1,)] is at["a"][()]
    assert [value.name.split(".")[0] for value in values.defined] == ["a", "b"]


LOOP = """ENTRY e { i = s32[] parameter(0)
  a = f32[4] parameter(1)
  b = f32[4] parameter(2)
  t = (s32[], f32[4], f32[4]) tuple(i, a, b)
  ROOT w = (s32[], f32[4], f32[4]) while(t), condition=cond, body=body }"""


def test_an_element_that_a_loop_hands_back_is_the_value_that_went_in():
    values, at = followed(LOOP)
    assert at["w"][(2,)] is at["b"][()] and at["w"][(1,)] is not at["a"][()]
    (loop,) = values.frame.states
    assert [index for index, *_ in values.frame.states[loop]] == [(0,), (1,)]
    body, condition = values.frame.inner[loop]
    parameter = body.body.parameters[0]
    assert resolve(body.at[parameter][(2,)]) is at["b"][()]
    for _, start, state, end, after in values.frame.states[loop]:
        assert len({id(v) for v in map(resolve, (start, state, end, after))}) == 4
        assert state.also == ((condition.body.parameters[0], state.index),)


def test_an_element_that_is_always_another_that_began_alike_is_the_value_that_went_in():
    bodies = BODIES.replace("tuple(j, d, b)", "tuple(j, b, b)")
    values, at = followed(LOOP.replace("(i, a, b)", "(i, b, b)"), bodies=bodies)
    assert at["w"][(1,)] is at["w"][(2,)] is at["b"][()]
    (states,) = values.frame.states.values()
    assert [index for index, *_ in states] == [(0,)]
    _, at = followed(LOOP, bodies=bodies)  # began otherwise
    assert at["w"][(1,)] is not at["a"][()] and at["w"][(2,)] is at["b"][()]


def test_branches_that_differ_make_a_value():
    entry = """ENTRY e {{ p = pred[] parameter(0)
  a = f32[4] parameter(1)
  ROOT r = f32[4] conditional(p, a, a), true_computation={}, false_computation={} }}"""
    values, at = followed(entry.format("left", "right"))
    (((result, parts),),) = values.frame.choices.values()
    assert result is at["r"][()] and parts[1] is at["a"][()] and parts[0].op.opcode == "negate"
    values, at = followed(entry.format("right", "right"))
    assert at["r"][()] is at["a"][()] and not values.frame.choices


def test_a_start_repeats_its_operand():
    _, at = followed("""ENTRY e { a = f32[4] parameter(0)
  s = (f32[4], f32[4], u32[]) copy-start(a)
  ROOT d = f32[4] copy-done(s) }""")
    assert at["s"][(1,)] is at["a"][()] and at["d"][()] is at["s"][(0,)] is not at["a"][()]


def test_a_computation_without_a_schedule_is_refused():
    with pytest.raises(CheckError, match="has no schedule"):
        followed("ENTRY e { ROOT a = f32[4] parameter(0) }", head="HloModule m")
