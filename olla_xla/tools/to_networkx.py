"""Tensor graphs as networkx graphs, and back: for drawing, for others' algorithms and graphs.

Example:
  What figure 3 of Steiner et al. (2022) illustrates, on a graph of our own: another order of two
  operators needs noticeably less memory.

  >>> import networkx as nx
  >>> g = nx.MultiDiGraph(name="figure 3")
  >>> for k, (u, v, size) in enumerate(
  ...     [("v1", "v2", 10), ("v1", "v3", 20), ("v2", "v4", 30), ("v3", "v4", 5)]
  ... ):
  ...     _ = g.add_edge(u, v, kind="tensor", name=f"e{k + 1}", bytes=size)
  >>> graph = from_networkx(g)
  >>> print(*(operator.name for operator in graph.operators))
  v1 v2 v3 v4
  >>> from olla_xla.check.graph import lifetime_peak
  >>> lifetime_peak(graph, [0, 1, 2, 3]), lifetime_peak(graph, [0, 2, 1, 3])
  (60, 45)

  With v2 first, the 20 bytes that v3 reads still wait while v2 makes its 30; with v3 first they
  are gone by then.
"""

import dataclasses
import io
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import ParseError

import networkx as nx

from hlo.files import read_regular, unpacked
from olla_xla.errors import GraphError, InputError
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.problem.whole_file import written_for_user

_OPERATOR = tuple(f.name for f in dataclasses.fields(Operator))
_TENSOR = ("name", "bytes", "buffer", "live_in", "live_out", "category")


def to_networkx(graph: TensorGraph) -> nx.MultiDiGraph:
    """Makes a networkx graph with a node for each operator and an edge for each dependence.

    Nodes are operator ids, with the attributes of `Operator` (`name`, `opcode`, `transient_bytes`,
    `free`, `location`, `op_name`). Edges have a `kind`:

    * "tensor": from a tensor's source to one of its sinks, with `tensor` (its id), `name`, `bytes`
      (0 for host memory), `buffer`, `live_in`, `live_out` and `category`. A tensor has an edge for
      each sink; its bytes are held once. One without sinks is found in the graph's `unread`.
    * "control": an operator runs before another; no tensor of its own goes along.
    * "alias": a reader of a buffer runs before the operator that overwrites it.

    Graph attributes: `name`, `unread` (id -> attributes and `source` of tensors that no other
    operator reads), `read_by_source` (ids of tensors that their own source reads) and `inplace`
    (pairs of an output's and an input's tensor id that may share memory).

    Examples:
      >>> import olla_xla
      >>> graph = TensorGraph(
      ...     "step",
      ...     (Operator("a", "parameter"), Operator("b", "fusion"), Operator("c", "fusion")),
      ...     (Tensor("a", 8, 0, (1, 2), 0), Tensor("b", 4, 1, (2,), 1)),
      ... )
      >>> g = to_networkx(graph)
      >>> nx.is_directed_acyclic_graph(g)
      True
      >>> sorted(d["bytes"] for *_, d in g.edges(data=True))
      [4, 8, 8]
      >>> from_networkx(g).tensors == graph.tensors
      True
    """
    result = nx.MultiDiGraph(
        name=graph.name,
        unread={
            k: {**_attributes(t), "source": t.source}
            for k, t in enumerate(graph.tensors)
            if not _readers(t.source, t.sinks)
        },
        read_by_source=tuple(k for k, t in enumerate(graph.tensors) if t.source in t.sinks),
        inplace=graph.inplace,
    )
    for k, operator in enumerate(graph.operators):
        result.add_node(k, **{name: getattr(operator, name) for name in _OPERATOR})
    carried = set()
    for k, tensor in enumerate(graph.tensors):
        for sink in _readers(tensor.source, tensor.sinks):
            carried.add((tensor.source, sink))
            result.add_edge(tensor.source, sink, kind="tensor", tensor=k, **_attributes(tensor))
    for u, v in graph.edges:
        if (u, v) not in carried and u != v:
            result.add_edge(u, v, kind="control")
    for u, v in graph.alias_edges:
        result.add_edge(u, v, kind="alias")
    return result


def from_networkx(g: Any) -> TensorGraph:
    """Makes a tensor graph from a networkx graph: one of `to_networkx`, or a simpler one.

    The graph is directed, a multigraph or not. Operators are numbered in the order of the nodes, as
    far as dependences allow. What a node or an edge does not say has the default of `Operator` and
    `Tensor`: a node's name is the node itself, an edge is a tensor of its own of `bytes`, and
    tensors share no buffer.

    Raises:
      GraphError: `g` is undirected or has a cycle, an edge is of no known kind or its tensor has no
        `bytes`, edges contradict each other about one tensor, or a value has another type or is
        too large.
    """
    try:
        graph = _graph(g)
    except GraphError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError) as error:
        raise GraphError(f"a value in the graph has the wrong type: {error}") from error
    largest = max((abs(t.buffer) for t in graph.tensors), default=0)
    if max(largest, sum(t.bytes for t in graph.tensors)) >= 2**63:
        raise GraphError("a tensor's bytes, or a buffer's number, are larger than 2**63")
    return graph


def _graph(g: Any) -> TensorGraph:
    if not g.is_directed():
        raise GraphError("a tensor graph must be directed; pass a networkx.MultiDiGraph")
    given = {node: k for k, node in enumerate(g.nodes)}
    try:
        nodes = list(nx.lexicographical_topological_sort(g, key=given.__getitem__))
    except nx.NetworkXUnfeasible as error:
        raise GraphError("the graph has a cycle, so its operators have no order") from error
    number: dict[Hashable, int] = {node: k for k, node in enumerate(nodes)}
    operators = tuple(_operator(node, g.nodes[node]) for node in nodes)
    collected = _Tensors()
    precedence: dict[str, list[tuple[int, int]]] = {"tensor": [], "control": [], "alias": []}
    for u, v, data in g.edges(data=True):
        kind = data.get("kind", "tensor")
        if kind not in precedence:
            raise GraphError(f"edge {u} -> {v} is of kind {kind!r}, not {', '.join(precedence)}")
        precedence[kind].append((number[u], number[v]))
        if kind == "tensor":
            collected.add(data.get("tensor"), number[u], number[v], data, f"edge {u} -> {v}")
    for key, data in g.graph.get("unread", {}).items():
        collected.add(key, int(data["source"]), None, data, f"tensor {key}")
    for key in g.graph.get("read_by_source", ()):
        collected.read_by_source(key)
    graph = TensorGraph(
        str(g.graph.get("name", "")),
        operators,
        collected.tensors(),
        tuple(dict.fromkeys((*precedence["tensor"], *precedence["control"]))),
        tuple(dict.fromkeys(precedence["alias"])),
        tuple((collected.number(b), collected.number(a)) for b, a in g.graph.get("inplace", ())),
    )
    graph.validate()
    return graph


class _Tensors:
    """Collects tensors from the edges of a networkx graph: edges of one `tensor` id make one.
    An edge without such an id is a tensor of its own.
    """

    def __init__(self) -> None:
        self._source: dict[Hashable, int] = {}
        self._sinks: dict[Hashable, set[int]] = {}
        self._data: dict[Hashable, dict[str, Any]] = {}

    def add(
        self, key: Any, source: int, sink: int | None, data: Mapping[str, Any], where: str
    ) -> None:
        if "bytes" not in data:
            raise GraphError(f"{where} has no size; give it bytes=SIZE, or kind='control'")
        own = {name: data[name] for name in _TENSOR if name in data}
        key = ("edge", len(self._source)) if key is None else key
        if self._source.setdefault(key, source) != source or self._data.setdefault(key, own) != own:
            raise GraphError(f"{where} contradicts the attributes of another edge of tensor {key}")
        sinks = self._sinks.setdefault(key, set())
        if sink is not None:
            sinks.add(sink)

    def read_by_source(self, key: Hashable) -> None:
        self._sinks[key].add(self._source[key])

    def _keys(self) -> list[Any]:
        """Keys of tensors in order: their ids by number, then edges without an id as they came."""
        numbered = sorted(k for k in self._source if isinstance(k, int))
        return [*numbered, *(k for k in self._source if not isinstance(k, int))]

    def number(self, key: Hashable) -> int:
        return self._keys().index(key)

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(
                str(self._data[key].get("name", f"t{k}")),
                int(self._data[key]["bytes"]),
                self._source[key],
                tuple(sorted(self._sinks[key])),
                int(self._data[key].get("buffer", k)),
                bool(self._data[key].get("live_in", False)),
                bool(self._data[key].get("live_out", False)),
                str(self._data[key].get("category", "temporary")),
            )
            for k, key in enumerate(self._keys())
        )


def _operator(node: Hashable, data: Mapping[str, Any]) -> Operator:
    given = {name: data[name] for name in _OPERATOR if name in data}
    return Operator(**{"name": str(node), "opcode": "operator", **given})


def _attributes(tensor: Tensor) -> dict[str, Any]:
    return {name: getattr(tensor, name) for name in _TENSOR}


def _readers(source: int, sinks: tuple[int, ...]) -> list[int]:
    return [sink for sink in sinks if sink != source]


# Tensor graphs as GraphML, which yEd, Gephi and networkx read.
#
# GraphML attributes are numbers, booleans or strings. So the graph attributes `unread`,
# `read_by_source` and `inplace` are JSON in strings.


def write_graphml(
    path: str | os.PathLike[str], graph: TensorGraph, order: Sequence[int] | None = None
) -> None:
    """Writes a tensor graph to a GraphML file; InputError if it cannot be written.

    Args:
      path: of the file. graph: what to write.
      order: operator ids in execution order; each node then has its `step`.
    """
    g = to_networkx(graph)
    for step, k in enumerate(order or ()):
        g.nodes[k]["step"] = step
    # Pairs, not a JSON object: its keys, tensor ids, would be read back as strings.
    g.graph["unread"] = json.dumps(list(g.graph["unread"].items()))
    for name in ("read_by_source", "inplace"):
        g.graph[name] = json.dumps(g.graph[name])
    with written_for_user(path) as beside:
        nx.write_graphml_xml(g, beside)


def read_graphml(path: str | os.PathLike[str]) -> TensorGraph:
    """Reads a tensor graph from GraphML: from `write_graphml`, or any that `from_networkx` takes.
    Raises InputError if the file cannot be read, is no GraphML, or holds no tensor graph.
    """
    try:
        data = io.BytesIO(unpacked(read_regular(path)))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        g = nx.read_graphml(data, force_multigraph=True)
    except (ParseError, nx.NetworkXError, ValueError, LookupError, RecursionError) as error:
        raise InputError(f"{path} is not GraphML: {error}") from error
    try:
        if "unread" in g.graph:
            g.graph["unread"] = dict(json.loads(g.graph["unread"]))
        for name in ("read_by_source", "inplace"):
            g.graph[name] = json.loads(g.graph.get(name, "[]"))
        return from_networkx(g)
    except (GraphError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path} holds no tensor graph: {error}") from error
