"""The lower bound as a list of tensors: what must be in memory at one operator in every order.

While an operator runs, a tensor is live in every order if its source is the operator or one of its
ancestors, and one of its readers is the operator or one of its descendants. A minimum cut proves
more (`memory.mincut`): the tensors are then those of an order with the least live bytes there. A
loop's body has a bound of its own.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hlo.module import Computation
from olla_xla.analysis.category import Category
from olla_xla.analysis.live_tensor import Describer, LiveTensor, by_category
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes, timeline
from olla_xla.memory.lower import LoweredComputation
from olla_xla.memory.mincut import closure, least_live
from olla_xla.memory.module_state import PlannedModule
from olla_xla.problem.graph import TensorGraph

_CUTS = 1_000_000
"""Most operators at which a cut is made, times the graph's size: it takes seconds at most."""


@dataclasses.dataclass(frozen=True)
class BoundView:
    """A lower bound on the bytes that a module needs in any order, and the tensors that prove it.

    Attributes:
      bytes: no order needs less. operator: the bound is on memory while it runs; "" for none.
      operator_line: the user's line of it, or "".
      tensors: what must be in memory while it runs, largest first.
      taken_over_bytes: the most bytes of operands that its results may overwrite; `bytes` is the
        tensors' sum less this.
    """

    bytes: int
    operator: str
    operator_line: str
    tensors: tuple[LiveTensor, ...]
    taken_over_bytes: int

    def by_category(self) -> dict[Category, int]:
        """Returns bytes of the bound's `tensors` by category, in the order of `Category`."""
        return by_category(self.tensors)

    def to_dict(self) -> dict[str, Any]:
        """Returns the bound's fields, and its bytes by category, as a dict for JSON."""
        return {
            "bytes": self.bytes,
            "operator": self.operator,
            "operator_line": self.operator_line,
            "taken_over_bytes": self.taken_over_bytes,
            "categories": {str(c): size for c, size in self.by_category().items()},
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }


def bound_view(planned: PlannedModule, describer: Describer | None = None) -> BoundView:
    """Finds a lower bound on a module's memory in any order, and the tensors that prove it.
    Stores each computation's bound, and its order's peak, in `planned.bounds` and `planned.peaks`.
    """
    describer = describer or Describer(planned.dataflow, planned.target)
    bounds: dict[Computation, _Bounded] = {}
    entry: _Bounded | None = None
    for computation in planned.module.control_computations:
        entry = bounds[computation] = _bounded(planned, computation, bounds)
    if entry is None or entry.at < 0:
        return BoundView(0, "", "", (), 0)
    values, lowered = planned.dataflow.values, entry.lowered
    steps, running = len(lowered.graph.operators), lowered.instructions[entry.at]
    tensors, buffers = [], set[int]()
    for k in entry.live:
        value = values[lowered.values[k]]
        if value.buffer in buffers:  # written over what is listed
            continue
        buffers.add(value.buffer)
        t = lowered.graph.tensors[k]
        last = max((t.source, *t.sinks))
        span = (0 if t.live_in else t.source, steps if t.live_out else last + 1)
        reader = None if t.live_out else lowered.instructions[last]
        tensors.append(describer.tensor(value, span, reader))
    for k in entry.inside:
        if values[k].buffer not in buffers:
            buffers.add(values[k].buffer)
            tensors.append(describer.tensor(values[k], (entry.at, entry.at + 1), running))
    if entry.rest > 0:
        origin = describer.maker(running)
        tensors.append(
            LiveTensor(
                running.name,
                entry.rest,
                Category.WORKSPACE,
                op_name=origin.op_name,
                line=origin.line,
                via="what it calls holds this inside",
                why="" if origin.line else origin.why,
            )
        )
    tensors = [t for t in tensors if t.bytes]
    return BoundView(
        bytes=entry.bytes,
        operator=running.name,
        operator_line=describer.line(running),
        tensors=tuple(sorted(tensors, key=lambda t: (-t.bytes, t.name))),
        taken_over_bytes=sum(t.bytes for t in tensors) - entry.bytes,
    )


class _Bounded(NamedTuple):
    """The lower bound on the bytes that one computation needs in any order.

    Attributes:
      lowered: its graph; operators that call computations need these computations' bounds.
      bytes: the bound. at: number of the operator at which so many bytes are live, or -1.
      live: numbers of the graph's tensors live at that operator. inside: ids of values live then in
        computations that it calls. rest: further bytes that it needs while it runs.
    """

    lowered: LoweredComputation
    bytes: int
    at: int
    live: list[int]
    inside: list[int]
    rest: int


def _bounded(
    planned: PlannedModule, computation: Computation, known: Mapping[Computation, _Bounded]
) -> _Bounded:
    lowered = planned.lowered(computation)
    arrays = GraphArrays.of(lowered.graph)
    peak = peak_bytes(arrays, np.arange(arrays.n))
    if any(i.called_control for i in lowered.instructions):
        lowered = planned.lowered(computation, planned.bounds)
        arrays = GraphArrays.of(lowered.graph)
    bound, at, before = _largest(arrays)
    planned.peaks[computation] = peak
    planned.bounds[computation] = min(bound, peak)
    live = [] if at < 0 else _live(arrays, lowered.graph, at, before)
    inside, rest = [], 0
    if at >= 0:
        rest = lowered.graph.operators[at].transient_bytes
        called = [known[c] for c in lowered.instructions[at].called_control if c in known]
        if called and rest > 0:
            values = planned.dataflow.values
            callee = max(called, key=lambda b: b.bytes)
            here = {values[lowered.values[k]].buffer for k in live}
            ids = [callee.lowered.values[k] for k in callee.live] + callee.inside
            inside = [k for k in ids if values[k].buffer not in here]
            rest -= sum(values[k].bytes for k in inside)
    return _Bounded(lowered, min(bound, peak), at, live, inside, rest)


def _largest(arrays: GraphArrays) -> tuple[int, int, np.ndarray | None]:
    """The largest lower bound on a graph's peak: (bytes, the operator that needs them, before).
    `before`: None where so much is live at the operator in every order; else bool [n], operators
    that run earlier in the minimum cut that proves the bound.
    """
    bound, at = forced_live_bound(arrays)
    before: np.ndarray | None = None
    live = timeline(arrays, np.arange(arrays.n))
    for step in np.argsort(-live, kind="stable")[: max(_CUTS // max(arrays.n, 1), 1)].tolist():
        if live[step] <= bound:
            break
        cut = least_live(arrays, step)
        if cut.bytes > bound:
            bound, at, before = cut.bytes, step, cut.before
    return bound, at, before


def _live(arrays: GraphArrays, graph: TensorGraph, at: int, cut: np.ndarray | None) -> list[int]:
    """Numbers of the tensors whose bytes add up to the lower bound at operator `at`.
    `cut`: bool [n], operators that run earlier in the minimum cut that gives the bound; None where
    the bound is what is live at the operator in every order.
    """
    alone = np.arange(arrays.n) == at
    before = (closure(alone, arrays, forward=False) if cut is None else cut) | alone
    after = closure(alone, arrays, forward=True) if cut is None else ~cut
    return [
        k
        for k, t in enumerate(graph.tensors)
        if (t.live_in or before[t.source])
        and (t.live_out or t.source == at or any(after[s] for s in t.sinks))
    ]
