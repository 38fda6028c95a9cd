"""The rows of every formulation, as they were looked at.

Whatever its rows, a formulation must have the optimum that all orders have, and the tests beside
this one hold it to that. Many rows only make it tighter, though, and a span that is a step too wide
takes no order away: such a fault costs time alone. So here are all columns and rows of some graphs.
"""

import dataclasses

import numpy as np
import pytest

from benchmarks.made_graphs import random_graph
from benchmarks.papers.ilp_forms.equations import EQUATIONS as RUNNING
from benchmarks.papers.ilp_forms.equations import RunningBy, widened
from benchmarks.papers.ilp_forms.lifetimes_ilp import DEFINING, EQUATIONS, LifetimeIlp
from benchmarks.papers.ilp_forms.plain import plain_graph
from benchmarks.place_ilp import joint, located, windows
from benchmarks.place_ilp.locations import LocationIlp
from benchmarks.place_ilp.pyramid import pyramid
from olla_xla.errors import InputError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.place import PlacementProblem, place
from olla_xla.place.exact.model import model_of
from olla_xla.place.items import independent, items_of
from olla_xla.place.programs import Units, in_order_of_twins
from olla_xla.solvers.programs.orders import control_edges
from olla_xla.solvers.programs.prepared import Scale, prepare
from olla_xla.solvers.programs.running_ilp import RunningIlp
from olla_xla.solvers.programs.sharing import Sharing
from olla_xla.solvers.programs.spans import Reach, coefficients, spans
from tests.support.graphs import train_step
from tests.support.outcomes import outcome


def paired(graph):
    """The graph with every pair of an output and an input of one size that may be in place."""
    pairs = tuple(
        (b, a)
        for b, late in enumerate(graph.tensors)
        for a, early in enumerate(graph.tensors)
        if late.source in early.sinks and early.bytes == late.bytes and late.buffer != early.buffer
    )
    return dataclasses.replace(graph, inplace=pairs)


def larger(graph, times):
    """The graph with so many bytes for each."""
    return dataclasses.replace(
        graph,
        operators=tuple(
            dataclasses.replace(o, transient_bytes=times * o.transient_bytes)
            for o in graph.operators
        ),
        tensors=tuple(dataclasses.replace(t, bytes=times * t.bytes) for t in graph.tensors),
    )


GRAPHS = [
    *(larger(paired(random_graph(seed)), 1 + 11 * (seed % 2)) for seed in range(40)),
    train_step(1), train_step(3),
]  # fmt: skip


def largest(g):
    """A bound below which no peak is: the largest tensor."""
    return int(g.bytes.max(initial=0))


def rows(model):
    """All that a linear model is made of, names too."""
    arrays = model.arrays()
    fields = [getattr(arrays, f.name) for f in dataclasses.fields(arrays)]
    names = [model.variable_name(k) for k in range(model.variables)]
    return [*fields, names, [model.row_name(k) for k in range(model.rows)]]


def formulated(build):
    """Rows, the point of an order, and the order of that point."""
    told = []
    for graph in GRAPHS:
        g = GraphArrays.of(graph)
        order = np.arange(g.n)
        built = build(g)
        start = built.start(order)
        assert built.decode(start).tolist() == order.tolist()
        told.append([*rows(built.model), start, built.scale.to_bytes(built.model.value(start))])
    return outcome(told)


def known_before():
    """Spans, what may be shared, sizes and scales."""
    told = []
    for graph in GRAPHS:
        g = GraphArrays.of(graph)
        reach = Reach.of(g)
        for off in ("", *RUNNING):
            told.append(vars(widened(g, spans(g, reach), set(RUNNING) - {off})))
        told += [sorted(reach.direct(g)), coefficients(g)]
        sharing = vars(Sharing.of(g, reach))
        told.append({k: repr(sharing[k]) for k in ("pairs", "of_input", "forced", "others")})
        told += [sharing["must"], sharing["strict"]]
        scale = Scale.of(g)
        told += [vars(scale), [scale.to_units(b) for b in range(0, 40, 3)]]
        told.append([scale.to_bytes_up(b) for b in (-1.0, 0.0, 0.3, 1.0, 2.00001)])
    return outcome(told)


def prepared(**asked):
    told = []
    for graph in GRAPHS:
        start = np.arange(len(graph.operators))
        for edges in ((), control_edges(graph)):
            for first in (None, start):
                found = prepare(graph, edges=edges, start=first, **asked)
                back = found.back(np.arange(found.arrays.n))
                told += [repr(found.graph), found.start, back, found.arrays.bytes]
                told += [found.arrays.pred_idx, found.arrays.pair_a]
    return outcome(told)


ORDERS = {
    "running": lambda: formulated(RunningIlp),
    **{
        f"running without ({e})": lambda e=e: formulated(
            lambda g: RunningBy(g, equations=set(RUNNING) - {e}, bound_bytes=largest(g))
        )
        for e in RUNNING
    },
    "lifetimes": lambda: formulated(LifetimeIlp),
    **{
        f"lifetimes without ({e})": lambda e=e: formulated(
            lambda g: LifetimeIlp(g, equations=set(EQUATIONS) - {e}, bound_bytes=largest(g))
        )
        for e in EQUATIONS
        if e not in DEFINING
    },
    "plain": lambda: outcome([
        rows(LifetimeIlp(GraphArrays.of(plain_graph(graph)), plain=True).model) for graph in GRAPHS
    ]),
    "known before": known_before,
    "prepared": prepared,
    "prepared, plain": lambda: prepared(counted=plain_graph),
    "prepared, not condensed": lambda: prepared(reduce=False),
}  # fmt: skip


def parts():
    """Independent parts of random problems, each with a packing of it."""
    random = np.random.default_rng(0)
    for align, times in (((1,), 1), ((1,), 12), ((4,), 1), ((1, 2, 6), 1), ((4,), 12)):
        for _ in range(3):
            n = int(random.integers(5, 12))
            lower = random.integers(0, 9, n)
            upper = lower + random.integers(1, 7, n)
            group = np.where(random.random(n) < 0.3, 0, np.arange(n))
            problem = PlacementProblem.of(
                lower, upper, times * random.integers(1, 9, n), group=group,
                alignment=random.choice(align, n),
            )  # fmt: skip
            for part in independent(items_of(problem, 0)[0]):
                steps = part.size + part.align.max() * 60
                yield part, (np.cumsum(steps) - steps) // 60 * 60


def placed(**asked):
    told = []
    for part, offsets in parts():
        near = model_of(part)
        begin = in_order_of_twins(near, offsets)
        units = Units(part, begin, {0: int(begin[0])} if asked.get("pruned", True) else {})
        most = int((begin + part.need).max())
        built = LocationIlp(part, near, units, bound=most // 3, most=most, **asked)
        start = built.start(begin)
        told += [*rows(built.model), start, built.offsets(start), begin, pyramid(part)]
        told.append(repr(located._rectangles(part, near, units, most // 3, most, begin)))
        below, rest = located._standing(part)
        told += [below, rest.ids, located._numbers(part, rest), located._under(part, below, begin)]
    return outcome(told)


def windowed():
    """What windows of a packing are chosen, with the rows of their programs."""
    random = np.random.default_rng(3)
    lower = random.integers(0, 30, 60)
    upper = lower + random.integers(1, 12, 60)
    items, _ = items_of(PlacementProblem.of(lower, upper, random.integers(1, 9, 60)), 0)
    offsets = np.cumsum(items.size) - items.size
    near, units = model_of(items), Units(items, offsets, {})
    run = windows._Run(items, near, units, offsets, 60, seed=2)
    told = []
    for size in (3, 5, 8, 12) * 4:
        window, chosen = run.window(size)
        told += [chosen, run.left()]
        if window is None:
            continue
        told += [window.gaps, window.target_height, window.most, window.begin]
        built = LocationIlp(
            window.part, window.near, window.units, bound=0,
            most=window.most, gaps=window.gaps, target_height=window.target_height,
        )  # fmt: skip
        told += [*rows(built.model), built.start(window.begin)]
        lowered = np.array([ranges[0][0] for ranges in window.gaps]) * units.unit
        told.append(run.take(chosen[:1], lowered[:1]))
    return outcome([*told, run.offsets])


def joint_programs():
    told = []
    for graph in GRAPHS[:20]:
        prepared = prepare(joint._counted(graph))
        g = prepared.arrays
        packing = place(joint._Program.problem(g, prepared.start), method="greedy_size")
        program = joint._Program(g, packing.height // 2, packing.height)
        told += [*rows(program.model), program.start(prepared.start, packing), packing.offsets]
    return outcome(told)


PLACES = {
    "locations": placed,
    "locations, every pair": lambda: placed(pruned=False),
    "windows": windowed,
    "joint": joint_programs,
}


def test_orders():
    found = {name: told() for name, told in ORDERS.items()}
    assert outcome(found) == "6acb4d38aeb9", found


def test_equations_that_there_are_not():
    g = GraphArrays.of(GRAPHS[0])
    for program in (RunningBy, LifetimeIlp):
        with pytest.raises(InputError, match="no equations .'13'.; there are"):
            program(g, equations=("10", "13"))


def test_places():
    found = {name: told() for name, told in PLACES.items()}
    assert outcome(found) == "1edeeb0ebe53", found
