"""Parts of the referee that compare slices: of a GPU's memory, and of what a loop hands on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo.slices import Access, Slice
from olla_xla.check.executable import iterations, thunks

pytestmark = pytest.mark.quick

SLICES = st.builds(Slice, st.integers(0, 1), st.integers(0, 5), st.integers(1, 4))
ACCESSES = st.builds(Access, SLICES, st.booleans(), st.booleans())


def held(place):
    """The bytes of a slice, one by one."""
    return {(place.allocation, k) for k in range(place.offset, place.end)}


@given(ACCESSES, ACCESSES)
def test_accesses_conflict_where_they_share_a_byte_that_one_writes(a, b):
    expected = bool(held(a.slice) & held(b.slice)) and (a.writes or b.writes)
    assert thunks._conflict(a, b) == thunks._conflict(b, a) == expected


@given(SLICES, SLICES)
def test_a_slice_lies_within_another_where_all_its_bytes_do(a, b):
    assert thunks._within(a, b) == (held(a) <= held(b))


@given(st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), max_size=6))
def test_operands_are_read_in_their_order(found, expected):
    def is_part(one, other):
        if not one:
            return True
        return bool(other) and is_part(one[one[0] == other[0] :], other[1:])

    made = [[Slice(0, k, 1) for k in row] for row in (found, expected)]
    assert thunks._in_order(*made) == is_part(found, expected)


@pytest.mark.parametrize(
    ("start", "root", "fixed"),
    [
        ("abc", "012", "012"),  # each is returned as it is
        ("abc", "112", "12"),  # 0 becomes 1, which began as something else
        ("aac", "112", "012"),  # 0 becomes 1, which began alike and stays
        ("aaa", "120", ""),  # they take turns: none stays by itself
        ("aab", "1x2", "2"),
    ],
)
def test_what_no_iteration_changes(start, root, fixed):
    """The state by element: how it begins, and whose name the body returns."""
    numbers = dict(enumerate(start))
    symbols = {k: str(k) for k in numbers}
    found = iterations.fixed_elements(numbers, symbols, dict(enumerate(root)))
    assert found == {int(k) for k in fixed}
