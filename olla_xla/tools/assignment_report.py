"""XLA's buffer assignment in full: what every allocation wastes.

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

_SECONDS = 5.0  # for each packing


@dataclasses.dataclass(frozen=True)
class AllocationRow:
    """One allocation of XLA's buffer assignment, and what its values need; sizes in bytes.

    Attributes:
      index: XLA's number. kind: "argument", "output" or "temp". values: how many lie in it.
      size: as allocated. live_bytes: the most that live values cover at one time.
      packed_bytes: size with offsets of our own search. bound_bytes: no offsets take less.
    """

    index: int
    kind: str
    values: int
    size: int
    live_bytes: int
    packed_bytes: int
    bound_bytes: int


def allocation_rows(
    module: bytes, assignment: BufferAssignment, target: str
) -> list[AllocationRow]:
    """Checks XLA's buffer assignment of a module; returns rows of its allocations, largest first.
    Those of constants, tuples and threads, and empty ones, have none. Raises CheckError if two live
    tensors overlap, or one leaves its allocation.

    Args:
      module: the executable's serialized HloModuleProto. assignment: XLA's for this module.
      target: "cpu", "cuda" or "tpu".
    """
    planned = PlannedModule(scheduled_module(module), target)
    _check_bounds(assignment)
    check_overlaps(planned, assignment)
    simulated, values = planned.simulate(), planned.dataflow.values
    lives = {
        v.name: (int(first), int(last))
        for v, first, last in zip(values, simulated.start, simulated.end, strict=True)
    }
    rows = [
        _allocation(allocation, lives, platform(target).alignment)
        for allocation in assignment.allocations
        if allocation.assigned
        and not (allocation.is_constant or allocation.is_thread_local or allocation.is_tuple)
    ]
    return sorted(rows, key=lambda r: (-r.size, r.index))


def _check_bounds(assignment: BufferAssignment) -> None:
    for allocation in assignment.allocations:
        for a in allocation.assigned:
            if not 0 <= a.offset <= allocation.size - a.size:
                raise CheckError(
                    f"tensor {a.name} at [{a.offset}, {a.offset + a.size}) exceeds allocation "
                    f"{allocation.index} of {allocation.size} bytes"
                )


def _allocation(
    allocation: Allocation, lives: dict[str, tuple[int, int]], alignment: int
) -> AllocationRow:
    """Searches for offsets at which one allocation's values take fewer bytes; returns its row.
    `lives` has values' first and last positions in the schedule, by name; values not in it are left
    out. Offsets are multiples of `alignment` bytes.
    """
    held = [a for a in allocation.assigned if a.name in lives and a.size]
    known = [(*lives[a.name], a.offset, a.size) for a in held]
    first, last, low, size = np.array(known, np.int64).reshape(-1, 4).T
    live = live_bytes(first, last, low, size)
    tied = _tied(first, last, low)
    problem = PlacementProblem.of(first, last + 1, size, alignment=alignment, group=tied)
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
    """Returns the most bytes that values cover at one time; bytes of overlapping ones count once.
    Value k lives at times first[k] to last[k], both included, in bytes low[k] to low[k] + size[k].
    """
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
    first: NDArray[np.int64], last: NDArray[np.int64], low: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Finds values that share memory in place: at equal offsets (`low`), with overlapping lives.
    Returns a number for each value, equal for those that share. A life is [`first`, `last`].
    """
    group, before, end = np.arange(len(low)), -1, -1
    for k in np.lexsort((first, low)):
        tied = before >= 0 and low[k] == low[before] and first[k] <= end
        group[k] = group[before] if tied else k
        end = max(end, last[k]) if tied else last[k]
        before = k
    return group
