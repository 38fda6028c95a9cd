"""New places for the buffers of a CPU executable: its slices, moved.
XLA gives a donated argument's memory to one temporary at a time, at its start. Here every buffer
that is neither an argument nor an output may go anywhere in the temporary allocation, or in the
memory of a donated argument or an output while that is dead. Everything else stays as XLA emitted
it: the steps, their order, and which of a step's results overwrite which of its operands.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hlo.cpu_executable import CpuExecutable
from hlo.slices import Slice
from olla_xla.errors import SolverError
from olla_xla.place.executable.buffers import (
    Buffer,
    CpuAllocation,
    OffsetsError,
    allocations,
    buffers,
)
from olla_xla.place.placer import BEGIN, place
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.problem.plan_parts import Proof
from olla_xla.solvers.linear import Status

ALIGNMENT = 64
"""What XLA's CPU kernels take for granted of every address."""

_SMALLEST, _SHARES = 512, (1000, 100, 20)
"""Arguments and outputs below so many bytes, or below this part of temp, host nothing. The parts
are tried one after the other, as fewer arenas may be packed more tightly."""

_NODES = 100_000
"""Placements that a search may try; they end it, so that equal executables get equal places."""


def relocated(
    executable: CpuExecutable,
    *,
    time_limit: float = 30.0,
    backend: str | None = None,
    gap: float = 0.0,
    on_proof: Callable[[Proof], None] | None = None,
) -> bytes:
    """Repacks a CPU executable's buffers; returns it serialized, unchanged if no byte is saved.
    Nothing is checked here: whoever loads it has that done (`check.executable.relocation`).

    Args:
      executable: read from its serialized form. time_limit: seconds of search, at most.
      backend: solver of an integer program that lowers what the search finds; None: no program.
      gap: relative gap to its bound at which the program may end. on_proof: called with what the
        program proved of the height of temporaries.

    Raises:
      OffsetsError: the buffers must stay where XLA put them; the message says why.
    """
    areas, temp = allocations(executable), temporary(executable)
    if temp is None:
        return executable.data
    blocks = buffers(executable, areas)
    end = time.monotonic() + time_limit
    tries: list[_Try] = []
    for k, share in enumerate(_SHARES):
        arenas = [*_arenas(areas, areas[temp].size // share), temp]
        if all(arenas != t.arenas for t in tries):
            left = max(end - time.monotonic(), 0.1) / (len(_SHARES) - k)
            tries.append(_tried(blocks, areas, arenas, len(executable.flat), left, backend, gap))
        if tries[-1].height <= tries[-1].bound:
            break
    best = min(tries, key=lambda t: t.height)
    if on_proof is not None and backend is not None:
        seconds = time.monotonic() - (end - time_limit)
        on_proof(best.proof(backend, areas[temp].size, seconds))
    if best.height >= areas[temp].size:
        return executable.data
    places = [[a.slice for a in thunk.accesses] for thunk in executable.flat]
    for b, (allocation, offset) in best.places:
        move(places, b, allocation, offset)
    values = logical_places(executable, places, temp, best.height)
    return executable.relocated(places, {temp: best.height}, values)


class _Try(NamedTuple):
    """A packing of buffers in some of XLA's allocations, the last of which is that of temporaries.

    Attributes:
      arenas: indices of these allocations.
      height, bound: bytes of temporaries, and the least that these arenas allow.
      places: (buffer, (allocation, offset)) of those that may move.
      packing: of all arenas. failure: the solver's message, or "".
    """

    arenas: list[int]
    height: int
    bound: int
    places: list[tuple[Buffer, tuple[int, int]]]
    packing: Packing
    failure: str

    def proof(self, backend: str, xla_bytes: int, seconds: float) -> Proof:
        """Reports the height of temporaries and its bound as a Proof, a record of what a solver
        did; `xla_bytes`: the height as XLA placed them.
        """
        p, status = self.packing, Status.OPTIMAL if self.height <= self.bound else Status.FEASIBLE
        message = f"by {p.source} in {len(self.arenas)} allocations, stopped by {p.stopped_by}"
        return Proof(
            computation="temporaries",
            backend=backend,
            status=Status.ERROR if self.failure else status,
            start_bytes=xla_bytes,
            peak_bytes=self.height,
            cut_bytes=self.bound,
            bound_bytes=self.bound,
            variables=p.size[0],
            rows=p.size[1],
            seconds=seconds,
            message=self.failure or message,
            what="places",
        )


def _tried(
    found: list[Buffer],
    areas: Mapping[int, CpuAllocation],
    arenas: list[int],
    thunks: int,
    time_limit: float,
    backend: str | None,
    gap: float,
) -> _Try:
    """Packs buffers into allocations, end to end in one address space with pinned blocks between.
    Temporaries are last, so that the least height leaves least bytes of them. Buffers elsewhere
    stay. Raises OffsetsError if no packing is found.

    Args:
      found: all buffers. areas: XLA's allocations. arenas: indices of those in which buffers may
        lie, temporaries' last. thunks: how many the executable runs. time_limit: seconds.
      backend, gap: as in `relocated`.
    """
    base: dict[int, int] = {}
    usable: dict[int, int] = {}
    address = 0
    for index in arenas:
        usable[index] = areas[index].size // ALIGNMENT * ALIGNMENT
        base[index] = address
        address += usable[index] + ALIGNMENT
    walls = [base[index] + usable[index] for index in arenas[:-1]]
    found = [b for b in found if b.allocation in base]
    problem = PlacementProblem.of(
        [b.first + 1 for b in found] + [0] * len(walls),
        [b.last + 2 for b in found] + [thunks + 2] * len(walls),
        [usable[b.allocation] if b.pinned else b.high - b.low for b in found]
        + [ALIGNMENT] * len(walls),
        alignment=ALIGNMENT,
        fixed=[base[b.allocation] if b.pinned else -1 for b in found] + walls,
    )
    packing, failure = None, ""
    if backend is not None:
        try:
            packing = place(
                problem, method="ilp", time_limit=time_limit, backend=backend, gap=gap,
                node_limit=int(_NODES / BEGIN),
            )  # fmt: skip
        except SolverError as error:
            failure = str(error)
    packing = packing or place(problem, time_limit=time_limit, node_limit=_NODES)
    if packing.offsets is None:
        raise OffsetsError("XLA's addresses of arguments and outputs overlap while both are in use")
    floor, places = base[arenas[-1]], []
    for b, at in zip(found, packing.offsets.tolist(), strict=False):
        if not b.pinned:
            allocation = max((i for i in arenas if base[i] <= at), key=base.__getitem__)
            places.append((b, (allocation, at - base[allocation])))
    height = max(ALIGNMENT, packing.height - floor)
    bound = max(ALIGNMENT, packing.bound - floor)
    return _Try(arenas, height, bound, places, packing, failure)


def temporary(executable: CpuExecutable) -> int | None:
    """Finds the index of the allocation of temporaries; None if there are none.
    Raises OffsetsError if there are several, or buffers lie in several memory spaces.
    """
    temporaries = [
        a
        for a in executable.assignment.buffer_allocations
        if not (
            a.is_entry_computation_parameter
            or a.maybe_live_out
            or a.is_constant
            or a.is_thread_local
        )
    ]
    if len(temporaries) > 1:
        raise OffsetsError(f"the executable has {len(temporaries)} temporary allocations, not one")
    if any(a.color for a in executable.assignment.buffer_allocations):
        raise OffsetsError("the executable uses several memory spaces")
    return temporaries[0].index if temporaries else None


def _arenas(areas: Mapping[int, CpuAllocation], least: int) -> list[int]:
    """Lists allocations (indices) of at least `least` bytes, and not fewer than 512, whose free
    bytes can hold buffers.
    """
    least = max(_SMALLEST, least)
    return [index for index, area in areas.items() if area.hosts and area.size >= least]


def move(places: list[list[Slice]], buffer: Buffer, allocation: int, offset: int) -> None:
    """Moves a buffer to `offset` in an allocation: changes the slices of all its accesses in
    `places`, which has a slice for each access of each thunk.
    """
    for k, i in buffer.accesses:
        s = places[k][i]
        places[k][i] = Slice(allocation, offset + s.offset - buffer.low, s.size)


def logical_places(
    executable: CpuExecutable, places: list[list[Slice]], temp: int, height: int
) -> dict[int, tuple[int, int]]:
    """Finds the new (allocation, offset in bytes) of each of XLA's logical buffers, by its id.
    Each moves with the write of its instruction. Nothing at run time reads the places of
    temporaries that no thunk names (a loop's state, which its first and last writes name); they
    only must lie inside: OffsetsError where one cannot. Of results and arguments only what a thunk
    writes can have moved. `places`: the slice of each access of each thunk, as moved. `temp`: the
    index of the allocation of temporaries, which now has `height` bytes.
    """
    written: dict[tuple[str, Slice], Slice] = {}
    by_place: dict[Slice, Slice] = {}
    for thunk in executable.flat:
        for a, new in zip(thunk.accesses, places[thunk.number], strict=True):
            by_place.setdefault(a.slice, new)
            if a.writes and written.get((thunk.name, a.slice)) != a.slice:
                written[thunk.name, a.slice] = new
    offsets = {}
    for allocation in executable.assignment.buffer_allocations:
        for a in allocation.assigned:
            old = Slice(allocation.index, a.offset, a.size)
            name = executable.names.get(a.logical_buffer_id, "")
            new = written.get((name, old))
            if new is None:
                new = by_place.get(old, old) if allocation.index == temp else old
            if new.allocation == temp and new.end > height:
                if new.size > height:
                    raise OffsetsError(f"no thunk uses {name or 'a buffer'}, which fits nowhere")
                new = Slice(temp, 0, new.size)
            offsets[a.logical_buffer_id] = (new.allocation, new.offset)
    return offsets
