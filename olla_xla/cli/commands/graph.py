"""Orders the tensor graph of a module or of a GraphML file, and writes or draws it.

With --hlo it is the graph of the entry computation of a dumped, scheduled module, or of
--computation. With --graph it is a graph of your own: its nodes are operators, in the order in
which they run now, and its edges are tensors with an attribute `bytes`. Prints three lifetime peaks
in bytes: of the given order, of the best order found, and a lower bound for all orders. --out
writes GraphML with each operator's step, or draws a small graph (.png, .svg, .pdf).
"""

import math
from collections.abc import Sequence
from pathlib import Path

import networkx as nx
import numpy as np
from absl import flags

import olla_xla.schedule as schedule
import olla_xla.targets as targets
from olla_xla.check.graph import check_schedule
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.flags import Flags
from olla_xla.errors import InputError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.planner import graphs
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.whole_file import written_whole
from olla_xla.schedule.search import phases
from olla_xla.tools.to_networkx import read_graphml, to_networkx, write_graphml
from olla_xla.version import to_install

_PICTURES = (".png", ".svg", ".pdf")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla graph` in `values`."""
    define = Flags(values)
    shared.define_hlo(values)
    define.text("graph", None, "GraphML file with the graph, in place of --hlo.")
    define.text(
        "computation", None, "Name of the computation (default: the module's entry computation)."
    )
    shared.define_target(values, "Device for which XLA compiled the module of --hlo.")
    define.text("out", None, "File to write the graph to: .graphml, .png, .svg or .pdf.")
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Finds an order of a graph's operators; prints memory peaks, writes or draws it. Returns 0.
    Raises InputError if not exactly one of --hlo and --graph is given, or a flag is wrong.
    """
    options = shared.options(values)
    if (values.hlo is None) == (values.graph is None):
        raise InputError(
            "give either --hlo=FILE or --graph=FILE.graphml; see olla_xla graph --help"
        )
    files.check_writable(values.out)
    out = None if values.out is None else Path(values.out)
    if out is not None and out.suffix not in (".graphml", *_PICTURES):
        raise InputError(f"the name in --out={out} must end in .graphml or {', '.join(_PICTURES)}")
    graph = _given(values) if values.hlo is None else _of_module(values)
    arrays = GraphArrays.of(graph)
    starts = {"as given": np.arange(arrays.n), **schedule.candidates(arrays)}
    best = phases.search(
        arrays,
        starts,
        time_limit=options.time_limit or math.inf,
        step_limit=options.step_limit,
        seed=options.seed,
        bound_bytes=forced_live_bound(arrays)[0],
    )
    order = best.order.tolist()
    check_schedule(graph, order, best.peak_bytes)
    before = peak_bytes(arrays, starts["as given"])
    line = (
        f"{graph.name}: {arrays.n:,} operators, {arrays.m:,} tensors; peak {before:,} bytes in the "
        f"given order, {best.peak_bytes:,} bytes in the order found; every order needs at least "
        f"{best.bound_bytes:,} bytes"
    )
    shared.console().print(line, markup=False, soft_wrap=True)
    if out is not None:
        if out.suffix == ".graphml":
            write_graphml(out, graph, order)
        else:
            title = f"{graph.name}: peak {before:,} -> {best.peak_bytes:,} bytes"
            draw_graph(out, graph, order, title)
    return 0


def _given(values: flags.FlagValues) -> TensorGraph:
    graph = read_graphml(values.graph)
    if not graph.operators:
        raise InputError(f"{values.graph} has no operators")
    return graph


def _of_module(values: flags.FlagValues) -> TensorGraph:
    module = shared.scheduled_module(values, values.hlo).data
    by_name = {graph.name: graph for graph in graphs(module, targets.TARGETS[values.target])}
    name = values.computation or list(by_name)[-1]
    if name not in by_name:
        raise InputError(f"the module has no computation {name}; it has {', '.join(by_name)}")
    return by_name[name]


MOST_OPERATORS = 300
"""Operators of the largest graph that is drawn; more cannot be told apart in a picture."""

_STYLES = {"tensor": "solid", "control": "dotted", "alias": "dashed"}


def draw_graph(path: Path, graph: TensorGraph, order: Sequence[int], title: str) -> None:
    """Draws a graph to a file; the suffix of its name says whether PNG, SVG or PDF.

    Operators stand in columns by their depth and are labelled with their step in `order`. The width
    of a tensor's line grows with the square root of its bytes. Control edges are dotted, alias
    edges dashed. Raises InputError if the graph has more than 300 operators, matplotlib is missing
    or the file cannot be written.
    """
    if len(graph.operators) > MOST_OPERATORS:
        raise InputError(
            f"{graph.name} has {len(graph.operators):,} operators, too many for a picture (at most "
            f"{MOST_OPERATORS}); give --out=FILE.graphml instead"
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
