"""Steps of moved arrays over their source: which elements, in which order."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo.module import module_from_bytes
from hlo.strides import (
    contiguous,
    joined,
    moved,
    permutation,
    sliced,
    sliced_axis,
    sliced_outermost,
)
from hlo.text import from_hlo_text

pytestmark = pytest.mark.quick


def addresses(steps):
    """The elements that steps go through, in their order."""
    ranges = [[k * distance for k in range(count)] for count, distance in steps]
    return [sum(parts) for parts in itertools.product(*ranges)]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12)), max_size=4))
def test_joined_steps_go_through_the_same_elements(steps):
    found = joined(steps)
    assert addresses(found) == addresses(steps)
    assert joined(found) == found and all(count > 1 for count, _ in found)


def instructions(body):
    text = f"HloModule m\nENTRY e {{\n  {body}\n}}"
    entry = module_from_bytes(from_hlo_text(text)).entry
    return {i.name: i for i in entry.instructions}


def test_transposes_and_bitcasts_are_followed():
    found = instructions(
        "x = f32[2,3,4]{2,1,0} parameter(0)\n  t = f32[4,2,3]{2,1,0} transpose(x), "
        "dimensions={2,0,1}\n  ROOT b = f32[4,6]{1,0} bitcast(t)"
    )
    steps, kinds = moved(found["b"], found["x"])
    # 4 elements one apart, then the 2 x 3 rows of 4 as one run of 6.
    assert steps == ((4, 1), (6, 4)) and kinds == ()
    assert permutation(steps) == ((6, 4), (1, 0))
    assert contiguous(found["x"].shape) == ((24, 1),)


def test_converts_are_listed_and_arithmetic_is_not_followed():
    found = instructions(
        "x = f32[8]{0} parameter(0)\n  c = bf16[8]{0} convert(x)\n  ROOT n = bf16[8]{0} negate(c)"
    )
    steps, kinds = moved(found["c"], found["x"])
    assert steps == ((8, 1),) and kinds == (found["c"].shape.element_type,)
    assert moved(found["n"], found["x"]) is None


def test_a_slice_of_a_moved_array_is_one_of_its_source():
    found = instructions(
        "x = f32[5,2,3]{2,1,0} parameter(0)\n  ROOT t = f32[2,5,3]{2,1,0} transpose(x), "
        "dimensions={1,0,2}"
    )
    x, t = found["x"].shape, found["t"].shape
    steps, _ = moved(found["t"], found["x"])
    assert sliced(steps, t, 1, x) == (0, ((6, 1),))  # along the five: a whole piece of x
    assert sliced(steps, t, 0, x) == (1, ((15, 1),))


def test_the_sliced_dimension_is_found_where_there_is_one():
    found = instructions(
        "x = f32[5,2,3]{2,1,0} parameter(0)\n  y = f32[1,2,3]{2,1,0} parameter(1)\n  "
        "z = f32[5,1,3]{2,1,0} parameter(2)\n  w = f32[1,1,3]{2,1,0} parameter(3)\n  "
        "ROOT r = (f32[5,2,3]) tuple(x)"
    )
    x, y, z, w = (found[name].shape for name in "xyzw")
    assert (sliced_axis(y, x), sliced_axis(z, x), sliced_axis(w, x)) == (0, 1, None)
    assert (sliced_outermost(y, x), sliced_outermost(z, x)) == (0, None)
