"""Which alias sets share an allocation: by lifetime, size, memory space and kind."""

import numpy as np
import pytest

from olla_xla.memory.assignment.allocation_reuse import (
    AliasSetKind,
    AliasSets,
    Links,
    reuse_allocations,
)
from olla_xla.memory.assignment.live_ranges import LiveRanges


def reused(rows, shares=(), copies=()):
    """Allocations of sets of one value each, given as (bytes, kind, start, end, live out, color).

    Args:
      shares, copies: (value, operand) pairs.
    """
    n = len(rows)
    size, kind, start, end, out, color = (list(column) for column in zip(*rows, strict=True))
    empty = np.zeros(n + 1, np.int64)

    def csr(pairs):
        idx = [[b for a, b in pairs if a == k] for k in range(n)]
        ptr = np.concatenate([[0], np.cumsum([len(row) for row in idx])]).astype(np.int64)
        return ptr, np.array([b for row in idx for b in row], np.int64)

    sets = AliasSets(
        ptr=np.arange(n + 1),
        idx=np.arange(n),
        operand_ptr=empty,
        operand_idx=np.zeros(0, np.int64),
        bytes=np.array(size),
        kind=np.array([int(k) for k in kind]),
        live_out=np.array(out, np.bool_),
        readonly=np.zeros(n, np.bool_),
        color=np.array(color),
        position=np.arange(n),
    )
    ranges = LiveRanges(np.array(start), np.array(end), np.arange(n))
    order = np.argsort(-np.array(size), kind="stable")
    return reuse_allocations(sets, Links(*csr(shares), *csr(copies)), ranges, order)


TEMP, ARGUMENT = AliasSetKind.TEMP, AliasSetKind.ARGUMENT
RESULT = (64, TEMP, 5, 9, True, 0)


def test_a_temporary_moves_into_a_result_that_is_not_live_yet():
    found = reused([RESULT, (32, TEMP, 0, 3, False, 0)])
    assert found.allocation.tolist() == [0, 0]
    assert found.bytes.tolist() == [64] and found.counted.tolist() == [True]


@pytest.mark.parametrize(
    "row",
    [
        (32, TEMP, 0, 6, False, 0),  # live together
        (32, TEMP, 0, 5, False, 0),  # up to the step at which the result begins
        (96, TEMP, 0, 3, False, 0),  # larger
        (32, TEMP, 0, 3, False, 5),  # of another memory space
    ],
)
def test_what_does_not_fit_goes_to_the_heap(row):
    assert reused([RESULT, row]).allocation.tolist() == [0, -1]


def test_memory_passes_on_at_a_common_end_where_the_instruction_allows_it():
    row = (64, TEMP, 0, 5, False, 0)
    assert reused([RESULT, row], shares=[(0, 1)]).allocation.tolist() == [0, 0]
    assert reused([RESULT, row], shares=[(0, 1)], copies=[(1, 0)]).allocation.tolist() == [0, -1]


def test_arguments_have_allocations_of_their_own_and_results_too():
    found = reused([(64, ARGUMENT, 0, 9, False, 0), (64, ARGUMENT, 0, 9, False, 0), RESULT])
    assert sorted(found.allocation.tolist()) == [0, 1, 2]
    assert found.counted.tolist() == [True] * 3 and found.temporary.tolist() == [False] * 3
