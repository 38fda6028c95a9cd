"""Orders the tensor graph of a module or of a GraphML file, and writes or draws it.

With --hlo it is the graph of the entry computation of a dumped, scheduled module, or of
--computation. With --graph it is a graph of your own: its nodes are operators, in the order in
which they run now, and its edges are tensors with an attribute `bytes`. Prints three lifetime peaks
in bytes: of the given order, of the best order found, and a lower bound for all orders. --out
writes GraphML with each operator's step, or draws a small graph (.png, .svg, .pdf).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from absl import flags

import olla_xla.schedule as schedule
import olla_xla.targets as targets
from hlo.dumps.read import read_module
from hlo.module import HloError
from olla_xla.check.graph import check_schedule
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.graph_drawing import draw_graph
from olla_xla.errors import InputError, ModuleFormatError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.planner import graphs
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.search import phases
from olla_xla.tools.graphml import read_graphml, write_graphml

_PICTURES = (".png", ".svg", ".pdf")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla graph`."""
    shared.define_hlo(values)
    flags.DEFINE_string("graph", None, "A GraphML file to read.", flag_values=values)
    flags.DEFINE_string(
        "computation",
        None,
        "Computation of the module to write; by default its entry computation.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "target", "cpu", list(targets.TARGETS), "Device for which XLA compiled the module.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_string(
        "out", None, "File for the graph: .graphml, .png, .svg or .pdf.", flag_values=values
    )
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Orders the graph, prints its peaks before and after, and draws it to --out. Returns 0."""
    options = shared.options(values)
    if (values.hlo is None) == (values.graph is None):
        raise InputError(
            "give either --hlo=FILE or --graph=FILE.graphml; see olla_xla graph --help"
        )
    files.check_writable(values.out)
    out = None if values.out is None else Path(values.out)
    if out is not None and out.suffix not in (".graphml", *_PICTURES):
        raise InputError(f"--out={out}: its name must end in .graphml or {', '.join(_PICTURES)}")
    graph = _given(values) if values.hlo is None else _of_module(values)
    arrays = GraphArrays.of(graph)
    starts = {"as given": np.arange(arrays.n), **schedule.candidates(arrays)}
    found = phases.search(
        arrays,
        starts,
        time_limit=options.time_limit or math.inf,
        step_limit=options.step_limit,
        seed=options.seed,
        bound_bytes=forced_live_bound(arrays)[0],
    )
    order = found.order.tolist()
    check_schedule(graph, order, found.peak_bytes)
    before = peak_bytes(arrays, starts["as given"])
    line = (
        f"{graph.name}: {arrays.n:,} operators, {arrays.m:,} tensors; peak {before:,} bytes as "
        f"given, {found.peak_bytes:,} in the order found, no order below {found.bound_bytes:,}"
    )
    shared.console().print(line, markup=False, soft_wrap=True)
    if out is not None:
        if out.suffix == ".graphml":
            write_graphml(out, graph, order)
        else:
            title = f"{graph.name}: peak {before:,} -> {found.peak_bytes:,} bytes"
            draw_graph(out, graph, order, title)
    return 0


def _given(values: flags.FlagValues) -> TensorGraph:
    graph = read_graphml(values.graph)
    if not graph.operators:
        raise InputError(f"{values.graph} has no operators")
    return graph


def _of_module(values: flags.FlagValues) -> TensorGraph:
    try:
        module = read_module(values.hlo, targets.TARGETS[values.target])
    except HloError as error:
        raise ModuleFormatError(str(error)) from error
    found = {graph.name: graph for graph in graphs(module, targets.TARGETS[values.target])}
    name = values.computation or list(found)[-1]
    if name not in found:
        raise InputError(f"--computation={name} is not in the module; it has {', '.join(found)}")
    return found[name]
