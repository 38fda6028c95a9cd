"""Tensor graphs as GraphML, which yEd, Gephi and networkx read.

GraphML attributes are numbers, booleans or strings. So the graph attributes `unread`,
`read_by_source` and `inplace` are JSON in strings.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from xml.etree.ElementTree import ParseError

import networkx as nx

from hlo.files import read_regular, unpacked
from olla_xla.errors import GraphError, InputError
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.whole_file import written_whole
from olla_xla.tools.to_networkx import from_networkx, to_networkx


def write_graphml(
    path: str | os.PathLike[str], graph: TensorGraph, order: Sequence[int] | None = None
) -> None:
    """Writes a tensor graph as GraphML.

    Args:
      path: of the file.
      graph: what to write.
      order: operator ids in execution order; each node then has its `step`.

    Raises:
      InputError: the file cannot be written.
    """
    g = to_networkx(graph)
    for step, k in enumerate(order or ()):
        g.nodes[k]["step"] = step
    # Pairs, not a JSON object: its keys, tensor ids, would be read back as strings.
    g.graph["unread"] = json.dumps(list(g.graph["unread"].items()))
    for name in ("read_by_source", "inplace"):
        g.graph[name] = json.dumps(g.graph[name])
    try:
        with written_whole(path) as beside:
            nx.write_graphml_xml(g, beside)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def read_graphml(path: str | os.PathLike[str]) -> TensorGraph:
    """Reads a tensor graph from GraphML: from `write_graphml`, or any that `from_networkx` takes.

    Raises:
      InputError: the file cannot be read, is no GraphML, or holds no tensor graph.
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
