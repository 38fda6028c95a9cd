"""XLA's buffer assignment in full: what every allocation wastes, and where every tensor lies.

An allocation's largest live sum counts each byte once in which some live value lies. What the
optimal packing needs is found by our own placer over the same values and lifetimes; values that
XLA made share bytes while both live, in place, stay tied together.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from hlo.backend import platform
from hlo.buffer_assignment import Allocation, BufferAssignment
from olla_xla.compile.assignment import check_overlaps
from olla_xla.errors import CheckError
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.place import PlacementProblem, place
from olla_xla.problem.plan import Plan

_SECONDS = 5.0  # for each packing


@dataclasses.dataclass(frozen=True)
class AllocationRow:
    """One allocation of XLA's; sizes in bytes.

    Attributes:
      index: XLA's number. kind: "argument", "output" or "temp". values: how many lie in it.
      size: as allocated. live_bytes: the most that live values cover at one time.
      packed_bytes: what our packing of the same values takes. bound_bytes: no packing takes less.
    """

    index: int
    kind: str
    values: int
    size: int
    live_bytes: int
    packed_bytes: int
    bound_bytes: int

    @property
    def fragmentation(self) -> float:
        """Unused bytes over used ones, at the time when most are used: size / live_bytes - 1."""
        return (self.size - self.live_bytes) / max(self.live_bytes, 1)


@dataclasses.dataclass(frozen=True)
class TensorRow:
    """One tensor: its size, the place planned for it in one arena, and XLA's place (bytes)."""

    name: str
    bytes: int
    planned: int | None
    allocation: int
    offset: int


@dataclasses.dataclass(frozen=True)
class FullReport:
    """How XLA placed a module's tensors: all allocations, largest first, and all tensors.

    Attributes:
      total_bytes: arguments + outputs - aliases + temp.
      peak_bytes: lifetime peak of the executable's order, recomputed by the referee.
    """

    total_bytes: int
    peak_bytes: int
    allocations: tuple[AllocationRow, ...]
    tensors: tuple[TensorRow, ...]


def full_report(
    module: bytes,
    assignment: BufferAssignment,
    target: str,
    plan: Plan | None = None,
) -> FullReport:
    """Checks a buffer assignment, and finds what each allocation wastes and where tensors lie.

    Args:
      module: the executable's serialized HloModuleProto. assignment: what XLA made of it.
      target: "cpu" or "cuda".
      plan: the plan it runs, or None.

    Raises:
      CheckError: two live tensors overlap; a tensor leaves its allocation.
    """
    planned = PlannedModule(scheduled_module(module), target)
    _check_bounds(assignment)
    peak = check_overlaps(planned, assignment)
    start, end = _ranges(planned)
    rows = [
        _allocation(allocation, start, end, platform(target).alignment)
        for allocation in assignment.allocations
        if allocation.assigned
        and not (allocation.is_constant or allocation.is_thread_local or allocation.is_tuple)
    ]
    offsets = {} if plan is None else plan.offsets
    tensors = [
        TensorRow(a.name, a.size, offsets.get(a.name, (None, 0))[0], allocation.index, a.offset)
        for allocation in assignment.allocations
        for a in allocation.assigned
    ]
    return FullReport(
        total_bytes=assignment.total_bytes,
        peak_bytes=peak,
        allocations=tuple(sorted(rows, key=lambda r: (-r.size, r.index))),
        tensors=tuple(sorted(tensors, key=lambda t: (-t.bytes, t.name))),
    )


def _check_bounds(assignment: BufferAssignment) -> None:
    for allocation in assignment.allocations:
        for a in allocation.assigned:
            if not 0 <= a.offset <= allocation.size - a.size:
                raise CheckError(
                    f"tensor {a.name} at [{a.offset}, {a.offset + a.size}) exceeds allocation "
                    f"{allocation.index} of {allocation.size} bytes"
                )


def _ranges(planned: PlannedModule) -> tuple[dict[str, int], dict[str, int]]:
    """First and last logical time of every value by name, as XLA counts them."""
    simulated = planned.simulate()
    names = [v.name for v in planned.dataflow.values]
    return (
        dict(zip(names, simulated.start.tolist(), strict=True)),
        dict(zip(names, simulated.end.tolist(), strict=True)),
    )


def _allocation(
    allocation: Allocation, start: dict[str, int], end: dict[str, int], alignment: int
) -> AllocationRow:
    known = [a for a in allocation.assigned if a.name in start and a.size]
    low = np.array([a.offset for a in known], np.int64)
    size = np.array([a.size for a in known], np.int64)
    first = np.array([start[a.name] for a in known], np.int64)
    last = np.array([end[a.name] for a in known], np.int64)
    live = live_bytes(first, last, low, size)
    problem = PlacementProblem.of(
        first, last + 1, size, alignment=alignment, group=_tied(first, last, low, size)
    )
    packing = place(problem, time_limit=_SECONDS)
    kind = (
        "temp" if allocation.is_temp else "argument" if allocation.is_entry_parameter else "output"
    )
    return AllocationRow(
        allocation.index, kind, len(known), allocation.size, live, packing.height, packing.bound
    )


def live_bytes(
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    low: NDArray[np.int64],
    size: NDArray[np.int64],
) -> int:
    """The most bytes in use at one time, by values at addresses [low, low + size)."""
    order = np.argsort(low, kind="stable")
    first, last, low, size = first[order], last[order], low[order], size[order]
    best = 0
    for time in np.unique(first):
        live = (first <= time) & (time <= last)
        at, tops = low[live], np.maximum.accumulate((low + size)[live])
        before = np.concatenate([[0], tops[:-1]])
        best = max(best, int(np.maximum(tops - np.maximum(at, before), 0).sum()))
    return best


def _tied(
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    low: NDArray[np.int64],
    size: NDArray[np.int64],
) -> NDArray[np.int64]:
    """[values] one number for values at one offset while both are live: they share it in place."""
    label = np.arange(len(low))
    order = np.lexsort((first, low))
    for k, i in enumerate(order):
        for j in order[k + 1 :]:
            if low[j] >= low[i] + size[i]:
                break
            if first[i] <= last[j] and first[j] <= last[i] and low[i] == low[j]:
                label[label == label[j]] = label[i]
    return label
