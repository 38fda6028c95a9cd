"""Two more ideas of MXNet's note: colouring by conflicts; dependencies that a plan adds."""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.papers.eager.graph import Program
from benchmarks.papers.eager.static import EXTERNAL, Assignment, ancestors, external
from olla_xla.problem.graph import TensorGraph


def coloured(program: Program) -> Assignment:
    """Storages as colours of the graph of conflicts: tensors live at the same time differ.

    The largest tensor comes first, and takes the first storage none of whose tensors it conflicts
    with; so no storage ever grows. An operator's operands and results conflict.
    """
    graph, fixed = program.graph, external(program)
    numbers = [k for k in range(len(graph.tensors)) if k not in fixed]
    numbers.sort(key=lambda k: -graph.tensors[k].bytes)
    storage = [EXTERNAL] * len(graph.tensors)
    sizes: list[int] = []
    held: list[np.ndarray] = []  # by storage and operator: whether something is live there
    for k in numbers:
        tensor = graph.tensors[k]
        live = slice(tensor.source, max((tensor.source, *tensor.sinks)) + 1)
        found = next((s for s, taken in enumerate(held) if not taken[live].any()), len(held))
        if found == len(held):
            held.append(np.zeros(len(graph.operators), np.bool_))
            sizes.append(tensor.bytes)
        held[found][live] = True
        storage[k] = found
    return Assignment(tuple(storage), tuple(sizes))


def with_plan(graph: TensorGraph, made: Assignment) -> TensorGraph:
    """The graph with the dependencies that a plan adds, as control edges: to draw, or to export.

    Raises InputError if the graph is too large for sets of ancestors.
    """
    return dataclasses.replace(graph, edges=(*graph.edges, *induced_edges(graph, made)))


def induced_edges(graph: TensorGraph, made: Assignment) -> list[tuple[int, int]]:
    """The dependencies (before, after) that a plan adds to those of the data flow, ascending.

    Where a storage passes from one tensor to the next, whoever touched the first must have run
    before the second is made. Each pair of operators is there once, and only if the data flow does
    not order it already: what a parallel engine must add, or could have run at the same time.

    Raises InputError if the graph is too large for sets of ancestors.
    """
    above = ancestors(graph)
    tenants: dict[int, list[int]] = {}
    for number, s in enumerate(made.storage):
        if s != EXTERNAL:
            tenants.setdefault(s, []).append(number)
    edges: set[tuple[int, int]] = set()
    for numbers in tenants.values():
        numbers.sort(key=lambda n: graph.tensors[n].source)
        for a, b in zip(numbers, numbers[1:], strict=False):
            early, late = graph.tensors[a], graph.tensors[b].source
            touching = {early.source, *early.sinks} - {late}
            edges |= {(u, late) for u in touching if not above[late] >> u & 1}
    return sorted(edges)
