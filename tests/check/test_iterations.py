"""Loops that the referee follows iteration by iteration: random ones, against arrays of NumPy."""

import random

import numpy as np
import pytest

from hlo import xla_pb2
from hlo.dumps.read import with_program_order
from hlo.shapes import Shape
from hlo.text import from_hlo_text
from olla_xla.check.executable import iterations
from olla_xla.check.executable.element_expressions import ElementExpressions
from olla_xla.check.executable.element_order import permuted
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.records import Update, WrittenSlices
from olla_xla.check.executable.slices import sliced_digit
from tests.check.test_executable_loops import (
    AGAIN,
    READ,
    module,
    reader,
    results_digest,
    told,
    writer,
)

pytestmark = pytest.mark.quick

SLICES = 3
"""Of the stacks in these loops, each written by as many iterations."""

INDICES = {
    "forward": ("{i}", lambda i: i),
    "backward": ("subtract(last, {i})", lambda i: 2 - i),
    "shifted": ("add({i}, one)", lambda i: i + 1),
    "shifted back": ("subtract({i}, one)", lambda i: i - 1),
    "strided": ("multiply({i}, last)", lambda i: 2 * i),
    "halved": ("divide({i}, last)", lambda i: i // 2),
    "in turn": ("remainder({i}, last)", lambda i: i % 2),
}
"""How slices are chosen: text of one operation, and what it is."""


def places(name):
    """The slices of the iterations, moved into range as XLA does."""
    return [min(max(INDICES[name][1](i), 0), SLICES - 1) for i in range(SLICES)]


def lines(name, i):
    text = INDICES[name][0].format(i=i)
    return f"  chosen = s32[] {text if '(' in text else f'copy({text})'}\n"


def loops(written, read, second):
    """A module that writes at some places and reads at others, a second array or only the first."""
    first = writer(at="chosen", second=second).replace(
        "  n = s32[] add", lines(written, "i") + "  n = s32[] add"
    )
    value = (READ if second else AGAIN).replace("k, zero", "chosen, zero")
    then = reader(value, second=second).replace(
        "  n = s32[] add", lines(read, "j") + "  n = s32[] add"
    )
    return module(first, then, second=second)


def owners(written, read):
    """The iteration that wrote each slice that is read; None where none did."""
    found = dict(zip(places(written), range(SLICES), strict=True))
    return [found.get(place) for place in places(read)]


@pytest.mark.parametrize("written", INDICES)
def test_a_slice_is_what_was_written_last_however_it_is_chosen(written):
    """The digests are equal where the slices are, also of slices that are computed again."""
    stored, again = {}, {}
    for read in INDICES:
        whose = tuple(owners(written, read))
        stored.setdefault(whose, set()).add(results_digest(loops(written, read, True)))
        again.setdefault(whose, set()).add(results_digest(loops(written, read, False)))
    assert all(len(found) == 1 for found in (*stored.values(), *again.values()))
    assert len(set.union(*stored.values())) == len(stored)
    for whose in stored:  # what was never written is zero, not the sine of that
        assert (stored[whose] == again[whose]) == (None not in whose)
    assert len(set.union(*again.values())) == len(again)


def test_what_backend_config_says_of_a_loop_is_shown():
    """XLA takes the trip count that it says, whatever the condition is."""
    text = module(writer(), reader(READ))
    digests = {}
    for said in (
        "",
        '{"known_trip_count":{"n":"3"}}',
        '{"known_trip_count":{"n":"4"}}',
        '{"known_trip_count":{"n":"3"},"known_init_step":{"init":"0","step":"1"},'
        '"known_induction_variable":{"tuple_index":"0"},"dynamic_variables":[]}',
        '{"known_trip_count":{"n":"3"},"known_init_step":{"init":"0","step":"2"},'
        '"known_induction_variable":{"tuple_index":"0"}}',
        '{"known_trip_count":{"n":"3"},"known_init_step":{"init":"0","step":"1"},'
        '"known_induction_variable":{"tuple_index":"1"}}',
    ):
        proto = xla_pb2.HloModuleProto.FromString(text)
        for computation in proto.computations:
            for i in computation.instructions:
                if i.opcode == "while":
                    i.backend_config = said.encode()
        digests[said] = results_digest(proto.SerializeToString())
    right = digests[""]
    assert [digest == right for digest in digests.values()] == [
        True, False, False, True, False, False,
    ]  # fmt: skip


def test_a_loop_that_is_too_long_is_not_followed(monkeypatch):
    """It has a number of its own then: what is computed again in it is something else."""
    before, after = loops("forward", "backward", True), loops("forward", "backward", False)
    assert results_digest(before) == results_digest(after)
    monkeypatch.setattr(iterations, "MOST_STEPS", 10)
    monkeypatch.setattr("olla_xla.check.executable.verdict._DIGESTS", {})
    assert results_digest(before) != results_digest(after)
    assert results_digest(before) == results_digest(before)


@pytest.mark.parametrize("first", [writer(), told(writer())])
def test_steps_for_all_iterations_give_what_the_body_gives(first, monkeypatch):
    """Of names that nothing is known of: each number is made of all that it depends on."""
    made, seen = iterations._LoopProgram.__init__, []

    def checked(program, numbering, body, symbols):
        made(program, numbering, body, symbols)
        names = {i: hashed(b"other" + name) for i, name in symbols.items()}
        terms, numbering.terms = numbering.terms, None
        effects, again = [], []
        root = numbering.run(body, [names], effects)
        found = program.run(numbering, [names[i] for i in sorted(names)], again)
        numbering.terms = terms
        assert found == [root[i] for i in sorted(root)] and effects == again
        seen.append(body.name)

    monkeypatch.setattr(iterations._LoopProgram, "__init__", checked)
    monkeypatch.setattr("olla_xla.check.executable.verdict._DIGESTS", {})
    assert results_digest(module(first, reader(READ)))
    assert len(seen) == 4


def test_an_array_all_of_which_was_written_is_its_slices():
    """In whatever order, over whatever; where one slice is missing, what was there counts."""
    numbering, shape, digit = ElementExpressions("cpu"), array_of((3, 4)), (3, 4)
    rows = [hashed(f"row {k}".encode()) for k in range(4)]

    def written(base, writes):
        for place, row in writes:
            at = numbering.integers.number(place)
            base = numbering.updated(Update.of_slice((base, rows[row], at), shape, digit))
        return base

    one, other = hashed(b"one"), hashed(b"other")
    whole = [(0, 0), (1, 1), (2, 2)]
    expected = written(one, whole)
    assert written(other, whole[::-1]) == expected
    assert written(other, [(1, 3), *whole[::2]]) == written(one, [(0, 0), (2, 2), (1, 3)])
    assert written(one, whole[:2]) != written(other, whole[:2])
    assert (
        written(one, [*whole[:2], (2, 3)]) != expected != written(other, [(0, 1), (1, 0), (2, 2)])
    )
    again = written(expected, [(2, 0), (0, 1), (1, 2)])
    assert again == written(other, [(0, 1), (1, 2), (2, 0)])
    assert written(expected, [(1, 3)]) == written(written(other, whole), [(1, 3)])
    for place, row in ((0, 1), (1, 2), (2, 0)):
        assert numbering.taken(again, numbering.integers.number(place), shape, digit) == rows[row]


def test_an_array_of_written_slices_is_the_same_in_whatever_order_they_lie():
    numbering, rows = ElementExpressions("cuda"), [hashed(b"row %d" % k) for k in range(3)]
    row, found = array_of((8,)), set()
    for extents, axis, order in (((2, 3, 4), 1, (0, 1, 2)), ((3, 4, 2), 0, (2, 0, 1))):
        shape, whole = array_of(extents), hashed(b"begin")
        for k, number in enumerate(rows):
            if axis == 0:  # each is transposed there
                number = numbering.arranged(number, row, ((4, 1), (2, 4)), row)
            update = whole, number, numbering.integers.number(k)
            whole = numbering.updated(Update.of_slice(update, shape, sliced_digit(shape, axis)))
        found.add(numbering.arranged(whole, shape, permuted(shape, order), array_of((2, 12))))
    assert len(found) == 1


def test_branches_of_one_history_are_kept_apart():
    """Arrays updated in any order, each from any before, against dictionaries."""
    rng = random.Random(0)
    written, digit = WrittenSlices(), (4, 1)
    arrays = {b"0": {}}
    for k in range(1, 300):
        base, place = rng.choice(sorted(arrays)), rng.randrange(4)
        number, row = str(k).encode(), f"row {k}".encode()
        written.note(number, base, digit, place, row)
        arrays[number] = {**arrays[base], place: row}
    for number, slices in arrays.items():
        for place in range(4):
            row, other = written.at(number, digit, place)
            assert row == slices.get(place)
            assert row is not None or other == b"0"
        assert written.at(number, (2, 2), 0) == (None, number)


def array_of(extents):
    return Shape(11, tuple(extents), (), tuple(reversed(range(len(extents)))), 0, 32, b"")


@pytest.mark.parametrize("seed", range(20))
def test_arrays_that_are_moved_and_updated(seed):
    """What is read of an array at constant places is what NumPy finds there.

    A row is known by its number: each is written once, and named after the elements that it has.
    """
    rng = random.Random(seed)
    numbering = ElementExpressions("cpu")
    at, number = array_of((2, 3, 4)), hashed(b"array")
    values = np.arange(24).reshape(2, 3, 4)
    rows, named = {number: values.ravel().tolist()}, 24

    def read(axis, k):
        index = numbering.integers.number(k)
        row = numbering.taken(number, index, at, sliced_digit(at, axis))
        return row, np.take(values, k, axis).ravel().tolist()

    for _ in range(12):
        axis = rng.randrange(len(at.dimensions))
        k = rng.randrange(at.dimensions[axis])
        if rng.random() < 0.4:
            order = tuple(rng.sample(range(3), 3))
            new = array_of([at.dimensions[j] for j in order])
            number = numbering.arranged(number, at, permuted(at, order), new)
            values, at = values.transpose(order), new
        else:
            digit = sliced_digit(at, axis)
            part = np.delete(values, np.s_[1:], axis)
            new = np.arange(named, named + part.size).reshape(part.shape)
            named += part.size
            row = hashed(b"row" + repr(new.ravel().tolist()).encode())
            rows[row] = new.ravel().tolist()
            numbers = number, row, numbering.integers.number(k)
            number = numbering.updated(Update.of_slice(numbers, at, digit))
            values = values.copy()
            values[tuple(k if j == axis else slice(None) for j in range(3))] = new.squeeze(axis)
            found, expected = read(axis, k)
            assert found == row and rows[found] == expected
        for axis in range(3):
            for k in range(at.dimensions[axis]):
                found, expected = read(axis, k)
                assert rows.setdefault(found, expected) == expected, "one number, two slices"


def test_a_row_that_was_written_before_others_is_found_through_a_transpose():
    numbering = ElementExpressions("cpu")
    at, number = array_of((3, 4)), hashed(b"array")
    turned = array_of((4, 3))
    rows = [hashed(f"row {k}".encode()) for k in range(3)]
    for k, row in enumerate(rows):
        across = numbering.arranged(number, at, permuted(at, (1, 0)), turned)
        numbers = across, row, numbering.integers.number(k)
        across = numbering.updated(Update.of_slice(numbers, turned, sliced_digit(turned, 1)))
        number = numbering.arranged(across, turned, permuted(turned, (1, 0)), at)
    for k, row in enumerate(rows):
        index = numbering.integers.number(k)
        assert numbering.taken(number, index, at, sliced_digit(at, 0)) == row
    assert number in numbering.updates


NESTED = """HloModule m
inner {
  s = (s32[], f32[4], f32[3,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  z = f32[3,4] get-tuple-element(s), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  n = s32[] add(i, one)
  y = f32[4] sine(x)
  r = f32[1,4] bitcast(y)
  u = f32[3,4] dynamic-update-slice(z, r, i, zero)
  ROOT t = (s32[], f32[4], f32[3,4]) tuple(n, y, u)
}
inner_on {
  s = (s32[], f32[4], f32[3,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}
outer {
  s = (s32[], f32[4], f32[3,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  z = f32[3,4] get-tuple-element(s), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  b = (s32[], f32[4], f32[3,4]) tuple(zero, x, z)
  w = (s32[], f32[4], f32[3,4]) while(b), condition=inner_on, body=inner
  y = f32[4] get-tuple-element(w), index=1
  u = f32[3,4] get-tuple-element(w), index=2
  n = s32[] add(i, one)
  ROOT t = (s32[], f32[4], f32[3,4]) tuple(n, y, u)
}
outer_on {
  s = (s32[], f32[4], f32[3,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(2)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[4] parameter(0)
  z = f32[3,4] parameter(1)
  zero = s32[] constant(0)
  k = s32[] constant(@)
  b = (s32[], f32[4], f32[3,4]) tuple(zero, x, z)
  w = (s32[], f32[4], f32[3,4]) while(b), condition=outer_on, body=outer
  u = f32[3,4] get-tuple-element(w), index=2
  r = f32[1,4] dynamic-slice(u, k, zero), dynamic_slice_sizes={1,4}
  ROOT y = f32[4] bitcast(r)
}"""


@pytest.mark.parametrize("k", range(3))
def test_a_loop_in_a_loop(k):
    """The slice that is read is the sine of a sine ... of the argument, four to six times."""
    steps = "\n".join(f"  y{j + 1} = f32[4] sine(y{j})" for j in range(k + 4))
    plain = f"HloModule m\nENTRY e {{\n  y0 = f32[4] parameter(0)\n{steps}\n"
    plain = plain.replace(f"  y{k + 4} =", f"  ROOT y{k + 4} =")
    plain = plain.replace("parameter(0)\n", "parameter(0)\n  z = f32[3,4] parameter(1)\n") + "}"
    digests = [
        results_digest(with_program_order(from_hlo_text(text)))
        for text in (NESTED.replace("@", str(k)), plain)
    ]
    assert digests[0] == digests[1]


def test_no_number_is_made_of_itself_where_an_array_is_turned_and_turned_back():
    """Of an array all of whose slices were written: an iteration is made again from its terms."""
    numbering, shape = ElementExpressions("cpu"), array_of((2, 3))
    numbering.terms = {}
    array, digit = hashed(b"array"), sliced_digit(shape, 0)
    for k in range(2):
        row = numbering.term(hashed(b"row"), hashed(bytes([k])))
        at = numbering.integers.number(k)
        array = numbering.updated(Update.of_slice((array, row, at), shape, digit))
    turned = numbering.arranged(array, shape, permuted(shape, (1, 0)), array_of((3, 2)))
    back = numbering.arranged(turned, array_of((3, 2)), permuted(array_of((3, 2)), (1, 0)), shape)
    assert back == array and turned != array
    for first in (array, turned):
        seen, waiting = set(), list(numbering.terms[first].operands)
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                waiting += numbering.terms[number].operands if number in numbering.terms else ()
        assert first not in seen


def test_a_stack_of_slices_is_the_array_in_which_each_was_written():
    """And its static slices are these, as those at constant indices are; in another order, not."""

    def text(stacked):
        return f"""
HloModule m, is_scheduled=true

ENTRY e {{
  a = f32[2,8]{{1,0}} parameter(0)
  x = f32[1,3]{{1,0}} parameter(1)
  at = s32[] parameter(2)
  zero = s32[] constant(0)
  one = s32[] constant(1)
  first = f32[1,8]{{1,0}} slice(a), slice={{[0:1], [0:8]}}
  second = f32[1,8]{{1,0}} dynamic-slice(a, one, zero), dynamic_slice_sizes={{1,8}}
  new = f32[1,8]{{1,0}} dynamic-update-slice(first, x, zero, at)
  last = f32[1,8]{{1,0}} dynamic-update-slice(second, x, zero, at)
  b = f32[2,8]{{1,0}} dynamic-update-slice(a, x, zero, at)
  {stacked}
}}
"""

    def digest(stacked):
        return results_digest(from_hlo_text(text(f"ROOT r = f32[2,8]{{1,0}} {stacked}")))

    expected = digest("dynamic-update-slice(b, x, one, at)")
    assert digest("concatenate(new, last), dimensions={0}") == expected
    assert digest("concatenate(last, new), dimensions={0}") != expected
    assert digest("concatenate(new, second), dimensions={0}") != expected


def test_what_hands_on_an_integer_is_no_term_of_itself(monkeypatch):
    """As where micro-batches count tokens of all devices: to look for what it is made of has no
    end.
    """
    text = """HloModule m, is_scheduled=true, num_partitions=2
add {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] add(a, b)
}
summed {
  p = s32[] parameter(0)
  ROOT r = s32[] all-reduce(p), replica_groups={{0,1}}, to_apply=add
}
step {
  s = (s32[], s32[]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(k, one)
  go = ((s32[]), s32[], u32[]) async-start(n), calls=summed
  done = s32[] async-done(go)
  ROOT t = (s32[], s32[]) tuple(next, done)
}
goes {
  s = (s32[], s32[]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  most = s32[] constant(3)
  ROOT l = pred[] compare(k, most), direction=LT
}
ENTRY e {
  n = s32[] parameter(0)
  o = s32[] constant(0)
  begin = (s32[], s32[]) tuple(o, n)
  ROOT w = (s32[], s32[]) while(begin), condition=goes, body=step
}"""
    dependent, looked = iterations._dependent, []

    def checked(terms, given, roots):
        assert not any(number in iterations._operands(term) for number, term in terms.items())
        looked.append(len(terms))
        return dependent(terms, given, roots)

    monkeypatch.setattr(iterations, "_dependent", checked)
    assert results_digest(from_hlo_text(text))
    assert max(looked) > 1
