"""Tensor graphs as networkx graphs, for drawing and for algorithms of others."""

from __future__ import annotations

import networkx as nx

from olla_xla.problem.graph import TensorGraph

__all__ = ["to_networkx"]


def to_networkx(graph: TensorGraph) -> nx.MultiDiGraph:
    """A graph with a node for each operator and an edge for each dependence.

    Nodes are operator ids, with the attributes of `Operator` (`name`, `opcode`, `transient_bytes`,
    `free`, `location`, `op_name`). Edges have a `kind`:

    * "tensor": from a tensor's source to one of its sinks, with `tensor` (its id), `name`, `bytes`
      (0 for host memory), `buffer` and `category`. A tensor has an edge for each sink; its bytes
      are held once. One without sinks is found in the graph's `unread`.
    * "control": an operator runs before another; no tensor of its own goes along.
    * "alias": a reader of a buffer runs before the operator that overwrites it.

    Graph attributes: `name`, `unread` (ids of tensors that no operator reads) and `inplace` (pairs
    of an output's and an input's tensor id that may share memory).

    Examples:
      >>> g = to_networkx(graph)
      >>> nx.is_directed_acyclic_graph(g)
      True
      >>> sum(d["bytes"] for *_, d in g.out_edges(3, data=True) if d["kind"] == "tensor")
    """
    result = nx.MultiDiGraph(
        name=graph.name,
        unread=tuple(k for k, t in enumerate(graph.tensors) if not _readers(t.source, t.sinks)),
        inplace=graph.inplace,
    )
    for k, operator in enumerate(graph.operators):
        result.add_node(
            k,
            name=operator.name,
            opcode=operator.opcode,
            transient_bytes=operator.transient_bytes,
            free=operator.free,
            location=operator.location,
            op_name=operator.op_name,
        )
    carried = set()
    for k, tensor in enumerate(graph.tensors):
        for sink in _readers(tensor.source, tensor.sinks):
            carried.add((tensor.source, sink))
            result.add_edge(
                tensor.source,
                sink,
                kind="tensor",
                tensor=k,
                name=tensor.name,
                bytes=tensor.bytes,
                buffer=tensor.buffer,
                category=tensor.category,
            )
    for u, v in graph.edges:
        if (u, v) not in carried and u != v:
            result.add_edge(u, v, kind="control")
    for u, v in graph.alias_edges:
        result.add_edge(u, v, kind="alias")
    return result


def _readers(source: int, sinks: tuple[int, ...]) -> list[int]:
    return [sink for sink in sinks if sink != source]
