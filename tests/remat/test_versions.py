"""Versions, clones and live bytes that evictions lead to, on a graph small enough to count by hand.

Operator k makes tensor k: a (8 bytes) of nothing, b (4) of a, c (2) of b, d (1) of c and a.
"""

import numpy as np
import pytest

from olla_xla.remat.graph import GraphFields
from olla_xla.remat.timeline import sequence, timeline
from olla_xla.remat.versions import CLONES, SEGMENTS, Evicted, Needs, Versions, demand

pytestmark = pytest.mark.quick

N = 4
READS = ((), (0,), (1,), (2, 0))
CAPACITY = 64


def csr(rows):
    pointers = np.cumsum([0, *map(len, rows)])
    return pointers.astype(np.int64), np.array([x for row in rows for x in row], np.int64)


def graph(*, rerun=(True, True, True, True), limit=(N,) * N, pairs=((), (), (), ())):
    in_ptr, in_idx = csr(READS)
    pair_ptr, pair_a = csr(pairs)
    pair_b = np.repeat(np.arange(N), np.diff(pair_ptr))
    return GraphFields(
        n=N, m=N,
        bytes=np.array([8, 4, 2, 1], np.int64),
        live_in=np.zeros(N, np.bool_),
        live_out=np.array([False, False, False, True]),
        limit=np.array(limit, np.int64),
        rerun=np.array(rerun, np.bool_),
        transient=np.zeros(N, np.int64),
        out_ptr=np.arange(N + 1), out_idx=np.arange(N),
        in_ptr=in_ptr, in_idx=in_idx,
        pair_ptr=pair_ptr, pair_b=pair_b, pair_a=pair_a,
        first=np.full(N, -1), given=np.zeros(N, np.bool_),
    )  # fmt: skip


def moment(k):
    return (2 * k + 1) * N


def clone(v, before):
    """The key of a clone of v right before the operator `before`."""
    return 2 * before * N + v


def found(g, evictions, capacity=CAPACITY):
    """(feasible, segments by tensor, clones, removed)."""
    ptr = np.searchsorted([t for t, _ in evictions], np.arange(N + 1))
    evicted = Evicted(ptr, np.array([key for _, key in evictions], np.int64))
    made, removed = Versions.none(capacity), np.zeros(N, np.bool_)
    feasible = demand(g, evicted, Needs.none(N, capacity), made, removed)
    segments = made.segments[: made.count[SEGMENTS]]
    clones = made.clones[: made.count[CLONES]]
    return feasible, segments, clones, removed


def live(g, evictions):
    """Live bytes at each step of the new sequence, and the operators that run there."""
    _, segments, clones, removed = found(g, evictions)
    steps = sequence(g, segments, clones)
    bytes_at = np.zeros(len(steps.keys), np.int64)
    flags = (np.zeros(len(segments), np.bool_) for _ in range(2))
    timeline(g, steps, removed, *flags, np.zeros(len(steps.keys) + 1, np.int64), bytes_at)
    return bytes_at.tolist(), steps.operators.tolist()


END = (2 * N + 2) * N


def test_without_evictions_each_tensor_has_one_version():
    feasible, segments, clones, removed = found(graph(), [])
    assert feasible and not len(clones) and not removed.any()
    assert sorted(segments.tolist()) == [
        [0, moment(0), moment(3)],
        [1, moment(1), moment(2)],
        [2, moment(2), moment(3)],
        [3, moment(3), END],
    ]
    assert live(graph(), []) == ([8, 12, 14, 11], [0, 1, 2, 3])


def test_an_evicted_tensor_is_made_again_right_before_its_reader():
    feasible, segments, clones, removed = found(graph(), [(0, moment(2))])
    assert feasible and clones.tolist() == [[0, clone(0, 3)]] and not removed.any()
    of_a = [row for row in segments.tolist() if row[0] == 0]
    assert sorted(of_a) == [[0, moment(0), moment(1)], [0, clone(0, 3), moment(3)]]
    assert live(graph(), [(0, moment(2))]) == ([8, 12, 6, 10, 11], [0, 1, 2, 0, 3])


def test_a_clone_reads_its_operands_where_it_runs():
    """c made again before d needs b there: b lives until the clone."""
    _, segments, clones, removed = found(graph(), [(2, moment(2) + 1)])
    assert clones.tolist() == [[2, clone(2, 3)]]
    assert [1, moment(1), clone(2, 3)] in segments.tolist()
    assert removed.tolist() == [False, False, True, False], "nothing else reads the first c"


def test_what_cannot_run_again_is_kept():
    _, _, _, removed = found(graph(rerun=(True, True, False, True)), [(2, moment(2) + 1)])
    assert not removed.any()


def test_a_buffer_that_is_overwritten_cannot_be_read_later():
    """Operator 2 writes over a, which d reads: there is no such plan."""
    assert not found(graph(limit=(2, N, N, N)), [])[0]
    assert found(graph(limit=(3, N, N, N)), [])[0], "its last reader may be what writes over it"


def test_memory_that_passes_on_is_counted_once():
    """c takes over b's memory: at its step b is not counted beside it."""
    passing = graph(pairs=((), (), (1,), ()))
    assert live(passing, []) == ([8, 12, 10, 11], [0, 1, 2, 3])


def test_too_many_versions_are_none():
    feasible, segments, clones, _ = found(graph(), [(0, moment(2))], capacity=3)
    assert not feasible and not len(segments) and not len(clones)
