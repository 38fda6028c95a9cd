"""New places for the buffers of a CPU executable: its slices, moved.

XLA gives a donated argument's memory to one temporary at a time, at its start. Here every buffer
that is neither an argument nor an output may go anywhere in the temporary allocation, or in the
memory of a donated argument or an output while that is dead. Everything else stays as XLA emitted
it: the steps, their order, and which of a step's results overwrite which of its operands.

Buffers are found from the slices alone. A read belongs to the writes whose bytes it finds, a write
to the operands it overlaps with; what belongs together moves together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from benchmarks.relocation.executable import CpuExecutable
from benchmarks.relocation.referee import Area, Part, Step, check_relocation
from hlo.slices import Slice
from olla_xla.errors import CheckError, OllaError
from olla_xla.place.placer import place
from olla_xla.place.problem import Packing, PlacementProblem

__all__ = ["OffsetsError", "Relocation", "relocate"]

ALIGNMENT = 64
"""What XLA's CPU kernels take for granted of every address."""
_SMALLEST = 4096
"""Arguments and outputs below this, or below a thousandth of temp, are not worth a place."""


class OffsetsError(OllaError):
    """The buffers of an executable keep the places that XLA gave them; the message says why."""


@dataclasses.dataclass(frozen=True)
class Relocation:
    """An executable with its buffers elsewhere; sizes in bytes.

    Attributes:
      executable: serialized.
      temp_bytes: of its temporary allocation. xla_temp_bytes: of XLA's own.
      bound_bytes: no placement of these buffers, at these times, has a smaller one.
      moved: buffers that lie elsewhere. hosted: buffers inside an argument or an output.
    """

    executable: bytes
    temp_bytes: int
    xla_temp_bytes: int
    bound_bytes: int
    moved: int
    hosted: int


@dataclasses.dataclass
class _Buffer:
    """Accesses that move together: bytes [low, high) of one allocation, steps [first, last]."""

    allocation: int
    low: int
    high: int
    first: int
    last: int
    pinned: bool
    accesses: list[tuple[int, int]]


def relocate(executable: CpuExecutable, *, time_limit: float = 10.0) -> Relocation:
    """Places the buffers of an executable anew and has the referee judge the result.

    Args:
      executable: read from its serialized form.
      time_limit: seconds of search.

    Raises:
      OffsetsError: they keep their places; the message says why.
      CheckError: the referee rejected the new places (a bug).
    """
    areas = _areas(executable)
    temp = _temp(executable)
    bases: list[tuple[int, int, int]] = []
    address = 0
    for index in [*_arenas(executable, areas, temp), temp]:
        bases.append((address, index, areas[index].size))
        address = _aligned(address + areas[index].size + 1)
    numbers = {index for _, index, _ in bases}
    buffers = [b for b in _buffers(executable, areas) if b.allocation in numbers]
    packing = _packed(buffers, bases, len(executable.thunks), time_limit)
    assert packing.offsets is not None
    floor = bases[-1][0]
    height = max(ALIGNMENT, packing.height - floor)
    if height >= areas[temp].size:
        raise OffsetsError(f"no placement takes less than XLA's own temp, {height:,} bytes")
    places = [[a.slice for a in thunk.accesses] for thunk in executable.thunks]
    moved = hosted = 0
    for b, address in zip(buffers, packing.offsets.tolist(), strict=False):
        if b.pinned:
            continue
        at, allocation, _ = max(base for base in bases if base[0] <= address)
        moved += (allocation, address - at) != (b.allocation, b.low)
        hosted += allocation != temp
        for k, i in b.accesses:
            s = places[k][i]
            places[k][i] = Slice(allocation, address - at + s.offset - b.low, s.size)
    sizes = {temp: height}
    values = _values(executable, places, temp, height)
    data = executable.relocated(places, sizes, values)
    after = CpuExecutable(data)  # what is judged is what will be loaded
    check_relocation(_steps(executable), _steps(after), areas, sizes, alignment=ALIGNMENT)
    _check_assignment(after)
    return Relocation(
        executable=data,
        temp_bytes=height,
        xla_temp_bytes=areas[temp].size,
        bound_bytes=max(packing.bound - floor, 0),
        moved=moved,
        hosted=hosted,
    )


def _areas(executable: CpuExecutable) -> dict[int, Area]:
    """XLA's allocations. What XLA's own code never writes to is read-only."""
    written = {a.slice.allocation for t in executable.thunks for a in t.accesses if a.writes}
    return {
        a.index: Area(
            size=a.size,
            filled=a.is_entry_computation_parameter or a.is_constant,
            kept=a.maybe_live_out,
            writable=a.index in written,
        )
        for a in executable.assignment.buffer_allocations
    }


def _temp(executable: CpuExecutable) -> int:
    found = [
        a
        for a in executable.assignment.buffer_allocations
        if not (
            a.is_entry_computation_parameter
            or a.maybe_live_out
            or a.is_constant
            or a.is_thread_local
        )
    ]
    if len(found) != 1 or found[0].is_tuple:
        raise OffsetsError(f"the executable has {len(found)} temporary allocations, not one")
    if any(a.color for a in executable.assignment.buffer_allocations):
        raise OffsetsError("the executable uses several memory spaces")
    return found[0].index


def _arenas(executable: CpuExecutable, areas: Mapping[int, Area], temp: int) -> list[int]:
    """Donated arguments and outputs that XLA's code writes to, and may host buffers."""
    least = max(_SMALLEST, areas[temp].size // 1000)
    return [
        a.index
        for a in executable.assignment.buffer_allocations
        if a.maybe_live_out
        and not (a.is_tuple or a.is_constant or a.is_thread_local)
        and areas[a.index].writable
        and a.size >= least
    ]


def _steps(executable: CpuExecutable) -> list[Step]:
    return [
        Step(
            t.name,
            tuple(
                Part(a.slice.allocation, a.slice.offset, a.slice.size, a.reads, a.writes)
                for a in t.accesses
            ),
        )
        for t in executable.thunks
    ]


class _Sets:
    """Disjoint sets of keys."""

    def __init__(self) -> None:
        self._parent: dict[object, object] = {}

    def find(self, key: object) -> object:
        parent = self._parent.setdefault(key, key)
        while parent != key:
            grand = self._parent[parent]
            self._parent[key] = grand
            key, parent = parent, grand
        return key

    def join(self, a: object, b: object) -> None:
        self._parent[self.find(a)] = self.find(b)


def _buffers(executable: CpuExecutable, areas: Mapping[int, Area]) -> list[_Buffer]:
    """The buffers of all allocations, from what the steps read and write."""
    sets = _Sets()
    # By allocation: intervals (low, high, what wrote them); at first the allocation itself.
    memory: dict[int, list[tuple[int, int, object]]] = {
        i: [(0, a.size, ("start", i))] for i, a in areas.items()
    }
    for k, thunk in enumerate(executable.thunks):
        accesses = list(enumerate(thunk.accesses))
        for i, a in accesses:
            s = a.slice
            if s.end > areas[s.allocation].size:
                raise OffsetsError(f"a slice of {thunk.name} leaves its allocation")
            if a.reads:
                for low, high, owner in memory[s.allocation]:
                    if low < s.end and s.offset < high:
                        if owner == ("start", s.allocation) and not areas[s.allocation].filled:
                            raise OffsetsError(f"{thunk.name} reads what nothing wrote")
                        sets.join((k, i), owner)
            if a.writes:
                for j, b in accesses:
                    t = b.slice
                    same = t.allocation == s.allocation and t.offset < s.end and s.offset < t.end
                    if i != j and same:
                        sets.join((k, i), (k, j))
        for i, a in accesses:
            if a.writes:
                _overwrite(memory[a.slice.allocation], a.slice, (k, i))
    for index, area in areas.items():
        if area.kept:
            for _, _, owner in memory[index]:
                sets.join(owner, ("end", index))
    return _collected(executable, areas, sets)


def _overwrite(intervals: list[tuple[int, int, object]], s: Slice, owner: object) -> None:
    result = [(s.offset, s.end, owner)]
    for low, high, old in intervals:
        if low < s.offset:
            result.append((low, min(high, s.offset), old))
        if high > s.end:
            result.append((max(low, s.end), high, old))
    intervals[:] = [r for r in result if r[0] < r[1]]


def _collected(executable: CpuExecutable, areas: Mapping[int, Area], sets: _Sets) -> list[_Buffer]:
    found: dict[object, _Buffer] = {}
    for k, thunk in enumerate(executable.thunks):
        for i, a in enumerate(thunk.accesses):
            s = a.slice
            b = found.setdefault(
                sets.find((k, i)), _Buffer(s.allocation, s.offset, s.end, k, k, False, [])
            )
            if b.allocation != s.allocation:
                raise OffsetsError(f"a buffer of {thunk.name} lies in two allocations")
            b.low, b.high = min(b.low, s.offset), max(b.high, s.end)
            b.last = k
            b.accesses.append((k, i))
    ends = len(executable.thunks)
    for index, area in areas.items():
        start, end = sets.find(("start", index)), sets.find(("end", index))
        if start in found:
            _pin(found[start], area, -1)
        if area.kept:
            first = -1 if start == end else ends
            b = found.setdefault(end, _Buffer(index, 0, area.size, first, ends, True, []))
            _pin(b, area, ends)
    return list(found.values())


def _pin(buffer: _Buffer, area: Area, step: int) -> None:
    """Keeps a buffer where it is, with all of its allocation, from or until a step."""
    buffer.first, buffer.last = min(buffer.first, step), max(buffer.last, step)
    buffer.low, buffer.high, buffer.pinned = 0, area.size, True


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _packed(
    buffers: list[_Buffer], bases: list[tuple[int, int, int]], steps: int, time_limit: float
) -> Packing:
    """Packs all arenas end to end with walls between; temp is last, so least height is least temp.

    Args:
      buffers: those in an arena or in temp.
      bases: (address, allocation, bytes) of the arenas, temp last.
      steps: of the executable.
    """
    base = {allocation: at for at, allocation, _ in bases}
    walls = [(at + size, later[0]) for (at, _, size), later in zip(bases, bases[1:], strict=False)]
    problem = PlacementProblem.of(
        [b.first + 1 for b in buffers] + [0] * len(walls),
        [b.last + 2 for b in buffers] + [steps + 2] * len(walls),
        [b.high - b.low for b in buffers] + [high - low for low, high in walls],
        alignment=[1 if b.pinned else ALIGNMENT for b in buffers] + [1] * len(walls),
        fixed=[base[b.allocation] + b.low if b.pinned else -1 for b in buffers]
        + [low for low, _ in walls],
    )
    packing = place(problem, time_limit=time_limit)
    if packing.offsets is None:
        raise OffsetsError("arguments and outputs overlap while both are in use")
    return packing


def _values(
    executable: CpuExecutable,
    places: list[list[Slice]],
    temp: int,
    height: int,
) -> dict[int, tuple[int, int]]:
    """The new places of XLA's logical buffers: each moves with the write of its instruction.

    Nothing at run time reads the places of those that no thunk names; they only must lie inside.
    """
    by_name: dict[tuple[str, Slice], Slice] = {}
    by_place: dict[Slice, Slice] = {}
    for k, thunk in enumerate(executable.thunks):
        for i, a in enumerate(thunk.accesses):
            by_place.setdefault(a.slice, places[k][i])
            if a.writes:
                by_name[thunk.name, a.slice] = places[k][i]
    found = {}
    for allocation in executable.assignment.buffer_allocations:
        for a in allocation.assigned:
            old = Slice(allocation.index, a.offset, a.size)
            name = executable.names.get(a.logical_buffer_id, "")
            new = by_name.get((name, old)) or by_place.get(old) or old
            if new.allocation == temp and new.end > height:
                if new.size > height:
                    raise OffsetsError(f"{name or 'a buffer'} is in no thunk and fits nowhere")
                new = Slice(temp, 0, new.size)
            found[a.logical_buffer_id] = (new.allocation, new.offset)
    return found


def _check_assignment(executable: CpuExecutable) -> None:
    """XLA ends the process over a buffer assignment that does not hold together."""
    seen: set[int] = set()
    for allocation in executable.assignment.buffer_allocations:
        for a in allocation.assigned:
            if a.offset < 0 or a.offset + a.size > allocation.size or a.logical_buffer_id in seen:
                raise CheckError(f"logical buffer {a.logical_buffer_id} leaves its allocation")
            seen.add(a.logical_buffer_id)
