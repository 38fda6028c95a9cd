"""Orders of an array's elements as steps, beside NumPy's own transposes and reshapes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo.shapes import Shape
from olla_xla.check.executable import element_order as orders

EXTENTS = st.lists(st.sampled_from([1, 2, 2, 3, 4, 6]), min_size=1, max_size=4)


def shape(*dimensions, layout=None):
    layout = tuple(reversed(range(len(dimensions)))) if layout is None else tuple(layout)
    return Shape(11, tuple(dimensions), (), layout, 0, 32, b"")


@st.composite
def shapes(draw, dimensions=EXTENTS):
    found = draw(dimensions)
    return shape(*found, layout=draw(st.permutations(range(len(found)))))


def places(steps):
    """The places in the row, in the order that steps take them."""
    found = np.zeros(1, int)
    for count, distance in steps:
        found = (found[:, None] + np.arange(count) * distance).reshape(-1)
    return found


def row(array_shape):
    """Places in its row of an array's elements, by their indices."""
    return np.arange(array_shape.num_elements).reshape(array_shape.dimensions)


def memory(array_shape, values):
    """An array's values as they lie in memory."""
    return values.transpose(array_shape.minor_to_major[::-1]).reshape(-1)


@given(shapes())
def test_how_elements_lie_in_memory(array):
    assert places(orders.lying(array)).tolist() == memory(array, row(array)).tolist()
    there = places(orders.as_dimensions(array))
    assert memory(array, row(array))[there].tolist() == list(range(array.num_elements))


@given(shapes(), st.randoms(use_true_random=False))
def test_dimensions_in_another_order(array, rng):
    dimensions = rng.sample(range(len(array.dimensions)), len(array.dimensions))
    expected = row(array).transpose(dimensions).reshape(-1)
    assert places(orders.permuted(array, tuple(dimensions))).tolist() == expected.tolist()


@given(shapes(), st.data())
def test_steps_over_steps(array, data):
    """And None only where a digit would end within another one."""
    inner = orders.lying(array)
    size = array.num_elements
    factors = st.lists(st.sampled_from([2, 3, 4]), max_size=3)
    dimensions = data.draw(factors.filter(lambda f: size % max(np.prod(f, dtype=int), 1) == 0))
    other = (*dimensions, size // int(np.prod(dimensions, dtype=int)))
    outer = orders.permuted(shape(*other), tuple(data.draw(st.permutations(range(len(other))))))
    found = orders.composed(inner, outer)
    expected = places(inner)[places(outer)]
    if found is not None:
        assert places(found).tolist() == expected.tolist()
        assert found == orders.joined(found)
    if np.gcd.reduce([6, size]) == 1 or len(other) == 1:
        assert found is not None


@pytest.mark.parametrize(
    ("steps", "digit", "expected"),
    [
        (((2, 3), (3, 1)), (6, 1), ((2, 3), (3, 1))),
        (((3, 1), (2, 3)), (2, 1), ((2, 3),)),
        (((3, 1), (2, 3)), (3, 2), ((3, 1),)),
        (((4, 1),), (2, 2), ((2, 2),)),
        (((4, 1),), (2, 1), ((2, 1),)),
        (((3, 1), (2, 3)), (3, 1), None),  # ends in the middle of the second of three
        (((3, 4), (4, 1)), (2, 3), None),
    ],
)
def test_a_digit_of_a_row(steps, digit, expected):
    assert orders.within(steps, *digit) == expected


def test_steps_that_go_on_are_one_and_those_of_one_are_none():
    assert orders.joined([(2, 12), (1, 5), (3, 4), (4, 1)]) == ((24, 1),)
    assert orders.joined([(2, 12), (4, 1)]) == ((2, 12), (4, 1))
    assert orders.joined([(1, 1)]) == ()


@given(shapes())
def test_steps_are_found_by_the_places_that_they_take(array):
    steps = orders.lying(array)
    assert orders.places(steps).tolist() == places(steps).tolist()
    assert orders.steps_of(places(steps)) == steps
    assert orders.steps_of(places(orders.as_dimensions(array))) == orders.as_dimensions(array)


@pytest.mark.parametrize("order", [(0, 2, 1), (0, 2, 4, 1), (0, 1, 2, 5, 4, 3), (0, 1, 3, 2)])
def test_places_that_no_steps_take(order):
    assert orders.steps_of(np.array(order)) is None


@given(shapes(), st.data())
def test_a_row_without_one_of_its_digits(array, data):
    """What is left of it is the same row of what it was taken from without the same elements."""
    steps, size = orders.lying(array), array.num_elements
    axis = data.draw(st.integers(0, len(array.dimensions) - 1))
    digit = orders.digits(array)[axis]
    found = orders.without(steps, size, digit)
    if digit[0] == 1:
        assert found is None
        return
    (count, distance), left = found
    assert (count, distance) == orders.digits(orders.row_major(array))[axis]
    for k in range(count):
        kept = np.arange(size) // digit[1] % count == k
        row_left = np.arange(size)[np.arange(size) // distance % count == k]
        assert row_left[places(left)].tolist() == places(steps)[kept].tolist()
