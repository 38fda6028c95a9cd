"""The graph as the paper sees it: operators, and tensors with a size; nothing else."""

from __future__ import annotations

import dataclasses

from olla_xla.problem.graph import Operator, Tensor, TensorGraph


def plain_graph(graph: TensorGraph) -> TensorGraph:
    """A copy of a graph with what the OLLA paper counts: operators, tensors and their sizes.

    Every tensor lives from its source to its last sink; none is live from the start or to the end,
    none shares memory, operators need none of their own. Precedence that no tensor carries becomes
    a tensor of zero bytes (section 4.3), and so does the output of an operator without outputs.
    """
    tensors = [
        dataclasses.replace(t, buffer=i, live_in=False, live_out=False)
        for i, t in enumerate(graph.tensors)
    ]
    carried = {(t.source, s) for t in tensors for s in t.sinks}
    after: dict[int, set[int]] = {
        v: set() for v in range(len(graph.operators)) if all(t.source != v for t in tensors)
    }
    for u, v in (*graph.edges, *graph.alias_edges):
        if u != v and (u, v) not in carried:
            after.setdefault(u, set()).add(v)
    for u in sorted(after):
        name = f"{graph.operators[u].name} done"
        tensors.append(Tensor(name, 0, u, tuple(sorted(after[u])), len(tensors)))
    operators = tuple(
        Operator(op.name, op.opcode, 0, op.free, op.location, op.op_name) for op in graph.operators
    )
    return TensorGraph(graph.name, operators, tuple(tensors))
