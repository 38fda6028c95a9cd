"""Pairs of loops written by hand: what is a scan residual, and what is written without it."""

import pytest

from hlo.module import module_from_bytes
from hlo.parse import from_hlo_text
from hlo.read import with_program_order
from hlo.rewrite.loop_edit import ValueRef
from olla_xla.check.executable import check_rewrite
from olla_xla.errors import PlanMismatchError
from olla_xla.remat.loops.again import New, ReadArrays
from olla_xla.remat.loops.body import LoopBody
from olla_xla.remat.loops.indices import Affine, typed
from olla_xla.remat.loops.pairs import pairs
from olla_xla.remat.loops.recipe import recipe
from tests.check.test_executable_loops import STATE, condition, module_text, reader, writer
from tests.support.rewrites import record, with_loops_changed

BOTH = """kept = f32[1,4]{1,0} dynamic-slice(stack, k, zero), dynamic_slice_sizes={1,4}
  made = f32[1,4]{1,0} dynamic-slice(other, k, zero), dynamic_slice_sizes={1,4}
  p = f32[1,4]{1,0} subtract(kept, made)"""

TARGETS = pytest.mark.parametrize("target", ["cpu", "cuda"])


def scheduled(first=None, then=None):
    return with_program_order(from_hlo_text(module_text(first or writer(), then or reader(BOTH))))


def pair_of(data, target="cpu"):
    (pair,) = pairs(module_from_bytes(data), target)
    return pair


def without(data, *gone, target="cpu"):
    """The module without some scan residuals, which the referee accepts, and the edit."""
    view = module_from_bytes(data)
    pair = pair_of(data, target)
    edit = recipe(view, pair, record(pair, *gone))
    after = with_loops_changed(data, [edit])
    check_rewrite(data, after, target, loops=True)
    return module_from_bytes(after), edit


def body_of(module, name):
    return next(c for c in module.control_computations if c.name.split(".")[0] == name)


def opcodes(computation):
    return [i.opcode for i in computation.schedule]


# What is a scan residual.


@TARGETS
@pytest.mark.parametrize(("at", "read"), [("i", "k"), ("back", "j")])
def test_slices_of_each_iterations_own_are_of_a_residual(target, at, read):
    data = scheduled(writer(at=at), reader(BOTH.replace(", k,", f", {read},")))
    pair = pair_of(data, target)
    assert [(s.written, s.read, s.axis, s.bytes) for s in pair.scan_residuals] == [
        (2, 2, 0, 48),
        (3, 3, 0, 48),
    ]
    up, down = Affine((0,), 1, 0), Affine((0,), -1, 2)
    assert pair.written == (up if at == "i" else down)
    assert pair.place == (down if read == "k" else up)
    assert pair.iteration == down, "the last one's is read first"
    assert [r.owner.name.split(".")[0] for r in pair.scan_residuals[1].reads] == ["made"]
    assert pair.scan_residuals[1].value.i.opcode == "sine"


def test_other_numbers_of_iterations_are_no_pair():
    shorter = reader(BOTH).replace(condition("reads_on", STATE), condition("reads_on", STATE, 2))
    data = scheduled(None, shorter)
    assert not [s for p in pairs(module_from_bytes(data), "cpu") for s in p.scan_residuals]


# What is written without it.


@TARGETS
@pytest.mark.parametrize("at", ["i", "back"])
def test_what_goes_is_computed_again_in_the_other_loop(target, at):
    data = scheduled(writer(at=at))
    after, edit = without(data, 3, target=target)
    assert edit.dropped == ((3, 3),) and not edit.added
    writes, reads = body_of(after, "writes"), body_of(after, "reads")
    assert opcodes(writes).count("dynamic-update-slice") == 1
    assert "sine" not in opcodes(writes) and "sine" in opcodes(reads)
    assert len(writes.parameters[0].shape.elements) == len(reads.parameters[0].shape.elements) == 3
    assert [m.original.split(".")[0] for m in edit.made if m.original] == ["y"]


@pytest.mark.parametrize("target", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("at", ["i", "back"])
def test_what_reads_the_iteration_reads_that_of_the_other_loop(target, at):
    counted = writer("add(x, wide)", at=at).replace(
        "  other =",
        "  real = f32[] convert(i)\n  wide = f32[4]{0} broadcast(real), dimensions={}\n  other =",
    )
    after, edit = without(scheduled(counted), 3, target=target)
    assert edit.iteration == ((-1, 2) if at == "i" else (1, 0))
    assert "convert" in opcodes(body_of(after, "reads"))


def test_both_go_where_the_carry_is_kept_in_their_place():
    """What the first residual has is the carry as an iteration begins: it has to be kept."""
    after, edit = without(scheduled(), 2, 3)
    assert edit.added == (1,), "a residual of the carry"
    writes = body_of(after, "writes")
    assert (
        opcodes(writes).count("dynamic-update-slice")
        + sum(
            "dynamic-update-slice" in [k.opcode for k in i.called[0].instructions]
            for i in writes.schedule
            if i.opcode == "fusion"
        )
        == 1
    )


def test_what_cannot_be_computed_again_is_told():
    once = writer('custom-call(x), custom_call_target="f", custom_call_has_side_effect=true')
    data = scheduled(once)
    with pytest.raises(PlanMismatchError):
        recipe(module_from_bytes(data), pair_of(data), record(pair_of(data), 3))


# Numbers of what a body computes.

NUMBERED = """HloModule m
f {
  p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  ROOT s = f32[4] add(p, q)
}
runs {
  s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[4] get-tuple-element(s), index=1
  b = f32[4] get-tuple-element(s), index=2
  one = s32[] constant(1)
  two = s32[] constant(2)
  n = s32[] add(i, one)
  m = s32[] add(one, i)
  far = s32[] add(n, one)
  near = s32[] add(i, two)
  sum = f32[4] fusion(a, b), kind=kLoop, calls=f
  again = f32[4] fusion(a, b), kind=kLoop, calls=f
  turned = f32[4] fusion(b, a), kind=kLoop, calls=f
  seen = f32[2,2] bitcast(sum)
  back = f32[4] bitcast(seen)
  sine = f32[4] sine(a)
  sine_too = f32[4] sine(a)
  other = f32[4] cosine(a)
  act = f32[4] custom-call(a), custom_call_target="f", custom_call_has_side_effect=true
  act_too = f32[4] custom-call(a), custom_call_target="f", custom_call_has_side_effect=true
  ROOT t = (s32[], f32[4], f32[4]) tuple(n, sum, again)
}
goes_on {
  s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT t = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = (s32[], f32[4], f32[4]) parameter(0)
  ROOT w = (s32[], f32[4], f32[4]) while(x), condition=goes_on, body=runs
}"""


@TARGETS
def test_equal_numbers_say_equal_bits(target):
    module = module_from_bytes(with_program_order(from_hlo_text(NUMBERED)))
    computation = body_of(module, "runs")
    body = LoopBody(computation, target)
    named = {i.name.split(".")[0]: i for i in computation.instructions}

    def number(name):
        return body.number(body.at[named[name], ()])

    for one, other in (
        ("n", "m"), ("far", "near"), ("sum", "again"), ("sum", "back"), ("sine", "sine_too"),
    ):  # fmt: skip
        assert number(one) == number(other), (one, other)
    for one, other in (
        ("n", "far"), ("n", "i"), ("a", "b"), ("sine", "other"), ("act", "act_too"),
        ("sum", "turned"), ("sum", "a"), ("one", "two"),
    ):  # fmt: skip
        assert number(one) != number(other), (one, other)
    assert body.affine(body.at[named["far"], ()]) == Affine((0,), 1, 2)
    assert body.affine(body.at[named["n"], ()], whole=True) is None, "it may wrap around"
    body.count({(0,): typed(range(3), 4)})
    assert body.affine(body.at[named["n"], ()], whole=True) == Affine((0,), 1, 1)
    assert body.moved(body.at[named["back"], ()]) and not body.moved(body.at[named["sine"], ()])
    assert body.root[(1,)] is body.at[named["sum"], ()]


# Arrays and names of what is made again.


def test_what_was_in_two_arrays_is_given_two():
    """Though both hold the same now; a third of the first array is that one."""
    arrays = ReadArrays(lambda number: ValueRef(element=number))
    first = arrays.given("one array", 5)
    assert first == ValueRef(element=5) == arrays.given("one array", 5)
    assert arrays.given("another", 5) == ValueRef(element=5, copy=1)
    assert arrays.given("a third", 5) == ValueRef(element=5, copy=2)
    assert arrays.given("another", 5) == ValueRef(element=5, copy=1)
    assert arrays.given("another", 6) == ValueRef(element=6)


def test_a_slice_that_cannot_be_taken_inside_is_made_before():
    """Where its array is another's already; slices of one array at two places are of one array."""
    arrays = ReadArrays(lambda number: ValueRef(made=f"slice {number}"))
    arrays.whole = lambda number: ValueRef(element=3, whole=b"whole", axis=number)
    assert arrays.given("one array", 0).element == 3
    assert arrays.given("one array", 1).axis == 1
    assert arrays.given("another", 2) == ValueRef(made="slice 2")
    arrays.keep(ValueRef(made="slice 4"), "its own")
    assert arrays.given("another", 4) == ValueRef(made="slice 4", copy=1)


def test_names_of_what_is_added_are_new():
    new = New(module_from_bytes(scheduled()))
    name = next(i.name for i in module_from_bytes(scheduled()).entry.instructions)
    assert new.name("fresh") == "fresh" and new.name("fresh") == "fresh.2"
    assert new.name(name) != name
