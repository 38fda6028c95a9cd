"""Converts between floating-point types: what keeps every value, and slices of what they give."""

import ml_dtypes
import numpy as np
import pytest

from hlo.shapes import Shape
from olla_xla.check.executable.converts import (
    exposed,
    is_wider,
    narrowed,
    rounded,
    slice_of_converted,
    widened,
)
from olla_xla.check.executable.element_expressions import ElementExpressions
from olla_xla.check.executable.element_order import as_row, permuted
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.slices import sliced_digit

pytestmark = pytest.mark.quick

F16, F32, F64, BF16, S32 = 10, 11, 12, 16, 4
BITS = {F16: 16, F32: 32, F64: 64, BF16: 16, S32: 32}
TYPES = {F16: np.float16, BF16: ml_dtypes.bfloat16, F32: np.float32, F64: np.float64}
ARRAY, AT = hashed(b"array"), hashed(b"at")


def shape(kind, *dimensions, order=None):
    order = tuple(reversed(range(len(dimensions)))) if order is None else order
    return Shape(kind, dimensions, (), order, 0, BITS[kind], b"")


@pytest.fixture
def numbering():
    return ElementExpressions("cpu")


@pytest.mark.parametrize("old", [F16, BF16])
@pytest.mark.parametrize("new", TYPES)
def test_wider_types_hold_every_value(old, new):
    """All 65,536 values of 16 bits go there and come back, or the type is not wider."""
    every = np.arange(1 << 16, dtype=np.uint16).view(TYPES[old])
    with np.errstate(over="ignore", invalid="ignore"):
        back = every.astype(TYPES[new]).astype(TYPES[old])
        one, two = every.astype(np.float64), back.astype(np.float64)
    keeps = np.array_equal(one, two, equal_nan=True)
    assert is_wider(shape(old, 2), shape(new, 2)) == (keeps and old != new)


def test_single_precision_is_wider_than_neither_half():
    assert is_wider(shape(F32, 2), shape(F64, 2)) and not is_wider(shape(F64, 2), shape(F32, 2))
    assert not is_wider(shape(F32, 2), shape(BF16, 2))


def test_what_was_widened_comes_back(numbering):
    wide = widened(numbering, ARRAY, shape(BF16, 3), shape(F32, 3))
    assert wide != ARRAY and narrowed(numbering, wide, shape(BF16, 3)) == ARRAY
    assert narrowed(numbering, wide, shape(F16, 3)) is None, "of the other half it is none"
    assert narrowed(numbering, ARRAY, shape(BF16, 3)) is None


def test_moves_stay_outside(numbering):
    """A convert of a transpose is the transpose of a convert; narrowing goes through both."""
    before, after = shape(BF16, 2, 3), shape(BF16, 3, 2)
    wide_before, wide_after = shape(F32, 2, 3), shape(F32, 3, 2)
    steps = permuted(before, (1, 0))
    reordered = numbering.arranged(ARRAY, before, steps, after)
    wide = widened(numbering, reordered, after, wide_after)
    inside = widened(numbering, ARRAY, before, wide_before)
    assert wide == numbering.arranged(inside, wide_before, steps, wide_after)
    assert narrowed(numbering, wide, after) == reordered


@pytest.mark.parametrize("kinds", [(F32, BF16), (F64, F32), (BF16, F16)])
def test_a_slice_of_what_was_rounded_is_a_rounded_slice(numbering, kinds):
    old, new = (shape(kind, 4, 3) for kind in kinds)
    number = rounded(numbering, ARRAY, old, new)
    assert number is not None
    for axis in range(2):
        digit = sliced_digit(old, axis)
        part = numbering.taken(ARRAY, AT, old, digit)
        size = old.num_elements // digit[0]
        expected = rounded(numbering, part, as_row(old, size), as_row(new, size))
        assert slice_of_converted(numbering, number, AT, digit) == expected
    assert slice_of_converted(numbering, ARRAY, AT, (4, 3)) is None


def test_a_slice_of_what_was_widened_is_a_widened_slice(numbering):
    old, new = shape(BF16, 4, 3), shape(F32, 4, 3)
    number = widened(numbering, ARRAY, old, new)
    part = numbering.taken(ARRAY, AT, old, (4, 3))
    expected = widened(numbering, part, shape(BF16, 3), shape(F32, 3))
    assert slice_of_converted(numbering, number, AT, (4, 3)) == expected


def test_which_code_rounds_counts(numbering):
    """Of two fusions one may keep more bits in between: slices of theirs are two numbers."""
    old, new = shape(F32, 4, 3), shape(BF16, 4, 3)
    number = rounded(numbering, ARRAY, old, new)
    by_one, by_other = (exposed(numbering, number, hashed(code)) for code in (b"one", b"other"))
    found = {slice_of_converted(numbering, n, AT, (4, 3)) for n in (number, by_one, by_other)}
    assert None not in found and len(found) == 3


def test_only_a_convert_of_floats_in_one_layout_is_rounding(numbering):
    assert rounded(numbering, ARRAY, shape(S32, 4), shape(F32, 4)) is None
    other = shape(BF16, 4, 3, order=(0, 1))
    assert rounded(numbering, ARRAY, shape(F32, 4, 3), other) is None
