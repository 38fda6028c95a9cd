"""Draws a small tensor graph: operators in columns by depth, large tensors as thick lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import networkx as nx

from olla_xla.errors import InputError
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.whole_file import written_whole
from olla_xla.tools.to_networkx import to_networkx
from olla_xla.version import to_install

MOST_OPERATORS = 300
"""Operators of the largest graph that is drawn; more cannot be told apart in a picture."""

_STYLES = {"tensor": "solid", "control": "dotted", "alias": "dashed"}


def draw_graph(path: Path, graph: TensorGraph, order: Sequence[int], title: str) -> None:
    """Draws a graph to a file; the suffix of its name says whether PNG, SVG or PDF.

    Operators stand in columns by their depth and are labelled with their step in `order`. The width
    of a tensor's line grows with the square root of its bytes. Control edges are dotted, alias
    edges dashed.

    Raises:
      InputError: the graph is too large, matplotlib is missing or the file cannot be written.
    """
    if len(graph.operators) > MOST_OPERATORS:
        raise InputError(
            f"{graph.name} has {len(graph.operators):,} operators, too many for a picture (at most "
            f"{MOST_OPERATORS}); write GraphML instead"
        )
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise InputError(f"pictures need matplotlib; {to_install('figures')}") from error
    g = to_networkx(graph)
    levels = list(nx.topological_generations(g))
    for depth, nodes in enumerate(levels):
        for k in nodes:
            g.nodes[k]["depth"] = depth
    steps = {k: str(step) for step, k in enumerate(order)}
    largest = max((t.bytes for t in graph.tensors), default=0) or 1
    height = max(map(len, levels), default=1)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "olla_xla"}):
        figure = Figure(
            figsize=(max(4.0, 0.6 * len(levels)), max(3.0, 0.45 * height)), layout="constrained"
        )
        axes = figure.subplots()
        places = nx.multipartite_layout(g, subset_key="depth")
        colors = ["#d0d7de" if o.free else "#9ec5e8" for o in graph.operators]
        nx.draw_networkx_nodes(g, places, ax=axes, node_size=130, node_color=colors)
        nx.draw_networkx_labels(g, places, labels=steps, ax=axes, font_size=6)
        for kind, style in _STYLES.items():
            mine = [(u, v, key, d) for u, v, key, d in g.edges(keys=True, data=True)
                    if d["kind"] == kind]  # fmt: skip
            widths = [0.4 + 3 * math.sqrt(d.get("bytes", 0) / largest) for *_, d in mine]
            nx.draw_networkx_edges(
                g, places, ax=axes, edgelist=[(u, v) for u, v, *_ in mine], width=widths,
                style=style, arrowsize=6, node_size=130, edge_color="#57606a",
                connectionstyle="arc3,rad=0.08",
            )  # fmt: skip
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
        try:
            with written_whole(path) as beside:
                figure.savefig(beside, dpi=150, metadata=metadata)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot write {path}: {error}") from error
