"""The planning problem and its answer: TensorGraph, Schedule, Placement, Plan.

Sizes are bytes. Steps count operators of one computation: operator `order[t]` runs at step `t`.
Intervals are half-open: a tensor live over `[start, stop)` occupies memory at steps
`start, ..., stop - 1`. This module imports nothing else of olla_xla but its errors, and plan files
when one is saved or loaded.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from olla_xla.errors import GraphError

__all__ = ["Operator", "Placement", "Plan", "Schedule", "Tensor", "TensorGraph"]

Schedule = Sequence[int]
"""A permutation of the operator ids of one TensorGraph, in execution order."""

CloneRecord = tuple[str, str, tuple[str, ...], tuple[tuple[str, int], ...]]
"""One instruction computed again; see `Plan.clones`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """One instruction of a scheduled computation.

    Attributes:
      name: HLO instruction name, unique in the module.
      opcode: HLO opcode as XLA spells it, e.g. "fusion".
      transient_bytes: bytes live only while the operator runs, beyond its own tensors: what the
        peak of the computations it calls adds to them. Negative where its operands and results
        never live together inside.
      free: True when the operator neither reads nor writes memory (parameter, constant, bitcast,
        tuple, get-tuple-element); it must still stand in the schedule.
      location: "file.py:line" of the user's source, or "".
      op_name: the JAX op name, or "".
    """

    name: str
    opcode: str
    transient_bytes: int = 0
    free: bool = False
    location: str = ""
    op_name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """One value that occupies device memory.

    Attributes:
      name: defining instruction, with a tuple index when it has one: "fusion.3{1}".
      bytes: size on the device (0 for host memory).
      source: id of the operator that defines it.
      sinks: ids of the operators that read or forward it, ascending, without duplicates.
      buffer: tensors with the same buffer id share one piece of memory by XLA's alias rules
        (donation, in-place updates, loop state); the graph's `alias_edges` keep their live ranges
        from overlapping, but for the one step at which the later is made from the earlier.
      live_in: live from step 0 on, whatever its source's place (parameters).
      live_out: live to the last step inclusive (outputs; non-donated arguments; constants).
      category: "argument", "output", "constant" or "temporary".
    """

    name: str
    bytes: int
    source: int
    sinks: tuple[int, ...]
    buffer: int
    live_in: bool = False
    live_out: bool = False
    category: str = "temporary"


@dataclasses.dataclass(frozen=True)
class TensorGraph:
    """The tensor DAG of one computation.

    Operator ids are positions in XLA's own schedule, so `range(len(operators))` is XLA's order.

    Attributes:
      name: HLO computation name.
      operators: by id.
      tensors: by id.
      edges: precedence (u, v), u before v, from operands and control dependencies.
      alias_edges: precedence that keeps aliased tensors apart: every reader of a tensor runs
        before the operator that overwrites its buffer (donation, in-place update, loop state).
      inplace: pairs (output tensor, input tensor): when the input dies at the output's source, XLA
        may give the output the input's memory. Both have the same size.
    """

    name: str
    operators: tuple[Operator, ...]
    tensors: tuple[Tensor, ...]
    edges: tuple[tuple[int, int], ...] = ()
    alias_edges: tuple[tuple[int, int], ...] = ()
    inplace: tuple[tuple[int, int], ...] = ()

    def validate(self) -> None:
        """Raises GraphError, naming operators, on negative sizes, unknown ids or a cycle."""
        n, m = len(self.operators), len(self.tensors)
        for tensor in self.tensors:
            if not 0 <= tensor.source < n:
                readers = [self.operators[s].name for s in tensor.sinks if 0 <= s < n][:5]
                raise GraphError(
                    f"tensor {tensor.name}, read by {', '.join(readers) or 'no operator'}, has no "
                    f"source operator in {self.name}"
                )
            if tensor.bytes < 0:
                maker = self.operators[tensor.source].name
                raise GraphError(
                    f"tensor {tensor.name}, made by {maker}, has negative size {tensor.bytes}"
                )
            for sink in tensor.sinks:
                if not 0 <= sink < n:
                    raise GraphError(f"tensor {tensor.name} is read by unknown operator {sink}")
        for u, v in (*self.edges, *self.alias_edges):
            if not (0 <= u < n and 0 <= v < n):
                raise GraphError(f"edge ({u}, {v}) names an operator that is not in {self.name}")
        for out, inp in self.inplace:
            if not (0 <= out < m and 0 <= inp < m):
                raise GraphError(f"in-place pair ({out}, {inp}) names an unknown tensor")
        self._check_acyclic()

    def predecessors(self) -> list[list[int]]:
        """All direct predecessors of each operator (edges, alias edges, tensor sources)."""
        before: list[set[int]] = [set() for _ in self.operators]
        for u, v in (*self.edges, *self.alias_edges):
            if u != v:
                before[v].add(u)
        for tensor in self.tensors:
            for sink in tensor.sinks:
                if sink != tensor.source:
                    before[sink].add(tensor.source)
        return [sorted(s) for s in before]

    def _check_acyclic(self) -> None:
        before = self.predecessors()
        after: list[list[int]] = [[] for _ in self.operators]
        waiting = [len(b) for b in before]
        for v, us in enumerate(before):
            for u in us:
                after[u].append(v)
        ready = [v for v, k in enumerate(waiting) if k == 0]
        done = 0
        while ready:
            u = ready.pop()
            done += 1
            for v in after[u]:
                waiting[v] -= 1
                if waiting[v] == 0:
                    ready.append(v)
        if done < len(waiting):
            names = [self.operators[v].name for v, k in enumerate(waiting) if k > 0][:5]
            raise GraphError(f"cycle in {self.name} through {', '.join(names)}")


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where every tensor of a module lies.

    Attributes:
      total_bytes: size of the one arena that holds everything.
      offsets: tensor name -> (offset, size) in bytes; the tensor occupies [offset, offset + size).
    """

    total_bytes: int
    offsets: Mapping[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A schedule for every planned computation of one module, with what is known about it.

    "predicted" figures come from our simulation of XLA's assignment rule, "assigned" ones from
    XLA's buffer assignment. All totals are arguments + outputs - aliases + temp, in bytes.

    Attributes:
      module: HLO module name.
      fingerprint: digest of the module without its schedule; a plan fits only that module.
      results: digest of the module's results as expressions of its arguments (olla_xla.referee);
        "" until the plan is about to be compiled.
      target: "cpu" or "cuda".
      order: computation name -> instruction names in execution order.
      aliases: fusion name -> results that are bound to write over a dying operand, as (index of the
        result, operand number).
      clones: what is computed again, in execution order, as (name of the clone, name of its
        original, names of its operands, (reader, operand number) of those of the module's own
        instructions that read it instead). `order` and all figures but XLA's are of the module
        with the clones in it; the fingerprint is of the module without.
      step_seconds: predicted time of one run without clones; 0 where it was not asked for.
      added_seconds: predicted time that the clones add. least_added_seconds: no choice of clones
        that the integer programme knows adds less at the same peak; 0 where that is not known.
      moved_bytes, added_moved_bytes: bytes moved to and from memory, likewise.
      offsets: tensor name -> (offset, size) in one arena of `predicted_bytes` or less.
      xla_bytes: total of XLA's own order: assigned where that was compiled, else predicted.
      xla_predicted_bytes: predicted total of XLA's own order.
      predicted_bytes: predicted total of this order.
      peak_bytes: lifetime peak of this order (in-place reuse counted).
      least_peak_bytes: the least lifetime peak of any order that was found; this order trades some
        of it where XLA's assignment rule makes that pay.
      lower_bound_bytes: no order of this module has a smaller lifetime peak or total.
      assigned_bytes: XLA's total for this order, once compiled; None before.
      status: "optimal" (the predicted total is within the tolerance of the bound), "feasible" (a
        limit or stall stopped the search), or "xla" (XLA's own order is kept).
      stopped_by: "bound", "time_limit", "step_limit", "stall" or "no_gain".
      source: name of the candidate that won, e.g. "xla", "list", "search".
      candidates: candidate name -> (predicted bytes, lifetime peak bytes).
      seconds: planning time.
      steps: search steps taken.
      seed: seed of the search.
      time_limit: seconds allowed. step_limit: steps allowed, or None.
      tolerance: relative gap to the bound at which the search was content.
    """

    module: str
    fingerprint: str
    target: str
    order: Mapping[str, tuple[str, ...]]
    offsets: Mapping[str, tuple[int, int]]
    xla_bytes: int
    xla_predicted_bytes: int
    predicted_bytes: int
    peak_bytes: int
    least_peak_bytes: int
    lower_bound_bytes: int
    assigned_bytes: int | None = None
    results: str = ""
    status: str = "feasible"
    stopped_by: str = "no_gain"
    source: str = "xla"
    candidates: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    aliases: Mapping[str, tuple[tuple[tuple[int, ...], int], ...]] = dataclasses.field(
        default_factory=dict
    )
    clones: tuple[CloneRecord, ...] = ()
    step_seconds: float = 0.0
    added_seconds: float = 0.0
    least_added_seconds: float = 0.0
    moved_bytes: int = 0
    added_moved_bytes: int = 0
    seconds: float = 0.0
    steps: int = 0
    seed: int = 0
    time_limit: float = 0.0
    step_limit: int | None = None
    tolerance: float = 0.0

    @property
    def gap(self) -> float:
        """Lifetime gap, (least peak - bound) / bound: how far any order's peak could still fall."""
        return (self.least_peak_bytes - self.lower_bound_bytes) / max(self.lower_bound_bytes, 1)

    @property
    def loss(self) -> float:
        """Assignment loss, (total - least peak) / least peak: what XLA's placing rule costs.

        Of the assigned total where it is known, else of the predicted one.
        """
        total = self.predicted_bytes if self.assigned_bytes is None else self.assigned_bytes
        return (total - self.least_peak_bytes) / max(self.least_peak_bytes, 1)

    @property
    def overhead(self) -> float:
        """Predicted time that the clones add, as a part of the step's."""
        return self.added_seconds / self.step_seconds if self.step_seconds else 0.0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a plan file, versioned JSON. Raises PlanFileError if that fails."""
        from olla_xla import planfile

        planfile.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads a plan file. Raises PlanFileError if it is not one, or of another version."""
        from olla_xla import planfile

        return planfile.load(path)
