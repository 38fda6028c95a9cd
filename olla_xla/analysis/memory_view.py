"""The memory of one order of a module: its peak, who lives there, and all of it in time."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hlo.buffer_assignment import BufferAssignment
from hlo.module import Instruction
from hlo.values import Value
from olla_xla.analysis.category import Category
from olla_xla.analysis.live_tensor import Describer, LiveTensor, by_category
from olla_xla.memory.assignment.model import Assignment
from olla_xla.memory.lifetimes import live_bytes
from olla_xla.memory.module_state import PlannedModule


@dataclasses.dataclass(frozen=True)
class MemoryView:
    """The memory of a module under one order; sizes in bytes.

    The peak is the step at which most memory is in use. What is allocated and not in use there
    (gaps between tensors, arguments' memory that waits for its output) is a category of its own, so
    that the categories sum to the total.

    Attributes:
      name: of the order, such as "XLA's order".
      total_bytes: arguments + outputs - aliases + temp.
      assigned: whether the total is XLA's own; otherwise it is predicted.
      live_bytes: in use at the peak.
      constant_bytes: constants of the executable, which no total counts.
      step: the peak, counted from 0 in the whole schedule. steps: steps of the schedule.
      operator: the instruction that runs at the peak, or "". operator_line: its source line, or "".
      tensors: in memory at the peak, and what is not in use, largest first; their sum is the total.
      elsewhere: other memories, such as "VMEM" -> bytes assigned there, which no total counts.
    """

    name: str
    total_bytes: int
    assigned: bool
    live_bytes: int
    constant_bytes: int
    step: int
    steps: int
    operator: str
    operator_line: str
    tensors: tuple[LiveTensor, ...]
    elsewhere: Mapping[str, int]
    _occupancy: Occupancy = dataclasses.field(repr=False)
    _describer: Describer = dataclasses.field(repr=False)

    @functools.cached_property
    def timeline(self) -> dict[Category, np.ndarray]:
        """Category that is ever in use -> int64 [steps], bytes in use. Slow at the first access."""
        memory = self._occupancy
        kinds = np.array([self._describer.category(v).value for v in memory.values])
        lines = {c: memory.in_use(kinds == c.value) for c in Category if (kinds == c.value).any()}
        return {c: line for c, line in lines.items() if line.any()}

    def by_category(self) -> dict[Category, int]:
        """Returns category -> bytes at the peak, in order of `Category`; the sum is the total."""
        return by_category(self.tensors)

    def by_module(self) -> dict[str, int]:
        """Returns model module -> bytes at the peak, largest first. What has no module is under
        "(arguments)" if it is an argument, replaces one or is one's unused memory; else under "".
        """
        return _largest_first(self._sums(lambda t: t.module or t.argument and "(arguments)"))

    def by_line(self) -> dict[str, int]:
        """Returns "file:line" of the code that makes them -> bytes at the peak, largest first.
        The key "(arguments)" is for arguments, their unused memory, and outputs that replace them
        and whose line is not known; "" is for all else without a known line.
        """
        return _largest_first(self._sums(_made_at))

    @property
    def padding(self) -> int:
        """Bytes at the peak that only pad arrays to whole tiles; 0 except on a TPU."""
        return sum(t.padding for t in self.tensors)

    @property
    def found_share(self) -> float:
        """The fraction of the bytes at the peak whose source line or argument is known."""
        known = sum(t.bytes for t in self.tensors if t.is_found)
        return known / self.total_bytes if self.total_bytes else 1.0

    def _sums(self, key: Callable[[LiveTensor], Any]) -> dict[Any, int]:
        sums: collections.Counter[Any] = collections.Counter()
        for tensor in self.tensors:
            sums[key(tensor)] += tensor.bytes
        return dict(sums)

    def to_dict(self, timeline: bool = False) -> dict[str, Any]:
        """Returns the view as a dict for JSON; `timeline` adds bytes by category for each step."""
        fields = (
            "name total_bytes assigned live_bytes constant_bytes step steps operator operator_line"
        )
        result: dict[str, Any] = {name: getattr(self, name) for name in fields.split()}
        result["padding"], result["elsewhere"] = self.padding, dict(self.elsewhere)
        result["categories"] = {str(c): size for c, size in self.by_category().items()}
        result["modules"], result["lines"] = self.by_module(), self.by_line()
        result["tensors"] = [tensor.to_dict() for tensor in self.tensors]
        if timeline:
            result["timeline"] = {str(c): line.tolist() for c, line in self.timeline.items()}
        return result


def _made_at(tensor: LiveTensor) -> str:
    if tensor.is_argument or (tensor.argument and not tensor.line):
        return "(arguments)"
    return tensor.line


def _largest_first(sums: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def memory_view(
    planned: PlannedModule,
    name: str,
    assignment: BufferAssignment | None = None,
    describer: Describer | None = None,
) -> MemoryView:
    """Describes the memory of a module in the order that it has: totals, peak, tensors there.

    Args:
      planned: the module. name: of its order, for reports.
      assignment: XLA's buffer assignment; None: it is simulated.
      describer: describes its values; None: a new one is made.
    """
    describer = describer or Describer(planned.dataflow, planned.target)
    memory = occupancy(planned, assignment)
    in_use = memory.in_use()
    step = int(in_use.argmax()) if len(in_use) else 0
    tensors = _at(memory, step, describer)
    running = memory.instructions[step] if memory.steps else None
    constants = [v for v in planned.dataflow.values if v.instruction.opcode == "constant"]
    return MemoryView(
        name=name,
        total_bytes=memory.total_bytes,
        assigned=memory.assigned,
        live_bytes=int(in_use.max(initial=0)),
        constant_bytes=sum(v.bytes for v in constants),
        step=step,
        steps=memory.steps,
        operator="" if running is None else running.name,
        operator_line="" if running is None else describer.line(running),
        tensors=tuple(sorted(tensors, key=lambda t: (-t.bytes, t.name, t.argument))),
        elsewhere={} if assignment is None else assignment.elsewhere,
        _occupancy=memory,
        _describer=describer,
    )


def _at(memory: Occupancy, step: int, describer: Describer) -> list[LiveTensor]:
    """LiveTensors of what is in memory at a step, and of the rest of the total, not in use.
    The latter are arguments' memory that waits for its output, and gaps between tensors.
    """
    spans = TensorSpans(memory)
    tensors, used = [], np.zeros(len(memory.allocations), np.int64)
    for k in memory.at(step).tolist():
        value = memory.values[k]
        used[memory.allocation[k]] += memory.bytes[k]
        tensors.append(describer.tensor(value, *spans.of(k)))
    left = memory.total_bytes - int(used.sum())
    for allocation, taken in zip(memory.allocations, used.tolist(), strict=True):
        if allocation.parameter is None or taken >= allocation.bytes:
            continue
        path = describer.paths[allocation.parameter]
        tensors.append(_unused(allocation.bytes - taken, path, "", memory.steps))
        left -= allocation.bytes - taken
    if left:
        why = "unused gaps between tensors in XLA's temporary memory and outputs"
        tensors.append(_unused(left, "", why, memory.steps))
    return tensors


def _unused(size: int, argument: str, why: str, steps: int) -> LiveTensor:
    return LiveTensor("", size, Category.UNUSED, argument=argument, why=why, stop=steps)


class TensorSpans:
    """Finds at which steps each tensor is in memory, and which instruction reads it last.
    What XLA's rules keep in one buffer (a loop's state) is one tensor here, except outputs and the
    arguments that they replace.
    """

    def __init__(self, memory: Occupancy) -> None:
        self._memory = memory
        self._members: dict[int, list[int]] = collections.defaultdict(list)
        for k, value in enumerate(memory.values):
            self._members[value.buffer].append(k)
        self._step = {i: step for step, i in enumerate(memory.instructions) if i is not None}

    def of(self, k: int) -> tuple[tuple[int, int], Instruction | None]:
        """For `memory.values[k]`, returns ((start, stop), half-open steps in which its memory is in
        use; the last instruction that reads it, None if it lives to the end or nothing reads it).
        """
        memory, value = self._memory, self._memory.values[k]
        members = self._members[value.buffer]
        kept = memory.allocations[memory.allocation[k]].parameter is not None
        if kept and any(memory.values[j].live_out for j in members) or value.live_out:
            members = [k]
        start = int(memory.start[members].min())
        stop = int(memory.stop[members].max())
        return (start, stop), self._last_reader([memory.values[j] for j in members], stop)

    def _last_reader(self, values: list[Value], stop: int) -> Instruction | None:
        if any(v.live_out for v in values) or stop >= self._memory.steps:
            return None
        readers = [use.instruction for v in values for use in v.uses]
        known = [i for i in readers if i in self._step]
        return max(known, key=lambda i: self._step[i], default=None)


# Which value has which bytes of memory, and when: XLA's own buffer assignment, or its simulation.
# Steps are positions in the whole schedule, with what a loop or call runs in front of it, once.
# Intervals are half-open. Where a value takes over the memory of a dying one, the memory is the new
# one's from the step that makes it, so no byte belongs to two values at any step.


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
    """Where the values of a module lie in memory (allocation, offset), and during which steps.

    Attributes:
      values: those that totals count; the arrays below are indexed by position in this tuple.
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
        """Returns int64 [steps], bytes in use at each step. Given `weights`, int64 [values], each
        value's bytes are multiplied by its weight, as by 0 or 1 to select values.
        """
        sizes = self.bytes if weights is None else self.bytes * weights
        return live_bytes(self.start, self.stop, sizes, self.steps)

    def at(self, step: int) -> np.ndarray:
        """Returns the positions in `values`, ascending, of the values in memory at a step."""
        return np.flatnonzero((self.start <= step) & (step < self.stop))


def occupancy(planned: PlannedModule, assignment: BufferAssignment | None = None) -> Occupancy:
    """Finds each value's allocation, offset and steps in memory, in the order that the module has.
    Constants, values of 0 bytes and others that no total counts are left out. `assignment`: XLA's
    buffer assignment of the module; None: it is simulated.
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
    """Reads the simulated buffer assignment `found`; constants and values of 0 bytes are left out.
    Returns (value -> (number of its allocation, byte offset), number -> bytes, total bytes).
    """
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
    """Reads XLA's own buffer assignment, as far as its allocations count for the total.
    Returns (value -> (number of its allocation, byte offset), number -> bytes, total bytes).
    """
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
    """Allocation number -> its OccupiedAllocation, laid end to end: arguments, outputs, temp.
    `placed`: value -> (allocation, offset in it). `sizes`: allocation -> bytes.
    """
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
    """int64 [values]: one past the last step at which each value has its memory.
    `end` is the last step at which a value is needed, `start` the first. Where another value takes
    over its memory (`allocation`, `offset`, `size` in bytes) at that step, it is the other's there.
    """
    begins: dict[tuple[int, int], list[int]] = {}
    where, first, last = allocation.tolist(), start.tolist(), end.tolist()
    low, high = offset.tolist(), (offset + size).tolist()
    for k, key in enumerate(zip(where, first, strict=True)):
        begins.setdefault(key, []).append(k)
    stop = end + 1
    for k, key in enumerate(zip(where, last, strict=True)):
        for j in begins.get(key, ()):
            later = (first[j], last[j], j) > (first[k], last[k], k)
            if later and low[j] < high[k] and low[k] < high[j]:
                stop[k] = last[k]
                break
    return stop
