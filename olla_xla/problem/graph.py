"""The planning problem: operators of one computation and the tensors between them.

Sizes are bytes. Steps count operators of one computation: operator `order[t]` runs at step `t`.
Intervals are half-open: a tensor live over `[start, stop)` occupies memory at steps
`start, ..., stop - 1`.
"""

import dataclasses
import functools

from olla_xla.errors import GraphError


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
        tuple, get-tuple-element); it must still be in the schedule.
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
    """One value of a computation: the content of one buffer.

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
    """The operators and tensors of one computation, with all constraints on the operators' order.

    Operator ids are positions in XLA's own schedule, so `range(len(operators))` is XLA's order.

    Attributes:
      name: HLO computation name.
      operators: by id.
      tensors: by id.
      edges: precedence (u, v), u before v, from operands and control dependencies.
      alias_edges: precedence that keeps the lifetimes of aliased tensors disjoint: every reader of
        a tensor runs before the operator that overwrites its buffer (donation, in-place update,
        loop state).
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
        """Raises GraphError if a size is negative, an id is unknown, or the edges have a cycle."""
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
                raise GraphError(f"the in-place pair ({out}, {inp}) refers to an unknown tensor")
        self._check_acyclic()

    @functools.cached_property
    def predecessors(self) -> list[list[int]]:
        """Ids of each operator's direct predecessors: by edges, alias edges and its operands."""
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
        before = self.predecessors
        if all(not us or us[-1] < v for v, us in enumerate(before)):  # as XLA's own order has them
            return
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
            raise GraphError(f"graph {self.name} has a cycle through {', '.join(names)}")
