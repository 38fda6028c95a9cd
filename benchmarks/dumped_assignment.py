"""Compares the buffer assignment that XLA dumped with the executable as we read it."""

from __future__ import annotations

from pathlib import Path

from hlo.buffer_assignment import BufferAssignment, assignment_from_bytes, dumped_parts
from hlo.gpu_executable import GpuExecutable
from hlo.module import module_from_bytes, parse_module_proto
from hlo.slices import Slice
from olla_xla.errors import CheckError


def dumped_assignment(folder: Path, module: bytes) -> tuple[bytes, bytes]:
    """The module and its buffer assignment, both serialized, of the last compile in a folder.

    Args:
      folder: the folder that `olla_xla.compile.assignment.dump_options` was given.
      module: the executable's module, serialized; the dumped module must have the same order.

    Raises:
      CheckError: no such module was dumped.
    """
    order = module_from_bytes(module).order
    for path in sorted(folder.glob("*after_optimizations.hlo.pb"), reverse=True):
        dumped, assignment = dumped_parts(path)
        if module_from_bytes(dumped).order == order:
            return dumped, assignment
    raise CheckError("XLA dumped no buffer assignment of the executable")


def same_places(
    module: bytes, executable: GpuExecutable, dumped: bytes, assignment: bytes
) -> tuple[int, str]:
    """Compares an executable's places with the buffer assignment that XLA dumped, by tensor.

    Args:
      module: of the executable, serialized. executable: as it was read.
      dumped, assignment: module and buffer assignment of the dump, serialized.

    Returns:
      (number of tensors that have the same place in both, the first difference or "").
    """
    ours = _places(assignment_from_bytes(executable.assignment, parse_module_proto(module)))
    theirs = _places(assignment_from_bytes(assignment, parse_module_proto(dumped)))
    same = sum(theirs.get(name) == place for name, place in ours.items())
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return same, f"{name} lies elsewhere in the dump"
    places = set(theirs.values())
    for thunk in executable.all_thunks:
        for access in thunk.accesses:
            if access.writes and access.slice.size and access.slice not in places:
                return same, f"{thunk.name} writes where the dump has no tensor"
    return same, ""


def _places(assignment: BufferAssignment) -> dict[str, Slice]:
    return {
        f"{a.name} {a.id}": Slice(a.allocation, a.offset, a.size)
        for allocation in assignment.allocations
        for a in allocation.assigned
    }
