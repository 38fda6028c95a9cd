"""A plain graph without the operators that are best run right before the one that reads them.

An operator that waits for nothing, and what it makes one other reads, is in no better place than
there: earlier its tensors live longer, and with that reader's they meet anyway.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from olla_xla.problem.graph import TensorGraph

__all__ = ["LateSources", "with_late_sources"]


@dataclasses.dataclass(frozen=True, eq=False)
class LateSources:
    """A graph without such operators.

    Attributes:
      graph: what is left; tensors are those of the whole graph, by the same ids.
      kept: its operators, by their ids in the whole graph.
      before: operator of the whole graph -> those that run right before it.
    """

    graph: TensorGraph
    kept: tuple[int, ...]
    before: dict[int, list[int]]

    def contract(self, order: Sequence[int]) -> list[int]:
        """The order of what is left."""
        number = {v: k for k, v in enumerate(self.kept)}
        return [number[v] for v in order if v in number]

    def expand(self, order: Sequence[int]) -> list[int]:
        """The order of all operators."""
        kept = (self.kept[k] for k in order)
        return [u for v in kept for u in (*self.before.get(v, ()), v)]


def with_late_sources(plain: TensorGraph) -> LateSources:
    """Takes them out of a plain graph (`schedule.exact.plain_graph`)."""
    waits = {s for t in plain.tensors for s in t.sinks if s != t.source}
    waits |= {v for u, v in (*plain.edges, *plain.alias_edges) if u != v}
    # What nobody reads lives with its own operator alone, and would live with the reader's.
    waits |= {t.source for t in plain.tensors if t.bytes and not set(t.sinks) - {t.source}}
    after: dict[int, set[int]] = {v: set() for v in range(len(plain.operators))}
    for t in plain.tensors:
        after[t.source] |= set(t.sinks) - {t.source}
    for u, v in (*plain.edges, *plain.alias_edges):
        if u != v:
            after[u].add(v)
    reader = {u: min(found) for u, found in after.items() if u not in waits and len(found) == 1}
    before: dict[int, list[int]] = {}
    for u in sorted(reader):
        before.setdefault(reader[u], []).append(u)
    kept = tuple(v for v in after if v not in reader)
    number = {v: k for k, v in enumerate(kept)}
    tensors = []
    for t in plain.tensors:
        if t.source in reader:  # live where its reader runs, and nowhere else
            t = dataclasses.replace(t, source=number[reader[t.source]], sinks=())
        else:
            sinks = tuple(sorted(number[s] for s in t.sinks))
            t = dataclasses.replace(t, source=number[t.source], sinks=sinks)
        tensors.append(t)
    graph = dataclasses.replace(
        plain,
        operators=tuple(plain.operators[v] for v in kept),
        tensors=tuple(tensors),
        edges=tuple((number[u], number[v]) for u, v in plain.edges if u in number and v in number),
        alias_edges=tuple(
            (number[u], number[v]) for u, v in plain.alias_edges if u in number and v in number
        ),
    )
    return LateSources(graph, kept, before)
