"""XLA's buffer assignment, read back from a BufferAssignmentProto."""

import dataclasses
from pathlib import Path

from hlo import xla_pb2
from hlo.backend import platform
from hlo.files import read_regular
from hlo.module import HloError
from hlo.shapes import ShapeIndex


@dataclasses.dataclass(frozen=True)
class Assigned:
    """A logical buffer of XLA: what defines it, and its allocation, offset and size in bytes."""

    id: int
    instruction: str
    index: ShapeIndex
    allocation: int
    offset: int
    size: int
    color: int

    @property
    def name(self) -> str:
        """Name of the value: its instruction's, "fusion.3", or "fusion.3{1}" within a tuple."""
        where = ",".join(map(str, self.index))
        return f"{self.instruction}{{{where}}}" if self.index else self.instruction


@dataclasses.dataclass(frozen=True)
class Allocation:
    """A BufferAllocation of XLA: its size in bytes, its kind, and the buffers `assigned` to it."""

    index: int
    size: int
    color: int
    is_entry_parameter: bool
    parameter_number: int
    maybe_live_out: bool
    is_constant: bool
    is_tuple: bool
    is_thread_local: bool
    assigned: tuple[Assigned, ...]

    @property
    def is_temp(self) -> bool:
        """Whether XLA counts it as "temp": not an argument, output, constant or thread-local."""
        return not (
            self.is_entry_parameter
            or self.maybe_live_out
            or self.is_constant
            or self.is_thread_local
        )


@dataclasses.dataclass(frozen=True)
class BufferAssignment:
    """XLA's buffer assignment of one module: all its allocations.

    Attributes:
      target: platform's name, such as "cpu". proto: the message that was read, or None.
    """

    allocations: tuple[Allocation, ...]
    target: str = "cpu"
    proto: xla_pb2.BufferAssignmentProto | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    @property
    def data(self) -> bytes:
        """The serialized BufferAssignmentProto that this was read from; b"" if `proto` is None."""
        return b"" if self.proto is None else self.proto.SerializeToString()

    @property
    def counted(self) -> tuple[Allocation, ...]:
        """Allocations of arguments, outputs and temporaries in the device's main memory."""
        counts = platform(self.target).counts
        return tuple(
            a
            for a in self.allocations
            if counts(a.color) and (a.is_entry_parameter or a.maybe_live_out or a.is_temp)
        )

    @property
    def elsewhere(self) -> dict[str, int]:
        """Maps names of memories outside the main one, such as "VMEM", to bytes allocated there."""
        size_by_memory: dict[str, int] = {}
        names = platform(self.target).other_memories
        for a in self.allocations:
            if a.color in names and a.size:
                size_by_memory[names[a.color]] = size_by_memory.get(names[a.color], 0) + a.size
        return size_by_memory

    @property
    def temporary_bytes(self) -> int:
        """Bytes of temporaries in main memory, each allocation rounded up as XLA reports it."""
        multiple = platform(self.target).temporaries_multiple
        return sum(-(-a.size // multiple) * multiple for a in self.counted if a.is_temp)

    @property
    def total_bytes(self) -> int:
        """Bytes of arguments + outputs - aliases + temporaries in main memory; no constants."""
        return sum(a.size for a in self.counted if not a.is_temp) + self.temporary_bytes


def assignment_from_bytes(
    data: bytes, module: xla_pb2.HloModuleProto, target: str = "cpu"
) -> BufferAssignment:
    """Parses a serialized BufferAssignmentProto of `module`. Raises HloError if it is none."""
    proto = xla_pb2.BufferAssignmentProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:
        raise HloError("not a buffer assignment proto") from error
    return _from_proto(proto, module, target)


def read_dump(
    path: str | Path, target: str = "cpu"
) -> tuple[xla_pb2.HloModuleProto, BufferAssignment]:
    """Reads an *after_optimizations.hlo.pb dump: (module, buffer assignment). Raises HloError."""
    proto = xla_pb2.HloProto()
    try:
        proto.ParseFromString(read_regular(path))
    except Exception as error:
        raise HloError(f"{path} is not an HloProto dump") from error
    if not proto.buffer_assignment.buffer_allocations:
        raise HloError(f"{path} has no buffer assignment; use xla_dump_hlo_as_proto=True")
    return proto.hlo_module, _from_proto(proto.buffer_assignment, proto.hlo_module, target)


def dumped_parts(path: str | Path) -> tuple[bytes, bytes]:
    """Reads a dump as (serialized module, serialized buffer assignment or b""). Raises HloError."""
    try:
        proto = xla_pb2.HloProto.FromString(read_regular(path))
    except Exception as error:
        raise HloError(f"{path} is not an HloProto dump") from error
    return proto.hlo_module.SerializeToString(), proto.buffer_assignment.SerializeToString()


def _from_proto(
    proto: xla_pb2.BufferAssignmentProto, module: xla_pb2.HloModuleProto, target: str
) -> BufferAssignment:
    names = {i.id: i.name for c in module.computations for i in c.instructions}
    values = {}
    for buffer in proto.logical_buffers:
        where = buffer.defined_at
        name = where.instruction_name or names.get(where.instruction_id, "")
        values[buffer.id] = (name, tuple(where.shape_index), buffer.color)
    allocations = []
    for a in proto.buffer_allocations:
        assigned = tuple(
            Assigned(
                s.logical_buffer_id,
                values[s.logical_buffer_id][0],
                values[s.logical_buffer_id][1],
                a.index,
                s.offset,
                s.size,
                values[s.logical_buffer_id][2],
            )
            for s in a.assigned
        )
        allocations.append(
            Allocation(
                index=a.index,
                size=a.size,
                color=a.color,
                is_entry_parameter=a.is_entry_computation_parameter,
                parameter_number=a.parameter_number,
                maybe_live_out=a.maybe_live_out,
                is_constant=a.is_constant,
                is_tuple=a.is_tuple,
                is_thread_local=a.is_thread_local,
                assigned=assigned,
            )
        )
    return BufferAssignment(tuple(allocations), target, proto)
