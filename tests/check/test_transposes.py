"""Transposes and bitcasts of an array, numbered, against what NumPy makes of its elements."""

import pytest

from hlo.shapes import Shape
from olla_xla.check.executable.element_expressions import ElementExpressions
from olla_xla.check.executable.element_order import permuted
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.slices import sliced_axis

pytestmark = pytest.mark.quick

F32, S32, BF16 = 11, 4, 16
BITS = {F32: 32, S32: 32, BF16: 16}
ARRAY, AT = hashed(b"array"), hashed(b"at")


def shape(*dimensions, order=None, kind=F32):
    """An array; `order` is its layout, minor to major."""
    order = tuple(reversed(range(len(dimensions)))) if order is None else order
    return Shape(kind, dimensions, (), order, 0, BITS[kind], b"")


def moved(numbering, number, before, permutation):
    after = shape(*(before.dimensions[k] for k in permutation))
    return numbering.arranged(number, before, permuted(before, permutation), after), after


def test_a_slice_where_a_dimension_is_split():
    """What no layout of the array says is steps over its row, and is sliced by these."""
    numbering = ElementExpressions("cpu")
    array, split = shape(2, 4, 6), shape(2, 2, 2, 6)
    number = numbering.cast(ARRAY, array, split)
    number, after = moved(numbering, number, split, (0, 1, 3, 2))
    taken = numbering.taken(ARRAY, AT, array, (2, 24))
    cut = shape(2, 2, 6)
    part, _ = moved(numbering, numbering.cast(taken, shape(24), cut), cut, (0, 2, 1))
    found = numbering.taken(number, AT, after, (2, 24))
    assert found == numbering.cast(part, shape(2, 6, 2), shape(24))


def test_elements_of_another_type():
    """The memory of an array seen by another type, and by the first one again, is the array."""
    numbering = ElementExpressions("cpu")
    array, whole, halves = shape(2, 3), shape(2, 3, kind=S32), shape(2, 3, 2, kind=BF16)
    by_int, by_half = (numbering.cast(ARRAY, array, other) for other in (whole, halves))
    assert len({ARRAY, by_int, by_half}) == 3
    assert numbering.cast(by_int, whole, halves) == by_half
    assert numbering.cast(by_half, halves, array) == ARRAY
    across, turned = moved(numbering, ARRAY, array, (1, 0))
    seen = numbering.cast(across, turned, shape(3, 2, kind=S32))
    assert seen != numbering.cast(by_int, whole, shape(3, 2, kind=S32))
    assert numbering.cast(seen, shape(3, 2, kind=S32), turned) == across


@pytest.mark.parametrize(
    ("part", "whole", "axis"),
    [
        (shape(1, 4), shape(3, 4), 0),
        (shape(3, 1), shape(3, 4), 1),
        (shape(1, 4), shape(1, 4), 0),
        (shape(1, 1), shape(3, 4), None),
        (shape(2, 4), shape(3, 4), None),
        (shape(1, 4, kind=S32), shape(3, 4), None),
    ],
)
def test_what_one_slice_is(part, whole, axis):
    assert sliced_axis(part, whole) == axis
