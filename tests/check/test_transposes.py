"""Transposes and bitcasts of an array, numbered, against what NumPy makes of its elements."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo.shapes import Shape
from olla_xla.check.executable.element_expressions import ElementExpressions
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.slice_shapes import one_of
from olla_xla.check.executable.slices import slice_of
from olla_xla.check.executable.transposes import same_digit, slice_of_transposed, transposed

pytestmark = pytest.mark.quick

F32 = 11
ARRAY, AT = hashed(b"array"), hashed(b"at")


def shape(*dimensions, order=None):
    """An array of f32; `order` is its layout, minor to major."""
    order = tuple(reversed(range(len(dimensions)))) if order is None else order
    return Shape(F32, dimensions, (), order, 0, 32, b"")


def moved(numbering, number, before, permutation):
    after = shape(*(before.dimensions[k] for k in permutation))
    return transposed(numbering, number, before, permutation, after), after


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


def as_it_lies(array, layout):
    """The elements of an array in the order in which they lie in memory."""
    return array.transpose(layout.minor_to_major[::-1]).ravel()


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
            lying = as_it_lies(array, now).reshape([new.dimensions[k] for k in outwards])
            array = lying.transpose(np.argsort(outwards))
            number, now = numbering.cast(number, now, new), new
    return number, array


def elements(numbering, number):
    """The array's elements, in row-major order of its own dimensions, that a number says."""
    if number == ARRAY:
        return np.arange(24)
    if number in numbering.bitcasts:
        first, old, new = numbering.bitcasts[number]
        memory = as_it_lies(elements(numbering, first).reshape(old.dimensions), old)
        outwards = new.minor_to_major[::-1]
        lying = memory.reshape([new.dimensions[k] for k in outwards])
        return lying.transpose(np.argsort(outwards)).ravel()
    row, _, steps = numbering.transposes[number]
    places = np.zeros((), np.int64)
    for count, distance in steps:
        places = places[..., None] + distance * np.arange(count)
    return elements(numbering, row)[places.ravel()]


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
    if a == b:
        assert one.ravel().tolist() == two.ravel().tolist()
    elif one.shape == two.shape and all(kind == "transpose" for kind, _ in (*some, *others)):
        assert one.tolist() != two.tolist()


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
    found = slice_of(numbering, number, AT, after, axis)
    part = numbering.taken(ARRAY, AT, before, permutation[axis])
    cut = one_of(before, permutation[axis])
    assert found == transposed(numbering, part, cut, permutation, one_of(after, axis))
    assert found != slice_of(numbering, number, hashed(b"elsewhere"), after, axis)
    others = {slice_of(numbering, number, AT, after, k) for k in range(3) if k != axis}
    assert found not in others


@pytest.mark.parametrize("permutation", list(itertools.permutations(range(3))))
def test_a_layout_is_a_transpose(permutation):
    """What lies in another order, seen as it lies and transposed back, is the array."""
    numbering = ElementExpressions("cpu")
    array = shape(2, 3, 5, order=tuple(reversed(permutation)))
    lying = shape(*(array.dimensions[k] for k in permutation))
    number = numbering.cast(ARRAY, array, lying)
    back = tuple(np.argsort(permutation))
    assert transposed(numbering, number, lying, back, shape(2, 3, 5)) == ARRAY
    there, _ = moved(numbering, ARRAY, shape(2, 3, 5), permutation)
    assert numbering.cast(there, lying, shape(30)) == numbering.cast(number, lying, shape(30))


def test_a_slice_where_a_dimension_is_split():
    """What no layout of the array says is steps over its row, and is sliced by these."""
    numbering = ElementExpressions("cpu")
    array, split, permutation = shape(2, 4, 6), shape(2, 2, 2, 6), (0, 1, 3, 2)
    number, after = moved(numbering, numbering.cast(ARRAY, array, split), split, permutation)
    found = slice_of_transposed(numbering, number, AT, 0)
    taken = numbering.taken(ARRAY, AT, array, 0)
    part = numbering.cast(taken, one_of(array, 0), one_of(split, 0))
    assert found == transposed(numbering, part, one_of(split, 0), permutation, one_of(after, 0))
    assert slice_of(numbering, number, AT, after, 0) == found


def test_what_is_no_transpose_has_no_such_slice():
    numbering = ElementExpressions("cpu")
    assert slice_of_transposed(numbering, ARRAY, AT, 0) is None
    cast = numbering.cast(ARRAY, shape(2, 12), shape(24))
    assert slice_of_transposed(numbering, cast, AT, 0) is None


def test_a_dimension_is_found_behind_a_bitcast():
    assert same_digit(shape(2, 3, 4), shape(6, 4), 1) == 2
    assert same_digit(shape(2, 3, 4), shape(6, 4), 0) is None, "two dimensions together"
    assert same_digit(shape(3, 2, order=(0, 1)), shape(2, 3), 0) == 1, "it is the same memory"
    assert same_digit(shape(1, 4), shape(1, 4), 0) is None, "one value counts nothing"
