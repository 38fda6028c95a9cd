"""Which value has which bytes of memory, and from when to when: XLA's buffer assignment in time.

Steps are positions in the whole schedule, with what a loop or call runs in front of it, once.
Intervals are half-open. Where a value takes over the memory of a dying one, the memory is the new
one's from the step that makes it, so no byte belongs to two values at any step.

Two sources: XLA's own assignment, where there is one, else its simulation.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hlo.buffer_assignment import BufferAssignment
from hlo.module import Instruction
from hlo.values import Value
from olla_xla.memory.assignment.model import Assignment
from olla_xla.memory.module_state import PlannedModule


@dataclasses.dataclass(frozen=True)
class OccupiedAllocation:
    """One allocation of XLA's buffer assignment.

    Attributes:
      bytes: its size. base: its address in a space in which all allocations lie end to end.
      kind: "argument", "output" or "temp".
      parameter: (number, index) of the argument that it holds on entry, or None.
    """

    bytes: int
    base: int
    kind: str
    parameter: tuple[int, tuple[int, ...]] | None


@dataclasses.dataclass(frozen=True)
class Occupancy:
    """Where each value of a module lies in memory (allocation, offset), and during which steps.

    Attributes:
      values: the values; the arrays below are indexed by position in this tuple.
      allocation: int64 [values], which of `allocations`. offset: int64 [values], bytes within it.
      bytes: int64 [values]. start, stop: int64 [values], half-open steps of the memory's use.
      allocations: those that count for the total.
      instructions: the one that runs at each step, or None.
      total_bytes: arguments + outputs - aliases + temp.
      assigned: True: by XLA's own assignment; False: simulated.
    """

    values: tuple[Value, ...]
    allocation: np.ndarray
    offset: np.ndarray
    bytes: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    allocations: tuple[OccupiedAllocation, ...]
    instructions: tuple[Instruction | None, ...]
    total_bytes: int
    assigned: bool

    @property
    def steps(self) -> int:
        """The number of steps of the schedule."""
        return len(self.instructions)

    def in_use(self, weights: np.ndarray | None = None) -> np.ndarray:
        """int64 [steps]: bytes in use, or only of values whose weight (int64 [values]) is 1."""
        sizes = self.bytes if weights is None else self.bytes * weights
        change = np.zeros(self.steps + 1, np.int64)
        np.add.at(change, self.start, sizes)
        np.subtract.at(change, self.stop, sizes)
        return np.cumsum(change)[: self.steps]

    def at(self, step: int) -> np.ndarray:
        """Positions in `values`, int64, ascending, of the values that are in memory at a step."""
        return np.flatnonzero((self.start <= step) & (step < self.stop))


def occupancy(planned: PlannedModule, assignment: BufferAssignment | None = None) -> Occupancy:
    """The memory that each value of a module has in the module's current orders.

    Args:
      planned: the module. assignment: XLA's buffer assignment of it; None: it is simulated.
    """
    simulated = planned.simulate()
    time, clock = planned.model.times(planned.orders)
    instructions: list[Instruction | None] = [None] * clock
    for i, step in zip(planned.model.instructions, time.tolist(), strict=False):
        instructions[step] = i
    if assignment is None:
        placed, sizes, total = _simulated(planned, simulated)
    else:
        placed, sizes, total = _assigned(planned, assignment)
    values = tuple(sorted(placed, key=lambda v: v.id))
    ids = np.array([v.id for v in values], np.int64)
    allocations = _allocations(planned, placed, sizes)
    numbers = {key: k for k, key in enumerate(allocations)}
    allocation = np.array([numbers[placed[v][0]] for v in values], np.int64)
    offset = np.array([placed[v][1] for v in values], np.int64)
    size = np.array([v.bytes for v in values], np.int64)
    start = simulated.start[ids] if len(ids) else np.zeros(0, np.int64)
    end = simulated.end[ids] if len(ids) else np.zeros(0, np.int64)
    stop = _stops(allocation, offset, size, start, end)
    return Occupancy(
        values=values,
        allocation=allocation,
        offset=offset,
        bytes=size,
        start=start,
        stop=np.clip(stop, start, clock),
        allocations=tuple(allocations.values()),
        instructions=tuple(instructions),
        total_bytes=total,
        assigned=assignment is not None,
    )


_Placed = dict[Value, tuple[int, int]]
"""Value -> (number of its allocation, offset in it)."""


def _simulated(planned: PlannedModule, found: Assignment) -> tuple[_Placed, dict[int, int], int]:
    """Places, sizes of the allocations, and the total, by the simulation."""
    values = planned.dataflow.values
    numbers, offsets = found.allocation.tolist(), found.offset.tolist()
    constants = {numbers[v.id] for v in values if v.instruction.opcode == "constant"}
    placed = {
        v: (numbers[v.id], offsets[v.id])
        for v in values
        if v.bytes and numbers[v.id] not in constants
    }
    used = {number for number, _ in placed.values()}
    sizes = {k: int(size) for k, size in enumerate(found.sizes.tolist()) if k in used}
    return placed, sizes, found.total_bytes


def _assigned(
    planned: PlannedModule, assignment: BufferAssignment
) -> tuple[_Placed, dict[int, int], int]:
    """The same as XLA has it."""
    by_name = {v.name: v for v in planned.dataflow.values if v.bytes}
    placed: _Placed = {}
    sizes: dict[int, int] = {}
    for allocation in assignment.counted:
        sizes[allocation.index] = allocation.size
        for place in allocation.assigned:
            if place.name in by_name:
                placed[by_name[place.name]] = (allocation.index, place.offset)
    return placed, sizes, assignment.total_bytes


def _allocations(
    planned: PlannedModule, placed: _Placed, sizes: dict[int, int]
) -> dict[int, OccupiedAllocation]:
    """The allocations by number, the arguments' first, laid end to end."""
    members: dict[int, list[Value]] = {key: [] for key in sizes}
    for value, (number, _) in placed.items():
        members[number].append(value)
    entry, alignment = planned.module.entry, planned.model.alignment
    kinds: dict[int, tuple[str, tuple[int, tuple[int, ...]] | None]] = {}
    for key, values in members.items():
        own = [
            v
            for v in values
            if v.instruction.opcode == "parameter" and v.instruction.computation is entry
        ]
        if own:
            kinds[key] = "argument", (own[0].instruction.parameter_number, own[0].index)
        else:
            kinds[key] = ("output" if any(v.live_out for v in values) else "temp"), None
    rank = {"argument": 0, "output": 1, "temp": 2}
    base, result = 0, {}
    for key in sorted(sizes, key=lambda k: (rank[kinds[k][0]], kinds[k][1] or (0, ()), k)):
        kind, parameter = kinds[key]
        result[key] = OccupiedAllocation(sizes[key], base, kind, parameter)
        base += -(-sizes[key] // alignment) * alignment
    return result


def _stops(
    allocation: np.ndarray, offset: np.ndarray, size: np.ndarray, start: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """int64 [values]: one past the last step at which each has its memory.

    `end` is the last step at which it is needed. Where another value takes the memory over at that
    step, the memory counts as the other's there.
    """
    begins: dict[tuple[int, int], list[int]] = {}
    for k, key in enumerate(zip(allocation.tolist(), start.tolist(), strict=True)):
        begins.setdefault(key, []).append(k)
    stop = end + 1
    for k, key in enumerate(zip(allocation.tolist(), end.tolist(), strict=True)):
        for j in begins.get(key, ()):
            later = (start[j], end[j], j) > (start[k], end[k], k)
            meets = offset[j] < offset[k] + size[k] and offset[k] < offset[j] + size[j]
            if later and meets:
                stop[k] = end[k]
                break
    return stop
