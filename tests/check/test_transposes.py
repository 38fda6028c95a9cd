"""Transposes and bitcasts of an array, numbered, against what NumPy makes of its elements."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo.shapes import Shape
from olla_xla.check.executable.element_expressions import ElementExpressions
from olla_xla.check.executable.element_order import as_row, permuted, places
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.slices import sliced_axis, sliced_digit

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


@st.composite
def chains(draw, start=(2, 3, 4)):
    """Steps: a permutation, or the dimensions and the layout of a bitcast."""
    dimensions, steps = start, []
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            permutation = tuple(draw(st.permutations(range(len(dimensions)))))
            dimensions = tuple(dimensions[k] for k in permutation)
            steps.append(("transpose", permutation))
        else:
            shapes = [(24,), (2, 12), (4, 6), (2, 3, 4), (6, 2, 2), (3, 8)]
            dimensions = draw(st.sampled_from(shapes))
            order = tuple(draw(st.permutations(range(len(dimensions)))))
            steps.append(("bitcast", (dimensions, order)))
    return steps


def followed(numbering, steps):
    """(number, array) at the end of a chain that begins at one array."""
    array, number, now = np.arange(24).reshape(2, 3, 4), ARRAY, shape(2, 3, 4)
    for kind, what in steps:
        if kind == "transpose":
            array = array.transpose(what)
            number, now = moved(numbering, number, now, what)
        else:
            new = shape(*what[0], order=what[1])
            outwards = new.minor_to_major[::-1]
            lying = array.transpose(now.minor_to_major[::-1])
            lying = lying.reshape([new.dimensions[k] for k in outwards])
            array = lying.transpose(np.argsort(outwards))
            number, now = numbering.cast(number, now, new), new
    return number, array


def elements(numbering, number):
    """The array's elements, in row-major order of its own dimensions, that a number says."""
    if number == ARRAY:
        return np.arange(24)
    move = numbering.moves[number]
    return elements(numbering, move.base)[places(move.steps)]


@given(chains())
def test_a_number_says_where_elements_are(steps):
    numbering = ElementExpressions("cpu")
    number, array = followed(numbering, steps)
    assert elements(numbering, number).tolist() == array.ravel().tolist()


@given(chains(), chains())
def test_one_number_is_one_array(some, others):
    """What has one number has the same elements in the same order, whatever led to it."""
    numbering = ElementExpressions("cpu")
    (a, one), (b, two) = followed(numbering, some), followed(numbering, others)
    assert (a == b) == (one.shape == two.shape and one.tolist() == two.tolist())


@pytest.mark.parametrize("permutation", list(itertools.permutations(range(3))))
def test_there_and_back_is_nothing(permutation):
    numbering = ElementExpressions("cpu")
    number, now = moved(numbering, ARRAY, shape(2, 3, 5), permutation)
    back = tuple(np.argsort(permutation))
    assert moved(numbering, number, now, back)[0] == ARRAY
    assert (number == ARRAY) == (permutation == (0, 1, 2))


@pytest.mark.parametrize("permutation", list(itertools.permutations(range(3)))[1:])
@pytest.mark.parametrize("axis", range(3))
def test_a_slice_of_a_transpose_is_a_transpose_of_a_slice(permutation, axis):
    numbering = ElementExpressions("cpu")
    before = shape(2, 3, 5)
    number, after = moved(numbering, ARRAY, before, permutation)
    found = numbering.taken(number, AT, after, sliced_digit(after, axis))
    row = numbering.taken(ARRAY, AT, before, sliced_digit(before, permutation[axis]))
    cut = shape(*(1 if k == permutation[axis] else n for k, n in enumerate(before.dimensions)))
    part = numbering.arranged(row, as_row(cut), permuted(cut), cut)
    part, now = moved(numbering, part, cut, permutation)
    assert found == numbering.arranged(part, now, permuted(now), as_row(now))
    every = [numbering.taken(number, AT, after, sliced_digit(after, k)) for k in range(3)]
    assert len(set(every)) == 3
    assert found != numbering.taken(number, hashed(b"elsewhere"), after, sliced_digit(after, axis))


@pytest.mark.parametrize("permutation", list(itertools.permutations(range(3))))
def test_a_layout_is_a_transpose(permutation):
    """What lies in another order, seen as it lies and transposed back, is the array."""
    numbering = ElementExpressions("cpu")
    array = shape(2, 3, 5, order=tuple(reversed(permutation)))
    lying = shape(*(array.dimensions[k] for k in permutation))
    number = numbering.cast(ARRAY, array, lying)
    back = tuple(np.argsort(permutation))
    assert moved(numbering, number, lying, back)[0] == ARRAY
    there, _ = moved(numbering, ARRAY, shape(2, 3, 5), permutation)
    assert numbering.cast(there, lying, shape(30)) == numbering.cast(number, lying, shape(30))


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
