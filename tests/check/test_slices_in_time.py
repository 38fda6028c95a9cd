"""Parts of the referee that compare slices: of a GPU's memory, and of checkpoint arrays in time."""

import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo.slices import Access, Slice
from olla_xla.check.executable import checkpoints, loops, thunks

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


def test_slices_as_they_are_told():
    assert thunks._list([Slice(2, 4, 8), Slice(0, 0, 1)]) == (
        "[4, 12) of allocation 2, [0, 1) of allocation 0"
    )
    assert thunks._list([]) == "none"
    assert thunks._held([None, Slice(0, 3, 0), Slice(0, 3, 1)]) == [Slice(0, 3, 1)]


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
    found = loops._fixed(numbers, symbols, dict(enumerate(root)))
    assert found == {int(k) for k in fixed}


KEY = ("kept", b"at")


def followed(begun, read, at, *, source, element=None, count=None):
    """(whose slices are read, which iterations are run again) of an array through a loop.

    Args:
      begun: by slice, the iteration of the first loop that it belongs to. read, at: slices read
        and written in each iteration. source: whether what is read is written; else what an
        iteration that is run again gives. element: the first loop's that the array keeps.
    """
    check = object.__new__(checkpoints._Check)
    check._begun = {"kept": types.SimpleNamespace(iterations=begun, element=element)}
    check._iterations = len(read)
    moves = {"kept": checkpoints._Move(np.array(at), KEY if source else None)}
    begins = [] if source else [KEY]
    numbers = None if count is None else np.array(count)
    whose, again = check._follow({KEY: np.array(read)}, moves, begins, numbers)
    return whose[KEY].tolist(), again.tolist()


def test_slices_that_are_read_and_put_elsewhere():
    """Slice 2 is moved to 0, then 0 is read: it belongs to the iteration that 2 belonged to."""
    assert followed((7, 8, 9), [2, 0, 1], [0, 2, 1], source=True)[0] == [9, 9, 8]
    assert followed((7, 8, 9), [2, 0, 1], [0, 1, 1], source=True)[0] == [9, 9, 9]


def test_iterations_that_are_run_again_give_the_next_ones_beginning():
    """An element as an iteration leaves it is what the next one begins with."""
    whose, again = followed((0, 4), [0, 0, 1], [0, 0, 0], source=False, element=3)
    assert whose == again == [0, 1, 4]


def test_results_of_an_iteration_belong_to_it():
    whose, _ = followed((0, 4), [0, 0, 0], [0, 0, 0], source=False)
    assert whose == [0, 0, 0]


def test_an_iteration_with_another_number_gives_nothing_known():
    whose, again = followed((0,), [0, 0, 0], [0, 0, 0], source=False, element=3, count=[0, 7, 2])
    assert whose == again == [0, 1, checkpoints._UNKNOWN]


def test_indices_are_clamped():
    assert checkpoints._within(np.array([-3, 0, 2, 9]), 3).tolist() == [0, 0, 2, 2]
