"""The referee of storage assignments, by brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.eager.storages import check_storages
from olla_xla.errors import CheckError
from olla_xla.problem.graph import Operator, Tensor, TensorGraph


def is_sound(graph, storage, sizes, parallel):
    """By a look at every pair of tensors and, in parallel, at all that the data flow orders."""
    before = graph.predecessors

    def above(v):
        return set().union(*({u} | above(u) for u in before[v]))

    for a, early in enumerate(graph.tensors):
        if storage[a] >= 0 and (storage[a] >= len(sizes) or early.bytes > sizes[storage[a]]):
            return False
        for b, late in enumerate(graph.tensors):
            if a == b or storage[a] != storage[b] or storage[a] < 0:
                continue
            if (late.source, b) < (early.source, a):
                continue
            touched = {early.source, *early.sinks}
            over = (b, a) in graph.inplace and early.bytes == late.bytes
            ended = max(touched) < late.source or (
                over and max(touched) == late.source and early.source < late.source
            )
            if early.live_in or early.live_out or late.live_in or not ended:
                return False
            if parallel and not touched - {late.source} <= above(late.source):
                return False
    return True


@st.composite
def assigned(draw):
    """A small program and storages of it, mostly right."""
    n = draw(st.integers(2, 7))
    tensors = []
    for v in range(n):
        sinks = draw(st.sets(st.integers(v + 1, n - 1), max_size=2)) if v + 1 < n else set()
        flags = draw(st.sampled_from([(False, False)] * 6 + [(True, False), (False, True)]))
        size = draw(st.integers(1, 2))
        tensors.append(Tensor(f"t{v}", size, v, tuple(sorted(sinks)), v, *flags))
    pairs = [
        (b, a)
        for b, late in enumerate(tensors)
        for a, early in enumerate(tensors)
        if late.source in early.sinks and draw(st.booleans())
    ]
    operators = tuple(Operator(f"op{v}", "op") for v in range(n))
    graph = TensorGraph("random", operators, tuple(tensors), inplace=tuple(pairs))
    storage = draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n))
    return graph, tuple(storage), draw(st.sampled_from([(2, 2, 2, 2), (2, 1, 2, 2), (2, 2, 2)]))


@given(assigned(), st.booleans())
def test_the_referee_by_brute_force(case, parallel):
    graph, storage, sizes = case
    if is_sound(graph, storage, sizes, parallel):
        check_storages(graph, storage, sizes, parallel=parallel)
    else:
        with pytest.raises(CheckError):
            check_storages(graph, storage, sizes, parallel=parallel)
