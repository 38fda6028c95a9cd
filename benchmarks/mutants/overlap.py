"""A fault in a CPU executable: two buffers that are live together get the same memory."""

from __future__ import annotations

import random

from hlo.cpu_executable import CpuExecutable
from olla_xla.place.executable.buffers import allocations, buffers
from olla_xla.place.executable.relocate import logical_places, move, temporary


def overlapped(data: bytes, seed: str) -> tuple[str, bytes] | None:
    """A serialized executable with one of its buffers moved onto another.

    The buffers are found by what its steps read and write (`place.executable`), and all slices of
    the one that moves go along, in the steps and in the buffer assignment.

    Returns:
      What was done and the executable; None where no two buffers live together.

    Raises:
      HloError, OffsetsError: the executable holds what cannot be moved.
    """
    rng = random.Random(f"{seed}/overlap")
    executable = CpuExecutable(data)
    temp = temporary(executable)
    if temp is None:
        return None
    areas = allocations(executable)
    height = areas[temp].size
    found = [b for b in buffers(executable, areas) if not b.pinned and b.low < b.high]
    pairs = [
        (a, b)
        for b in found
        for a in found
        if a is not b
        and a.allocation == b.allocation == temp
        and a.first <= b.last
        and b.first <= a.last
        and (a.low >= b.high or b.low >= a.high)
        and a.low + b.high - b.low <= height
    ]
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    places = [[x.slice for x in thunk.accesses] for thunk in executable.flat]
    move(places, b, temp, a.low)
    values = logical_places(executable, places, temp, height)
    names = [executable.flat[x.accesses[0][0]].name for x in (a, b)]
    text = f"the buffer of {names[1]} at {b.low} moved to {a.low}, onto that of {names[0]}"
    return text, executable.relocated(places, {}, values)
