"""What each baseline makes of random programs, to the last byte; and the referee by brute force.

An assignment that passes its referee may still be another than NNVM's rule makes, and a share of a
reserve is a number like any other. These are the numbers, as they were looked at.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.eager.allocator import BlockSplittingAllocator, PowerOfTwoAllocator
from benchmarks.papers.eager.compiled_allocator import CompiledAllocator
from benchmarks.papers.eager.conflicts import coloured, induced_edges
from benchmarks.papers.eager.estimate import PLANNERS, assignment, best_fit, profile
from benchmarks.papers.eager.graph import Program, forward_only
from benchmarks.papers.eager.requests import eager_requests, loop_requests, run_eagerly
from benchmarks.papers.eager.static import ancestors, assign, colours, external
from benchmarks.papers.eager.storages import check_storages
from benchmarks.papers.eager.unfused import _standing
from olla_xla.errors import CheckError, InputError
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from tests.support.outcomes import outcome


def made(seed):
    """A random program with arguments, donated ones too, and a backward pass in its middle."""
    random = np.random.default_rng(seed)
    n = int(random.integers(4, 30))
    start, stop = sorted(random.integers(2, n + 1, 2).tolist())
    backward = frozenset(range(start, stop))
    arguments = {0, 1, int(random.integers(2, n))}  # one of them anywhere
    tensors = []
    for v in range(n):
        given = v in arguments
        for k in range(1 if given else int(random.integers(0, 3))):
            later = np.arange(v + 1, n)
            sinks = random.choice(later, min(len(later), int(random.integers(0, 4))), replace=False)
            donated = given and random.random() < 0.5
            size = int(random.choice([1, 600, 600, 3000, 1 << 20, 3 << 20, 11 << 20]))
            live_out = (given and not donated) or (not given and random.random() < 0.15)
            tensors.append(
                Tensor(
                    f"t{v}.{k}", size, v, tuple(sorted(sinks.tolist())), len(tensors), given,
                    live_out, "argument" if given else "output" if live_out else "temporary",
                )
            )  # fmt: skip
    for b, late in enumerate(tensors):  # results in donated arguments' places
        for a, early in enumerate(tensors[:b]):
            fits = early.live_in and not early.live_out and late.live_out and not late.live_in
            if fits and all(t.buffer != early.buffer for k, t in enumerate(tensors) if k != a):
                if max(early.sinks, default=0) <= late.source:
                    late = dataclasses.replace(late, bytes=early.bytes, buffer=early.buffer)
                    tensors[b] = late
    inplace = tuple(
        (b, a)
        for b, late in enumerate(tensors)
        for a, early in enumerate(tensors)
        if late.source in early.sinks and early.bytes == late.bytes and random.random() < 0.6
    )
    operators = tuple(
        Operator(f"op{v}", str(random.choice(["add", "add", "dot"]))) for v in range(n)
    )
    graph = TensorGraph("random", operators, tuple(tensors), inplace=inplace)
    gradients = frozenset(
        k
        for k, t in enumerate(tensors)
        if t.source in backward and not t.live_out and any(v >= stop for v in t.sinks)
    )
    return Program(graph, backward, gradients)


PROGRAMS = [made(seed) for seed in range(60)]


def numbers(found):
    """A program in numbers."""
    graph = found.graph
    rows = [(t.bytes, t.source, t.sinks, t.buffer, t.live_in, t.live_out) for t in graph.tensors]
    pairs = sorted(graph.edges), sorted(graph.alias_edges), graph.inplace
    sums = found.argument_bytes, found.output_bytes
    opcodes = [operator.opcode for operator in graph.operators]
    return [rows, pairs, sums, opcodes, found.backward, found.gradients]


def planned(**asked):
    return outcome([vars(assign(p, **asked)) for p in PROGRAMS])


def requested():
    told = []
    for p in PROGRAMS:
        told += [eager_requests(p), loop_requests(p, 2)]
        for allocator in (BlockSplittingAllocator, PowerOfTwoAllocator):
            told += [vars(run_eagerly(p, allocator(), steps)) for steps in (None, 1, 3)]
    return outcome(told)


def profiled():
    told = []
    for p in PROGRAMS:
        problem, row = profile(p), best_fit(p)
        told += [problem.lower, problem.upper, problem.size]
        told += [row.planner, row.total_bytes, row.blocks, row.live_bytes]
    return outcome(told)


def forward():
    told = []
    for p in PROGRAMS:
        try:
            told.append(numbers(forward_only(p)))
        except InputError as error:
            told.append(str(error))
    return outcome(told)


EDGES = [
    size + more
    for size in (512, 1 << 20, 10 << 20, 16 << 20, 20 << 20)
    for more in (-512, -1, 0, 1, 512)
]  # about them the rules change


def allocated():
    """Both allocators and the compiled one through random requests, each count at each request."""
    told = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        requests, sizes, live = [], [], []
        small, power = BlockSplittingAllocator(), PowerOfTwoAllocator()
        handles = {}
        for _ in range(200):
            if live and random.random() < 0.45:
                k = live.pop(int(random.integers(len(live))))
                requests.append(-k)
                for allocator, handle in zip((small, power), handles.pop(k), strict=True):
                    allocator.free(handle)
            else:
                free = int(2 ** random.uniform(0, 25.5))
                sizes.append(free if seed % 3 else int(random.choice(EDGES)))
                live.append(len(sizes))
                requests.append(len(sizes))
                handles[len(sizes)] = [a.allocate(sizes[-1]) for a in (small, power)]
            for a in (small, power):
                told.append((a.allocated, a.peak_allocated, a.reserved))
        compiled = CompiledAllocator(requests, sizes)
        compiled.step()
        assert (compiled.reserved, compiled.allocated) == (small.reserved, small.allocated)
        lie = [block for block in small._live.values()]
        rows = [compiled._blocks[compiled._holds[k - 1]].tolist() for k in live]
        assert [(b.size, b.segment - 1, b.offset) for b in lie] == [tuple(r[:3]) for r in rows]
        told.append([(block.segment, block.offset, block.size, block.small) for block in lie])
    return outcome(told)


BASELINES = {
    **{
        f"{'in place' * a} {'sharing' * b} {rule}": (
            lambda a=a, b=b, rule=rule: planned(in_place=a, sharing=b, parallel=rule)
        )
        for a in (False, True)
        for b in (False, True)
        for rule in (None, "colour", "ancestors")
    },
    "encouraged": lambda: planned(in_place=True, sharing=True, encouraged=True),
    "by name": lambda: outcome([vars(assignment(p, n)) for p in PROGRAMS for n in PLANNERS]),
    "coloured": lambda: outcome([vars(coloured(p)) for p in PROGRAMS]),
    "edges": lambda: outcome([
        induced_edges(p.graph, assign(p, in_place=True, sharing=True)) for p in PROGRAMS
    ]),
    "external": lambda: outcome([external(p) for p in PROGRAMS]),
    "ancestors": lambda: outcome([ancestors(p.graph) for p in PROGRAMS]),
    "colours": lambda: outcome([
        colours(p.graph, limit) for p in PROGRAMS for limit in (0, 1, 2, 64)
    ]),
    "requests": requested,
    "profile": profiled,
    "forward": forward,
    "standing": lambda: outcome([
        numbers(dataclasses.replace(p, graph=_standing(p.graph))) for p in PROGRAMS
    ]),
    "allocators": allocated,
}  # fmt: skip


def test_baselines():
    found = {name: told() for name, told in BASELINES.items()}
    assert outcome(found) == "7bac09e6fc4b", found


def is_sound(graph, storage, sizes, parallel):
    """By a look at every pair of tensors and, in parallel, at all that the data flow orders."""
    before = graph.predecessors()

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
