"""What of a fusion's results is computed by its own code, and what is only moved."""

import pytest

from hlo.shapes import Shape
from hlo.text import from_hlo_text
from olla_xla.check.executable.converts import exposed
from olla_xla.check.executable.element_expressions import ElementExpressions
from olla_xla.check.executable.element_order import permuted
from olla_xla.check.executable.fusions import from_outside, is_elementwise, note_own, put
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.program import read_program
from olla_xla.check.executable.records import Update

pytestmark = pytest.mark.quick

A, B, RESULT, CODE = (hashed(name) for name in (b"a", b"b", b"result", b"code"))


def shape(*dimensions):
    return Shape(11, dimensions, (), tuple(reversed(range(len(dimensions)))), 0, 32, b"")


def body(text):
    """The entry computation of these lines."""
    lines = "HloModule m, is_scheduled=true\nsum { x = f32[] parameter(0)\n  y = f32[] "
    lines += f"parameter(1)\n  ROOT s = f32[] add(x, y) }}\nENTRY e {{ {text} }}"
    return read_program(from_hlo_text(lines)).entry


def noted(line, own=()):
    """Whether the last of these operations is computed by the fusion, if `own` already are."""
    op = body(line).ops[-1]
    found = set(own)
    read = [{(): number} for number, _ in zip((A, B), op.operands, strict=False)]
    note_own(ElementExpressions("cpu"), op, read, {(): RESULT}, found)
    return RESULT in found


P = "p = f32[4] parameter(0)\n q = f32[4] parameter(1)\n"
Q = "p = s32[4] parameter(0)\n q = s32[4] parameter(1)\n"


def test_what_rounds_is_the_fusions_own():
    assert noted(f"{P} ROOT r = f32[4] add(p, q)")
    assert noted(f"{P} ROOT r = f32[4] tanh(p)")
    assert noted(f"{P} ROOT r = f32[4] abs(p)"), "by which code is known of integers alone"


def test_integers_are_the_same_by_any_code():
    assert not noted(f"{Q} ROOT r = s32[4] add(p, q)")
    assert noted(f"{Q} ROOT r = s32[4] add(p, q)", own=[B]), "one of them is computed here"


@pytest.mark.parametrize(
    "line",
    ["f32[4] reverse(p), dimensions={0}", "f32[2] slice(p), slice={[1:3]}",
     "f32[8] concatenate(p, q), dimensions={0}", "f32[3,4] broadcast(p), dimensions={1}"],
)  # fmt: skip
def test_what_only_moves_is_own_where_its_operand_is(line):
    assert not noted(f"{P} ROOT r = {line}")
    assert noted(f"{P} ROOT r = {line}", own=[A])


def test_copies_are_never_counted():
    assert not noted(f"{P} ROOT r = f32[4] copy(p)", own=[A])


@pytest.mark.parametrize(
    ("line", "elementwise"),
    [
        ("f32[4] multiply(p, q)", True),
        ("f32[2,2] reshape(p)", True),
        ("f32[4] select(c, p, q)", True),
        ("f32[] reduce(p, z), dimensions={0}, to_apply=sum", False),
        ("f32[] dot(p, q), lhs_contracting_dims={0}, rhs_contracting_dims={0}", False),
    ],
)
def test_elementwise(line, elementwise):
    text = f"{P} c = pred[4] parameter(2)\n z = f32[] parameter(3)\n ROOT r = {line}"
    assert is_elementwise(body(text)) == elementwise


@pytest.fixture
def numbering():
    return ElementExpressions("cpu")


def test_others_see_what_is_computed_with_its_code(numbering):
    assert from_outside(numbering, A, CODE, set()) == A
    seen = from_outside(numbering, A, CODE, {A})
    assert seen == exposed(numbering, A, CODE) != A
    assert seen != from_outside(numbering, A, hashed(b"other code"), {A})


def test_the_code_counts_for_elements_wherever_they_are_put(numbering):
    own = {A}
    cast = numbering.cast(A, shape(2, 3), shape(6))
    steps = permuted(shape(2, 3), (1, 0))
    reordered = numbering.arranged(A, shape(2, 3), steps, shape(3, 2))
    own |= numbering.moves.keys()
    seen = exposed(numbering, A, CODE)
    assert from_outside(numbering, cast, CODE, own) == numbering.cast(seen, shape(2, 3), shape(6))
    expected = numbering.arranged(seen, shape(2, 3), steps, shape(3, 2))
    assert from_outside(numbering, reordered, CODE, own) == expected


def test_a_value_put_into_an_array_leaves_the_rest_as_it_is(numbering):
    at = hashed(b"at")
    update = Update(hashed(b"made"), (B, A, at), shape(8), shape(2))
    number = numbering.updated(update)
    seen = from_outside(numbering, number, CODE, {A, number})
    assert numbering.updates[seen].numbers == (B, exposed(numbering, A, CODE), at)
    found = put(numbering, number, CODE, {A, number})
    array, value, index = numbering.updates[found].numbers
    assert (array, index) == (B, at) and value not in (A, exposed(numbering, A, CODE))


def test_where_the_array_is_computed_too_it_is_one_result(numbering):
    update = Update(hashed(b"made"), (B, A, hashed(b"at")), shape(8), shape(2))
    number = numbering.updated(update)
    assert put(numbering, number, CODE, {A, B, number}) not in numbering.updates
    assert put(numbering, number, CODE, set()) == number


@pytest.mark.parametrize(("target", "alike"), [("cpu", False), ("cuda", True), ("tpu", True)])
def test_a_gpu_and_a_tpu_compute_what_they_put_in_whatever_order_it_lies(target, alike):
    numbering, row, order = ElementExpressions(target), shape(8), ((4, 1), (2, 4))
    moved = numbering.arranged(A, row, order, row)

    def slice_put(value):
        update = B, value, numbering.integers.number(0)
        number = numbering.updated(Update.of_slice(update, shape(3, 8), (3, 8)))
        found = put(numbering, number, CODE, {A, moved, number})
        return numbering.updates[found].numbers[1]

    assert (slice_put(moved) == numbering.arranged(slice_put(A), row, order, row)) == alike
