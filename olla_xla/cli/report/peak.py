"""What lives at the peak of a scheduled module: the largest tensors and where they come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes
from olla_xla.memory.analysis.lines import short_line
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import live_at, timeline
from olla_xla.problem.graph import TensorGraph

__all__ = ["LiveTensor", "Peak", "find_peak", "peak_table", "short_location", "short_operation"]


@dataclasses.dataclass(frozen=True)
class LiveTensor:
    """A tensor that is live at the peak.

    Attributes:
      name: defining instruction, with a tuple index when it has one. bytes: its size.
      category: "argument", "output" or "temporary". computation: where it is defined.
      location: "file.py:line" of the user's source, or "". op_name: JAX's name of it, or "".
    """

    name: str
    bytes: int
    category: str
    computation: str
    location: str
    op_name: str


@dataclasses.dataclass(frozen=True)
class Peak:
    """The step of the entry computation at which the most bytes are live.

    Attributes:
      step: counted from 0. steps: number of steps. operator: name of the one that runs there.
      bytes: the lifetime peak. tensors: what is live there, largest first.
    """

    step: int
    steps: int
    operator: str
    bytes: int
    tensors: tuple[LiveTensor, ...]


def find_peak(
    graphs: Sequence[TensorGraph], callees: Mapping[str, Sequence[str]] | None = None
) -> Peak:
    """The peak of a scheduled module.

    Args:
      graphs: of its computations, the entry last, operators in the order to be looked at;
        buffers are numbered throughout the module.
      callees: operator name -> names of the computations that run inside it. What is live at their
        peaks is counted in where such an operator runs at the peak.
    """
    by_name = {graph.name: graph for graph in graphs}
    entry = graphs[-1]
    order = np.arange(len(entry.operators))
    live = timeline(GraphArrays.of(entry), order)
    step = int(live.argmax()) if len(live) else 0
    found: dict[int, LiveTensor] = {}
    _collect(entry, step, by_name, callees or {}, found)
    return Peak(
        step=step,
        steps=len(order),
        operator=entry.operators[step].name if len(order) else "",
        bytes=int(live.max(initial=0)),
        tensors=tuple(sorted(found.values(), key=lambda t: (-t.bytes, t.name))),
    )


def _collect(
    graph: TensorGraph,
    step: int,
    by_name: Mapping[str, TensorGraph],
    callees: Mapping[str, Sequence[str]],
    found: dict[int, LiveTensor],
) -> None:
    """Adds what is live at a step, by buffer: loop state comes once, by its caller's name."""
    if not graph.operators:
        return
    for k in live_at(graph, np.arange(len(graph.operators)), step):
        tensor = graph.tensors[k]
        source = graph.operators[tensor.source]
        found.setdefault(
            tensor.buffer,
            LiveTensor(
                tensor.name,
                tensor.bytes,
                tensor.category,
                graph.name,
                source.location,
                source.op_name,
            ),
        )
    inner = [by_name[c] for c in callees.get(graph.operators[step].name, ()) if c in by_name]
    lines = [timeline(g, np.arange(len(g.operators))) for g in inner]
    if lines:
        largest = max(range(len(lines)), key=lambda k: lines[k].max(initial=0))
        _collect(inner[largest], int(lines[largest].argmax()), by_name, callees, found)


def peak_table(peak: Peak, count: int = 10) -> Table:
    """The `count` largest tensors live at the peak."""
    shown = peak.tensors[:count]
    title = (
        f"{len(shown)} largest of {len(peak.tensors)} tensors live at the peak, "
        f"{megabytes(peak.bytes)} MB at step {peak.step} of {peak.steps} ({peak.operator})"
    )
    rows = [
        (
            megabytes(t.bytes, 2),
            t.category,
            _what(t),
        )
        for t in shown
    ]
    return Table(("MB", "category:", "what:"), rows, title)


def _what(tensor: LiveTensor) -> str:
    """An argument's path, or the user's line; else the operation, or the instruction's name."""
    if tensor.category == "argument":
        return tensor.op_name or tensor.name
    if tensor.location:
        return short_line(tensor.location)
    return short_operation(tensor.op_name) if tensor.op_name else tensor.name


def short_location(location: str) -> str:
    """The location as `short_line` has it, "-" if there is none."""
    return short_line(location) or "-"


def short_operation(op_name: str) -> str:
    """The last parts of JAX's op name: what was called, and in which layer."""
    return "/".join(op_name.split("/")[-3:]) or "-"
