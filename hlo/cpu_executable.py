"""XLA's serialized CPU executable: which memory each thunk reads and writes.

A CPU executable is a sequence of thunks (one a kernel, a library call, a copy, a loop) that name
their buffers by allocation, offset and size. Object code takes addresses as arguments and knows no
offsets. XLA orders thunks by these slices when it loads the executable, so slices that are changed
bring their own dependencies along.

All fields of every message that leads to a slice are listed (openxla/xla,
xla/backends/cpu/runtime/thunk.proto, as in jaxlib 0.12.0). An executable with other fields, or with
kinds of thunks that hold state beside their slices (random numbers, infeeds), is refused.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from hlo import xla_pb2
from hlo.gpu_executable import GpuThunk
from hlo.gpu_thunks import Flow
from hlo.module import HloError
from hlo.shapes import TUPLE
from hlo.slices import Access, Slice
from hlo.walk import after_needs
from hlo.wire import Message, read_varint, varint


@dataclasses.dataclass(frozen=True)
class CpuThunk(GpuThunk):
    """One step of a CPU executable, such as a kernel, a library call, a copy or a loop.

    A loop accesses its condition's result, a conditional the number of the branch.

    Attributes:
      inner: nested sequences: a loop's condition and body, a conditional's branches.
      number: its index among all thunks, nested ones included, parents first.
      counted: whether it is a loop of a known number of iterations, which runs no condition.
    """

    inner: tuple[tuple[CpuThunk, ...], ...] = ()
    number: int = 0
    counted: bool = False


_READ, _WRITE, _BOTH = (True, False), (False, True), (True, True)
_PLAIN, _SLICE_FIRST, _SHAPE_FIRST = (), (1,), (2,)
"""Paths of fields from a field's message to the slice in it."""

_Form = tuple[tuple[int, ...], tuple[bool, bool]]

# By number of the field in ThunkProto: a thunk's fields without a slice; fields of messages that
# hold the slices (() is the thunk itself), each with its fields without a slice and those with one.
_THUNKS: dict[int, tuple[set[int], dict[int, _Form]]] = {
    5: ({1, 2, 3, 4}, {5: (_SHAPE_FIRST, _BOTH)}),  # sort
    7: (
        {1},
        {2: (_SHAPE_FIRST, _READ), 3: (_SHAPE_FIRST, _READ), 4: (_SHAPE_FIRST, _WRITE)},
    ),  # dot
    9: ({1, 2, 3}, {4: (_PLAIN, _READ), 5: (_PLAIN, _WRITE), 6: (_PLAIN, _WRITE)}),  # top-k
    11: ({1, 2, 3, 4}, {5: (_SLICE_FIRST, _READ), 6: (_SLICE_FIRST, _WRITE)}),  # kernel
    12: (set(), {1: (_SHAPE_FIRST, _READ), 2: (_SHAPE_FIRST, _WRITE)}),  # copy
    13: ({1, 2, 3}, {4: (_SHAPE_FIRST, _READ), 5: (_SHAPE_FIRST, _WRITE)}),  # fft
    17: (
        {1, 2, 3, 7},
        {4: (_SHAPE_FIRST, _READ), 5: (_SHAPE_FIRST, _READ), 6: (_SHAPE_FIRST, _WRITE)},
    ),  # convolution
    19: (set(), {1: (_PLAIN, _WRITE)}),  # partition id
    20: (set(), {1: (_PLAIN, _WRITE)}),  # replica id
    21: ({1, 2}, {3: (_SHAPE_FIRST, _READ), 4: (_SHAPE_FIRST, _WRITE)}),  # ynn fusion
}
_BUFFERS: dict[int, tuple[int, set[int], set[int]]] = {
    16: (4, {1, 2, 3}, {3}),  # custom call
    18: (2, {1, 3, 4, 5, 6, 7, 8}, set()),  # collective
}
"""Thunks whose field of that number has operands in its field 1 and results in 2: their other
fields, and those of that message."""

_FLOWS: dict[int, tuple[Flow, set[int], tuple[int, ...], int]] = {
    3: (Flow.SEQUENCE, set(), (1,), 0),  # call
    4: (Flow.BRANCH, set(), (1,), 2),  # conditional
    10: (Flow.LOOP, {3}, (1, 2), 4),  # while
}
"""Thunks with others inside: other fields, those with sequences, the one with the slice it reads"""

_TRIPS = 3  # of a while thunk
_KIND, _INFO = 1, 2  # of ThunkProto
_SLICE_FIELDS = {1, 2, 3, 4}  # offset, size, allocation, element type
_RESULT_FIELDS = {1, 2, 3, 5, 6, 7, 8, 9, 10}  # of CompilationResultProto
_KERNELS = 2  # CompilationResultProto.ObjFileKind
_DEFINES = {"constant", "copy", "custom-call", "dot", "fusion"}
"""Opcodes whose value is their own and no operand's; others may pass on what they are given."""


class CpuExecutable:
    """A parsed CPU executable, of which copies with other places of buffers can be serialized.

    Args:
      data: what `serialize` of a loaded executable gives.

    Attributes:
      data: the same. thunks: the top-level CpuThunks, in the order in which XLA emitted them.
      flat: all thunks, nested ones included, by number.
      assignment: its buffer assignment, a BufferAssignmentProto. sizes: bytes of each allocation.
      names: id of a logical buffer -> name of the instruction that defines it.

    Raises:
      HloError: the data is no such executable, or it holds something that cannot be changed safely.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        length, start = read_varint(data, 0)
        self._head = data[start : start + length]  # IFRT's own metadata
        self._outer = Message(data[start + length :])
        self._result = Message(self._outer.blob(1))
        _known(self._result, _RESULT_FIELDS, "the executable")
        if self._result.integer(5) != _KERNELS:
            raise HloError("the executable is not a sequence of thunks")
        self.assignment = xla_pb2.BufferAssignmentProto()
        try:
            self.assignment.ParseFromString(self._result.blob(2))
        except Exception as error:
            raise HloError("the executable has no buffer assignment") from error
        self._module = xla_pb2.HloModuleProto()
        try:
            self._module.ParseFromString(Message(self._result.blob(1)).blob(1))
        except Exception as error:
            raise HloError("the executable has no module") from error
        names = {i.id: i.name for c in self._module.computations for i in c.instructions}
        self.names = {
            b.id: b.defined_at.instruction_name or names.get(b.defined_at.instruction_id, "")
            for b in self.assignment.logical_buffers
        }
        self._slices: list[list[Message]] = []
        self.thunks = self._sequence(self._result.message(6))
        self.flat = tuple(t for thunk in self.thunks for t in thunk.below())
        self.sizes = {a.index: a.size for a in self.assignment.buffer_allocations}

    @functools.cached_property
    def scratch(self) -> frozenset[tuple[int, int]]:
        """(thunk's number, index of an access) of each slice that a thunk uses as scratch memory.

        A kernel that runs a whole computation lists all of the computation's memory among what it
        reads. Where no array of its operands lies in exactly these bytes, they are memory of its
        own. So is a tuple's table of addresses, which no other thunk writes or reads.
        """
        given = self._operands()
        shapes = {i.name: i.shape for c in self._module.computations for i in c.instructions}
        arrays: dict[int, set[str]] = {}
        for value in self.assignment.logical_buffers:
            shape = shapes[self.names[value.id]]
            for k in value.defined_at.shape_index:
                shape = shape.tuple_shapes[k]
            arrays[value.id] = set() if shape.element_type == TUPLE else {self.names[value.id]}
        holders: dict[Slice, set[str]] = {}
        for b in self.assignment.buffer_allocations:
            if not (b.is_constant or b.is_entry_computation_parameter):
                for a in b.assigned:
                    held = holders.setdefault(Slice(b.index, a.offset, a.size), set())
                    held |= arrays[a.logical_buffer_id]
        return frozenset(
            (thunk.number, k)
            for thunk in self.flat
            if thunk.name in given and thunk.flow is Flow.NONE
            for k, a in enumerate(thunk.accesses)
            if a.reads and a.slice in holders and holders[a.slice].isdisjoint(given[thunk.name])
        )

    def _operands(self) -> dict[str, set[str]]:
        """Maps each call's name to the names of instructions whose values its operands may be."""
        every = {i.id: i for c in self._module.computations for i in c.instructions}
        roots = {c.id: c.root_id for c in self._module.computations}
        home = {i.id: c.id for c in self._module.computations for i in c.instructions}
        callers: dict[int, list[int]] = {}
        for i in every.values():
            again = [roots[c] for c in i.called_computation_ids]  # what a loop's next turn is given
            for called in i.called_computation_ids:
                callers.setdefault(called, []).extend((*i.operand_ids, *again))

        def handed_on(part: tuple[int, tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
            (k, index), i = part, every[part[0]]
            if i.opcode in _DEFINES:
                return []
            given = callers.get(home[k], []) if i.opcode == "parameter" else i.operand_ids
            if i.opcode == "get-tuple-element":
                index = (i.tuple_index, *index)
            elif i.opcode == "tuple" and index:
                given, index = given[index[0] : index[0] + 1], index[1:]
            return [(o, index) for o in (*given, *(roots[c] for c in i.called_computation_ids))]

        calls = [i for i in every.values() if i.opcode == "call"]
        reached = {i.name: after_needs([(k, ()) for k in i.operand_ids], handed_on) for i in calls}
        return {name: {every[k].name for k, _ in given} for name, given in reached.items()}

    def _sequence(self, sequence: Message) -> tuple[CpuThunk, ...]:
        """Parses a ThunkSequenceProto; adds each thunk's slices of memory to `_slices`."""
        _known(sequence, {1, 2}, "a sequence of thunks")
        return tuple(self._thunk(thunk) for thunk in sequence.messages(1))

    def _thunk(self, thunk: Message) -> CpuThunk:
        kind, number = thunk.text(_KIND), len(self._slices)
        name = thunk.message(_INFO).text(1)
        said = f"thunk {name} ({kind})"
        (field, *more) = sorted(thunk.numbers() - {_KIND, _INFO}) or (0,)
        if more or field not in {*_THUNKS, *_BUFFERS, *_FLOWS}:
            raise HloError(f"{said} is of a kind that keeps its place")
        body = thunk.message(field)
        slices: list[Message] = []
        self._slices.append(slices)
        if field in _FLOWS:
            flow, others, sequences, reads = _FLOWS[field]
            _known(body, {*others, *sequences, reads}, said)
            accesses = _accesses(body, {reads: (_PLAIN, _READ)} if reads else {}, slices, said)
            inner = [body.messages(n) for n in sequences]
            nested = tuple(self._sequence(sequence) for some in inner for sequence in some)
            counted = flow is Flow.LOOP and body.message(_TRIPS).integer(2) == 1
            if flow is not Flow.BRANCH and len(nested) != len(sequences):
                raise HloError(f"{said} has {len(nested)} sequences")
            return CpuThunk(
                name, kind, tuple(accesses), flow, nested, number=number, counted=counted
            )
        if field in _THUNKS:
            others, fields = _THUNKS[field]
        else:
            holder, outside, others = _BUFFERS[field]
            _known(body, {holder, *outside}, said)
            body = body.message(holder)
            fields = {1: (_SHAPE_FIRST, _READ), 2: (_SHAPE_FIRST, _WRITE)}
        _known(body, {*others, *fields}, said)
        return CpuThunk(name, kind, tuple(_accesses(body, fields, slices, said)), number=number)

    def relocated(
        self,
        places: Sequence[Sequence[Slice]],
        sizes: Mapping[int, int],
        values: Mapping[int, tuple[int, int]],
    ) -> bytes:
        """Serializes a copy of the executable with buffers at other places, which are not checked.

        Args:
          places: the slice of each access, by thunk's number, then in order of its accesses.
          sizes: allocation -> its new size in bytes; others keep theirs.
          values: logical buffer -> its new (allocation, offset in bytes); others keep theirs.
        """
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
        return self._encoded(places, proto.SerializeToString(deterministic=True))

    def without_places(self) -> bytes:
        """Serializes a copy without buffer assignment; slices are at offset 0 of allocation 0."""
        nowhere = [[Slice(0, 0, a.slice.size) for a in t.accesses] for t in self.flat]
        return self._encoded(nowhere, b"")

    def _encoded(self, places: Sequence[Sequence[Slice]], assignment: bytes) -> bytes:
        """Serializes a copy with the slices in `places` (see `relocated`) and this assignment."""
        other = CpuExecutable(self.data)  # its messages are changed, not these
        for slices, row in zip(other._slices, places, strict=True):
            for message, place in zip(slices, row, strict=True):
                message.set_integer(3, place.allocation)
                message.set_integer(1, place.offset)
        other._result.set_blob(2, assignment)
        other._outer.set_blob(1, other._result.encode())
        return varint(len(other._head)) + other._head + other._outer.encode()


def _known(message: Message, numbers: set[int], said: str) -> None:
    """Raises HloError if a message has fields besides `numbers`; `said` is its name in errors."""
    if unknown := message.numbers() - numbers:
        raise HloError(f"{said} has fields that are not known: {sorted(unknown)}")


def _accesses(
    body: Message, fields: Mapping[int, _Form], slices: list[Message], said: str
) -> Iterator[Access]:
    """Yields an Access for each slice of memory in `fields` of a thunk's message.

    Args:
      fields: number -> path of fields to the slice, whether it is read, and whether written.
      slices: their messages are added to it. said: the thunk's name in errors.
    """
    for field, (path, (reads, writes)) in fields.items():
        for message in body.messages(field):
            shape = b""
            for step in path:
                _known(message, {1, 2}, f"a slice of {said}")
                shape, message = message.message(3 - step).encode(), message.message(step)
            _known(message, _SLICE_FIELDS, f"a slice of {said}")
            place = Slice(message.integer(3), message.integer(1), message.integer(2))
            slices.append(message)
            yield Access(place, reads, writes, shape)
