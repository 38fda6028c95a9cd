"""An executable that mutants are made of, and what is known of its values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from hlo import xla_pb2
from hlo.gpu_executable import GpuExecutable, GpuThunk
from hlo.module import parse_module_proto
from hlo.shapes import ShapeIndex
from hlo.slices import Slice
from olla_xla.check.executable import check_executable
from olla_xla.check.executable.program import Op, read_program
from olla_xla.check.executable.values import Frame, MemoryValue, follow, resolve
from olla_xla.errors import CheckError


class Subject:
    """An executable with its module.

    Args:
      name: for reports. module: HloModuleProto, serialized. executable: as it was read.
    """

    def __init__(self, name: str, module: bytes, executable: GpuExecutable) -> None:
        self.name, self.executable = name, executable
        self._module = module
        self._program = read_program(module)
        self._values = follow(self._program)
        proto = parse_module_proto(module)
        names = {i.id: i.name for c in proto.computations for i in c.instructions}
        self._assignment = xla_pb2.BufferAssignmentProto.FromString(executable.assignment)
        where = {
            b.id: (names.get(b.defined_at.instruction_id, ""), tuple(b.defined_at.shape_index))
            for b in self._assignment.logical_buffers
        }
        self._places = {
            where[s.logical_buffer_id]: (Slice(a.index, s.offset, s.size), s.logical_buffer_id)
            for a in self._assignment.buffer_allocations
            for s in a.assigned
        }

    def verdict(self, executable: GpuExecutable) -> str:
        """What the referee says against an executable, or ""."""
        try:
            check_executable(self._module, "cuda", executable=executable)
        except CheckError as error:
            return str(error)
        return ""

    def is_held(self, index: ShapeIndex) -> bool:
        """Whether a result takes memory that is not a tuple's."""
        value = self._values.frame.at[self._program.entry.result].get(index)
        place = None if value is None else self._place(value)
        return place is not None and place.size > 0

    def clashes(self) -> Iterator[tuple[MemoryValue, Slice]]:
        """Values, and the place that an instruction reads another value at while it reads them."""
        for frame in _frames(self._values.frame):
            for op in frame.body.ops:
                if op.opcode not in ("fusion", "custom-call", "copy"):
                    continue
                read = [resolve(v) for o in op.operands for v in frame.at[o].values()]
                for value in read:
                    own = self._place(value)
                    if own is None or not own.size or not self._is_plain(value):
                        continue
                    for other in read:
                        place = self._place(other)
                        if other is value or place is None or not place.size or place == own:
                            continue
                        moved = Slice(place.allocation, place.offset, own.size)
                        if moved.end <= self.executable.sizes[place.allocation]:
                            yield value, moved

    def moved(self, value: MemoryValue, place: Slice) -> GpuExecutable:
        """The executable with one value elsewhere, in the assignment and in its thunks."""
        _, number = self._places[value.op.name, value.index]
        proto = xla_pb2.BufferAssignmentProto()
        proto.CopyFrom(self._assignment)
        entry = xla_pb2.BufferAllocationProto.Assigned(
            logical_buffer_id=number, offset=place.offset, size=place.size
        )
        for allocation in proto.buffer_allocations:
            kept = [s for s in allocation.assigned if s.logical_buffer_id != number]
            del allocation.assigned[:]
            allocation.assigned.extend(kept)
            if allocation.index == place.allocation:
                allocation.assigned.append(entry)
        return dataclasses.replace(
            self.executable,
            assignment=proto.SerializeToString(deterministic=True),
            thunks=self._rewritten(self._values.frame, self.executable.thunks, value, place),
        )

    def _rewritten(
        self, frame: Frame, thunks: tuple[GpuThunk, ...], value: MemoryValue, place: Slice
    ) -> tuple[GpuThunk, ...]:
        ops = {op.name: op for op in frame.body.ops}
        changed = []
        for thunk in thunks:
            op = ops.get(thunk.name)
            frames = () if op is None else frame.inner.get(op, ())
            frames = frames[::-1] if op is not None and op.opcode == "while" else frames
            if len(frames) == len(thunk.inner):
                pairs = zip(frames, thunk.inner, strict=True)
                inner = tuple(self._rewritten(f, t, value, place) for f, t in pairs)
                thunk = dataclasses.replace(thunk, inner=inner)
            if op is not None and not thunk.inner:
                thunk = self._placed(frame, op, thunk, value, place)
            changed.append(thunk)
        return tuple(changed)

    def _placed(
        self, frame: Frame, op: Op, thunk: GpuThunk, value: MemoryValue, place: Slice
    ) -> GpuThunk:
        """A thunk with one value elsewhere, where it names its operands and results in order."""
        given = [resolve(v) for o in (*op.operands, op) for v in frame.at[o].values()]
        given = [v for v in given if (found := self._place(v)) is not None and found.size]
        accesses = [a for a in thunk.accesses if a.slice.size]
        if [a.slice for a in accesses] != [self._place(v) for v in given]:
            return thunk
        left = iter(given)
        moved = (
            dataclasses.replace(a, slice=place) if a.slice.size and next(left) is value else a
            for a in thunk.accesses
        )
        return dataclasses.replace(thunk, accesses=tuple(moved))

    def _place(self, value: MemoryValue) -> Slice | None:
        value = resolve(value)
        found = self._places.get((value.op.name, value.index))
        return None if found is None else found[0]

    def _is_plain(self, value: MemoryValue) -> bool:
        """Whether nothing but its own instruction says where a value lies."""
        return value.op.opcode in ("fusion", "copy", "custom-call") and not value.also


def _frames(frame: Frame) -> Iterator[Frame]:
    yield frame
    for inner in frame.inner.values():
        for called in inner:
            yield from _frames(called)
