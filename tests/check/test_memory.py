"""A schedule run over memory: what is read must still be there, to the byte."""

import re

import pytest

from hlo.text import from_hlo_text
from olla_xla.check.executable.memory import Place, assigned_places, run, shared_buffers
from olla_xla.check.executable.program import read_program
from olla_xla.check.executable.values import follow
from olla_xla.errors import CheckError

pytestmark = pytest.mark.quick

THREE = """ENTRY e { p = f32[16] parameter(0)
  a = f32[16] sine(p)
  b = f32[16] reverse(a), dimensions={0}
  c = f32[16] add(a, b)
  ROOT d = f32[16] reverse(c), dimensions={0} }"""

BRANCH = """left { x = f32[16] parameter(0)
  ROOT l = f32[16] reverse(x), dimensions={0} }
right { y = f32[16] parameter(0)
  ROOT r = f32[16] sine(y) }
ENTRY e { c = pred[] parameter(0)
  p = f32[16] parameter(1)
  a = f32[16] sine(p)
  b = f32[16] cosine(p)
  q = f32[16] conditional(c, a, a), true_computation=left, false_computation=right
  ROOT s = f32[16] add(q, b) }"""


def objection(text, where, attributes=""):
    """What is said against (allocation, start) of each value by name, of 64 bytes; or ""."""
    head = f"HloModule m, is_scheduled=true{attributes}\n"
    program = read_program(from_hlo_text(head + text))
    values = follow(program)
    found = {}
    for value in values.defined:
        name = re.sub(r"\.\d+", "", value.name)
        size = value.op.shape.at(value.index).bytes
        allocation, start = where.get(name, (name, 0))
        found[value.op.name, value.index] = Place(allocation, start, start + size)
    try:
        run(program, values, assigned_places(values, found), "cpu")
    except CheckError as error:
        return re.sub(r"\.\d+", "", str(error))
    return ""


@pytest.mark.parametrize("start", [0, 4, 60, 64])
def test_one_shared_byte_is_an_overlap(start):
    found = objection(THREE, {"a": (1, 0), "b": (1, start)})
    if start == 64:
        assert found == ""
    else:
        assert found == "b writes b over a before reading it"


def test_arguments_that_are_not_donated_are_the_callers():
    found = objection(THREE, {"p": (1, 0), "d": (1, 0)})
    assert "the caller reads p, an argument that was not donated" in found
    aliased = ", input_output_alias={ {}: (0, {}, may-alias) }"
    assert objection(THREE, {"p": (1, 0), "d": (1, 0)}, aliased) == ""
    assert "must have one address, but have two" in objection(THREE, {}, aliased)


def test_a_branch_does_not_see_what_the_other_wrote():
    """The first branch writes over b, which is read after both: so b is gone."""
    same = {"q": (2, 0), "r": (2, 0), "l": (2, 0)}
    assert objection(BRANCH, same) == ""
    found = objection(BRANCH, {**same, "b": (2, 0)})
    assert found == "s reads b, but q has written over it"


def test_what_a_branch_writes_on_its_way_is_written():
    """It ends b, though the branch's result lies elsewhere, and the other branch leaves b alone."""
    text = BRANCH.replace("reverse(x)", "reverse(m)").replace(
        "left { x = f32[16] parameter(0)", "left { x = f32[16] parameter(0)\n  m = f32[16] sine(x)"
    )
    same = {"q": (2, 0), "r": (2, 0), "l": (2, 0), "m": (3, 0)}
    assert objection(text, same) == ""
    assert objection(text, {**same, "b": (3, 0)}) == "s reads b, but q has written over it"


def test_results_of_branches_lie_where_they_are_looked_for():
    found = objection(BRANCH, {"q": (2, 0), "r": (2, 0)})
    assert "results of q and of its branch, must have one address, but have two" in found


def test_what_xla_must_share_is_one_buffer():
    text = """cond { s = (s32[], f32[16]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
body { s = (s32[], f32[16]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[16] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  d = f32[16] sine(a)
  ROOT t = (s32[], f32[16]) tuple(j, d) }
ENTRY e { i = s32[] parameter(0)
  a = f32[16] parameter(1)
  b = f32[16] cosine(a)
  t = (s32[], f32[16]) tuple(i, b)
  ROOT w = (s32[], f32[16]) while(t), condition=cond, body=body }"""
    program = read_program(from_hlo_text("HloModule m, is_scheduled=true\n" + text))
    values = follow(program)
    places = shared_buffers(program, values, "cpu")
    sets = {}
    for value, place in places.items():
        sets.setdefault(place.allocation, set()).add(re.sub(r"\.\d+", "", value.name))
    assert {frozenset(names) for names in sets.values() if len(names) > 1} == {
        frozenset({"b", "s{1}", "d", "w{1}"}),
        frozenset({"i", "s{0}", "j", "w{0}"}),
    }


BLANK = """body { s = (f32[2,16], s32[]) parameter(0)
  k = f32[2,16] get-tuple-element(s), index=0
  i = s32[] get-tuple-element(s), index=1
  z = s32[] constant(0)
  one = s32[] constant(1)
  x = f32[] constant(2)
  v = f32[1,16] VALUE
  u = f32[2,16] dynamic-update-slice(k, v, i, z)
  n = s32[] add(i, one)
  ROOT t = (f32[2,16], s32[]) tuple(u, n) }
again { s = (f32[2,16], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=1
  two = s32[] constant(2)
  ROOT l = pred[] compare(i, two), direction=LT }
ENTRY e { p = s32[] parameter(0)
  a = f32[2,16] custom-call(), custom_call_target="AllocateBuffer"
  c = s32[] copy(p)
  s = (f32[2,16], s32[]) tuple(a, c)
  w = (f32[2,16], s32[]) while(s), condition=again, body=body
  k = f32[2,16] get-tuple-element(w), index=0
  ROOT r = f32[2,16] reverse(k), dimensions={0} }"""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("broadcast(x), dimensions={}", ""),
        (
            "dynamic-slice(k, i, z), dynamic_slice_sizes={1,16}",
            "v reads s{0}, but nothing was written to it",
        ),
    ],
)
def test_memory_that_is_given_as_it_is_is_read_only_once_it_is_written(value, said):
    stack, count = (1, 0), (2, 0)
    where = {"a": stack, "u": stack, "s{0}": stack, "w{0}": stack}
    where |= {"c": count, "n": count, "s{1}": count, "w{1}": count}
    assert objection(BLANK.replace("VALUE", value), where) == said
