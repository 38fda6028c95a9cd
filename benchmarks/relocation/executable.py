"""XLA's serialized CPU executable: what each thunk reads and writes, and where.

A CPU executable is a sequence of thunks (one a kernel, a library call or a copy) that name their
buffers by allocation, offset and size. Object code takes addresses as arguments and knows no
offsets. XLA orders thunks by these slices when it loads the executable, so slices that are changed
bring their own dependencies along.

All known fields of every message that leads to a slice are listed. An executable with other fields,
or with kinds of thunks that may hold more than slices (loops, branches, collectives, host
callbacks), is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hlo import xla_pb2
from hlo.module import HloError
from hlo.slices import Access, Slice
from hlo.wire import Message, read_varint, varint

__all__ = ["CpuExecutable", "Thunk"]


@dataclasses.dataclass(frozen=True)
class Thunk:
    """One step of the executable: the HLO instruction it runs, its kind, its slices."""

    name: str
    kind: str
    accesses: tuple[Access, ...]


_PLAIN = "plain"  # a slice
_SHAPE_FIRST = 2  # a message whose field 2 is the slice
_SLICE_FIRST = 1
_READ, _WRITE, _BOTH = (True, False), (False, True), (True, True)

# By number of the field in ThunkProto: the thunk's fields without a slice, and those with one.
_THUNKS = {
    5: ({1, 2, 3, 4}, {5: (_SHAPE_FIRST, _BOTH)}),  # sort
    7: ({1}, {2: (_SHAPE_FIRST, _READ), 3: (_SHAPE_FIRST, _READ), 4: (_SHAPE_FIRST, _WRITE)}),
    9: ({1, 2, 3}, {4: (_PLAIN, _READ), 5: (_PLAIN, _WRITE), 6: (_PLAIN, _WRITE)}),  # top-k
    11: ({1, 2, 3, 4}, {5: (_SLICE_FIRST, _READ), 6: (_SLICE_FIRST, _WRITE)}),  # kernel
    12: (set(), {1: (_SHAPE_FIRST, _READ), 2: (_SHAPE_FIRST, _WRITE)}),  # copy
    13: ({1, 2, 3}, {4: (_SHAPE_FIRST, _READ), 5: (_SHAPE_FIRST, _WRITE)}),  # fft
    17: (
        {1, 2, 3, 7},
        {4: (_SHAPE_FIRST, _READ), 5: (_SHAPE_FIRST, _READ), 6: (_SHAPE_FIRST, _WRITE)},
    ),  # convolution
    21: ({1, 2}, {3: (_SHAPE_FIRST, _READ), 4: (_SHAPE_FIRST, _WRITE)}),  # ynn fusion
}
_KIND, _INFO = 1, 2  # of ThunkProto
_SLICE_FIELDS = {1, 2, 3, 4}  # offset, size, allocation, element type
_RESULT_FIELDS = set(range(1, 11))  # of CompilationResultProto, as far as they were looked at
_KERNELS = 2  # CompilationResultProto.ObjFileKind


class CpuExecutable:
    """A serialized CPU executable, read.

    Args:
      data: what `serialize` of a loaded executable gives.

    Attributes:
      thunks: in the order in which XLA emitted them.
      assignment: its buffer assignment.
      names: logical buffer -> the instruction that defines it.

    Raises:
      HloError: the data is no such executable, or it holds something that cannot be changed safely.
    """

    def __init__(self, data: bytes) -> None:
        length, start = read_varint(data, 0)
        self._head = data[start : start + length]  # IFRT's own metadata
        self._outer = Message(data[start + length :])
        self._result = Message(self._outer.blob(1))
        if unknown := self._result.numbers() - _RESULT_FIELDS:
            raise HloError(f"the executable has fields that are not known: {sorted(unknown)}")
        if self._result.integer(5) != _KERNELS:
            raise HloError("the executable is not a sequence of thunks")
        self.assignment = xla_pb2.BufferAssignmentProto()
        try:
            self.assignment.ParseFromString(self._result.blob(2))
        except Exception as error:
            raise HloError("the executable has no buffer assignment") from error
        self.names = self._names()
        self._slices: list[list[Message]] = []
        sequence = self._result.message(6)
        if sequence.numbers() - {1}:
            raise HloError("thunks that share a resource keep their places")
        self.thunks = tuple(self._thunk(t) for t in sequence.messages(1))

    def _names(self) -> dict[int, str]:
        module = xla_pb2.HloModuleProto()
        try:
            module.ParseFromString(Message(self._result.blob(1)).blob(1))
        except Exception as error:
            raise HloError("the executable has no module") from error
        names = {i.id: i.name for c in module.computations for i in c.instructions}
        return {
            b.id: b.defined_at.instruction_name or names.get(b.defined_at.instruction_id, "")
            for b in self.assignment.logical_buffers
        }

    def _thunk(self, thunk: Message) -> Thunk:
        kind = thunk.blob(_KIND).decode()
        name = thunk.message(_INFO).blob(1).decode()
        (number, *more) = sorted(thunk.numbers() - {_KIND, _INFO}) or (0,)
        if more or number not in _THUNKS:
            raise HloError(f"thunk {name} is of kind {kind}, which keeps its place")
        body = thunk.message(number)
        others, fields = _THUNKS[number]
        if unknown := body.numbers() - others - set(fields):
            raise HloError(f"thunk {name} ({kind}) has fields that are not known: {unknown}")
        accesses, slices = [], []
        for field, (form, (reads, writes)) in fields.items():
            for holder in body.messages(field):
                if form != _PLAIN and holder.numbers() - {1, 2}:
                    raise HloError(f"a slice of {name} ({kind}) has fields that are not known")
                found = holder if isinstance(form, str) else holder.message(form)
                if found.numbers() - _SLICE_FIELDS:
                    raise HloError(f"a slice of {name} ({kind}) has fields that are not known")
                place = Slice(found.integer(3), found.integer(1), found.integer(2))
                accesses.append(Access(place, reads, writes))
                slices.append(found)
        self._slices.append(slices)
        return Thunk(name, kind, tuple(accesses))

    def relocated(
        self,
        places: Sequence[Sequence[Slice]],
        sizes: Mapping[int, int],
        values: Mapping[int, tuple[int, int]],
    ) -> bytes:
        """The executable with its slices elsewhere, serialized. Nothing is checked.

        Args:
          places: slices by thunk and access.
          sizes: allocation -> bytes, for those that are to have another size.
          values: logical buffer -> (allocation, offset), for those that lie elsewhere.
        """
        for slices, row in zip(self._slices, places, strict=True):
            for found, place in zip(slices, row, strict=True):
                found.set_integer(3, place.allocation)
                found.set_integer(1, place.offset)
        proto = xla_pb2.BufferAssignmentProto()
        proto.CopyFrom(self.assignment)
        by_index = {a.index: a for a in proto.buffer_allocations}
        moved = []
        for allocation in proto.buffer_allocations:
            allocation.size = sizes.get(allocation.index, allocation.size)
            kept = []
            for a in allocation.assigned:
                to, offset = values.get(a.logical_buffer_id, (allocation.index, a.offset))
                entry = xla_pb2.BufferAllocationProto.Assigned()
                entry.CopyFrom(a)
                entry.offset = offset
                (kept if to == allocation.index else moved).append((to, entry))
            del allocation.assigned[:]
            allocation.assigned.extend(entry for _, entry in kept)
        for to, entry in moved:
            by_index[to].assigned.append(entry)
        self._result.set_blob(2, proto.SerializeToString(deterministic=True))
        self._outer.set_blob(1, self._result.encode())
        return varint(len(self._head)) + self._head + self._outer.encode()
