"""The lower bound as a list of tensors: what must be in memory at one operator in every order.

While an operator runs, whatever the order, a tensor is live if what makes it is the operator or
comes before it in every order, and if the operator or something after it reads the tensor.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from hlo.module import Computation
from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.live_tensor import Describer, LiveTensor
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.lower import LoweredComputation
from olla_xla.memory.module_state import PlannedModule
from olla_xla.problem.graph import TensorGraph

__all__ = ["BoundView", "bound_view"]


@dataclasses.dataclass(frozen=True)
class BoundView:
    """A lower bound on the memory of every order of a module; sizes in bytes.

    Attributes:
      bytes: no order needs less.
      operator: the one at which that holds. operator_line: the user's line of it, or "".
      tensors: what must be in memory while it runs, largest first.
      taken_over_bytes: what its results may at most write over; `bytes` is the tensors' sum less
        this.
    """

    bytes: int
    operator: str
    operator_line: str
    tensors: tuple[LiveTensor, ...]
    taken_over_bytes: int

    def by_category(self) -> dict[Category, int]:
        """Bytes of the tensors of each category, in the order of `Category`."""
        sums: collections.Counter[Category] = collections.Counter()
        for tensor in self.tensors:
            sums[tensor.category] += tensor.bytes
        return {category: sums[category] for category in Category if category in sums}

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "bytes": self.bytes,
            "operator": self.operator,
            "operator_line": self.operator_line,
            "taken_over_bytes": self.taken_over_bytes,
            "categories": {str(c): size for c, size in self.by_category().items()},
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }


def bound_view(planned: PlannedModule, describer: Describer | None = None) -> BoundView:
    """The bound of a module, and what it is made of.

    Args:
      planned: the module. describer: of its values, where one is there already.
    """
    describer = describer or Describer(planned.dataflow, planned.target)
    lowered, bound, at = None, 0, -1
    for computation in planned.module.control_computations:
        lowered, bound, at = _bounded(planned, computation)
    if lowered is None or at < 0:
        return BoundView(0, "", "", (), 0)
    values = planned.dataflow.values
    graph, steps = lowered.graph, len(lowered.graph.operators)
    tensors = []
    for k in _forced(graph, at):
        t = graph.tensors[k]
        last = max((t.source, *t.sinks))
        span = (0 if t.live_in else t.source, steps if t.live_out else last + 1)
        reader = None if t.live_out else lowered.instructions[last]
        tensors.append(describer.tensor(values[lowered.values[k]], span, reader))
    running = lowered.instructions[at]
    if inside := graph.operators[at].transient_bytes:
        origin = describer.maker(running)
        tensors.append(
            LiveTensor(
                running.name,
                inside,
                Category.WORKSPACE,
                op_name=origin.op_name,
                line=origin.line,
                via="what it calls holds this inside",
                why="" if origin.line else origin.why,
            )
        )
    tensors = [t for t in tensors if t.bytes]
    return BoundView(
        bytes=bound,
        operator=running.name,
        operator_line=describer.line(running),
        tensors=tuple(sorted(tensors, key=lambda t: (-t.bytes, t.name))),
        taken_over_bytes=sum(t.bytes for t in tensors) - bound,
    )


def _bounded(
    planned: PlannedModule, computation: Computation
) -> tuple[LoweredComputation, int, int]:
    """(graph, bound, operator at which it is attained) of a computation, its callees' known."""
    lowered = planned.lowered(computation)
    peak = peak_bytes(lowered.graph, range(len(lowered.graph.operators)))
    calls = any(i.called_control for i in lowered.instructions)
    if calls:
        lowered = planned.bounded(computation)
    bound, at = forced_live_bound(lowered.graph)
    planned.peaks[computation] = peak
    planned.bounds[computation] = min(bound, peak)
    return lowered, min(bound, peak), at


def _forced(graph: TensorGraph, at: int) -> list[int]:
    """The tensors that are live while an operator runs, in every order."""
    before = graph.predecessors()
    after: list[list[int]] = [[] for _ in before]
    for v, earlier in enumerate(before):
        for u in earlier:
            after[u].append(v)
    ancestors, descendants = _reached(before, at), _reached(after, at)
    return [
        k
        for k, t in enumerate(graph.tensors)
        if (t.live_in or t.source in ancestors)
        and (t.live_out or t.source == at or any(s in descendants for s in t.sinks))
    ]


def _reached(neighbours: list[list[int]], start: int) -> set[int]:
    found, edge = {start}, [start]
    while edge:
        for n in neighbours[edge.pop()]:
            if n not in found:
                found.add(n)
                edge.append(n)
    return found
