"""XLA's serialized GPU executable: its thunks in order, and XLA's buffer assignment.

A GPU executable is a sequence of thunks (one a kernel, a library call, a copy or a collective) that
name their buffers by allocation, offset and size, in the order in which the host issues them. XLA
serializes them before it makes command buffers of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, Self

from hlo.gc_pause import without_collection
from hlo.gpu_thunks import FLOWS, KINDS, Flow, Role
from hlo.module import HloError
from hlo.riegeli import Decompress, is_split, read_message
from hlo.shapes import ShapeIndex
from hlo.slices import Access, Slice
from hlo.wire import Message, packed_integers, read_varint, varint


@dataclasses.dataclass(frozen=True)
class GpuThunk:
    """A thunk: one step that a GPU executable runs, such as a kernel, a copy or a collective.

    Attributes:
      name: the HLO instruction that it runs.
      kind: as XLA's proto spells it, "custom_kernel"; "field 99" where it is not known here, and
        then its slices are not either.
      accesses: the slices of memory that it reads or writes, in the order of its proto.
      flow: what it does with the thunks in `inner`.
      inner: nested sequences of thunks: a loop's condition and body, a conditional's branches.
      execution: number that an asynchronous start thunk and its done thunk share.
      region: of thunks that may run concurrently in a command buffer, or None.
      kernel: name of the function that it launches, which several thunks may share; or "".
      slices: of a dynamic_slice_fusion, the parts of arrays that it works on.
      embedded: thunks that a dynamic_slice_fusion runs; their allocations are numbers of `slices`.
    """

    name: str
    kind: str
    accesses: tuple[Access, ...] = ()
    flow: Flow = Flow.NONE
    inner: tuple[tuple[GpuThunk, ...], ...] = ()
    execution: int = 0
    region: int | None = None
    kernel: str = ""
    slices: tuple[MovingSlice, ...] = ()
    embedded: tuple[GpuThunk, ...] = ()

    def __str__(self) -> str:
        return f"thunk {self.name} ({self.kind})"

    @property
    def is_known(self) -> bool:
        """Whether its kind is in `KINDS`, so that `accesses` lists the memory which it accesses."""
        return not self.kind.startswith("field ")

    def below(self) -> Iterator[Self]:
        """Yields this thunk and all in `inner`, at any depth, parents first; none of `embedded`."""
        yield self
        for sequence in self.inner:
            for thunk in sequence:
                yield from thunk.below()  # pyright: ignore[reportReturnType]  # all of one platform


@dataclasses.dataclass(frozen=True)
class Output:
    """The allocation that holds one result of the program when a GPU executable has run.

    Attributes:
      allocation: its number. parameter: the argument whose memory the result takes over (donation),
        as (parameter number, shape index), or None.
    """

    allocation: int
    parameter: tuple[int, ShapeIndex] | None


@dataclasses.dataclass(frozen=True)
class GpuExecutable:
    """A parsed GPU executable: its thunks (steps), buffer assignment, parameters and outputs.

    Attributes:
      thunks: of the entry computation, in order.
      assignment: XLA's buffer assignment, a serialized BufferAssignmentProto.
      sizes: bytes of each allocation, by its number.
      parameters: allocation -> (parameter number, index) whose memory it is.
      outputs: index of a result -> where it is.
      scheduling_mode: number of XLA's CommandBufferSchedulingMode that it was compiled with.
      mocks_calls: whether custom calls whose code was not there have no thunk.
    """

    thunks: tuple[GpuThunk, ...]
    assignment: bytes
    sizes: Mapping[int, int]
    parameters: Mapping[int, tuple[int, ShapeIndex]]
    outputs: Mapping[ShapeIndex, Output]
    scheduling_mode: int
    mocks_calls: bool = False

    @property
    def all_thunks(self) -> Iterator[GpuThunk]:
        """All of its thunks, those in loops and branches too (`GpuThunk.below`), parents first."""
        return (below for thunk in self.thunks for below in thunk.below())

    @property
    def unknown_kinds(self) -> frozenset[str]:
        """Kinds of its thunks that `KINDS` lacks: what memory these access is not known."""
        return frozenset(thunk.kind for thunk in self.all_thunks if not thunk.is_known)


@without_collection()
def read_gpu_executable(data: bytes, decompress: Decompress) -> GpuExecutable:
    """Parses a GPU executable that `serialize` has written, also one compiled for an absent GPU.

    Args:
      data: the bytes. decompress: see `read_message`.

    Raises:
      HloError: it is no GPU executable, or is written in a format that is not known here.
    """
    try:
        return _read(data, decompress)
    except (IndexError, ValueError, RecursionError) as error:  # of bytes that are no message
        if isinstance(error, HloError):
            raise
        raise HloError("not a GPU's executable") from error


def cut_down(data: bytes, names: Collection[str], decompress: Decompress) -> bytes:
    """Returns a serialized GPU executable without code, and only with the thunks whose instruction,
    and that of each thunk around them, is in `names`. The result can be parsed, not run.
    Other arguments and HloError: see `read_gpu_executable`.
    """
    proto = _proto(data, decompress)
    proto = proto.without(proto.numbers() - {_OPTIONS, *_PLACES, _THUNKS})
    _keep(proto, _THUNKS, names)
    inner = proto.encode()
    return b"\0" + varint(1 << 3 | 2) + varint(len(inner)) + inner


def _keep(holder: Message, number: int, names: Collection[str]) -> None:
    """Removes thunks of a field, at any depth, that do not run one of the named instructions."""
    holder.keep(number, lambda thunk: Message(thunk.blob(1)).text(1) in names)
    for thunk in holder.messages(number):
        for field in thunk.numbers() & FLOWS.keys():
            body = thunk.message(field)
            for inner, is_message in FLOWS[field][1].items():
                for one in body.messages(inner) if is_message else ():
                    _keep(one, 1, names)
                if not is_message:
                    _keep(body, inner, names)


_OPTIONS, _PLACES, _THUNKS = 1, (2, 10, 11), 13
"""Fields of GpuExecutableProto: the module and its options; assignment, allocations, outputs."""


def _proto(data: bytes, decompress: Decompress) -> Message:
    """Finds the GpuExecutableProto of an executable, without fields stored separately."""
    length, start = read_varint(data, 0)  # IFRT's own metadata come first
    rest = data[start + length :]
    if is_split(rest):
        outer = read_message(rest, "xla.ExecutableAndOptionsProto", decompress)
        inner = outer.get((1,)) or Message(outer.get((), b"")).blob(1)
    else:  # as XLA wrote it up to jaxlib 0.11.0
        inner = Message(rest).blob(1)
    if not is_split(inner):  # as `cut_down` writes it
        return Message(inner)
    return Message(read_message(inner, "xla.gpu.GpuExecutableProto", decompress).get((), b""))


def _read(data: bytes, decompress: Decompress) -> GpuExecutable:
    proto = _proto(data, decompress)
    allocations = Message(proto.blob(10)).messages(1)
    assignment = proto.blob(2)
    if not allocations or not assignment:
        raise HloError("the executable has no buffer assignment")
    options = Message(Message(Message(proto.blob(1)).blob(2)).blob(14))  # DebugOptions
    return GpuExecutable(
        thunks=_sequence(proto.messages(_THUNKS)),
        assignment=assignment,
        sizes={a.integer(1): a.integer(2) for a in allocations},
        parameters={
            a.integer(1): (a.integer(6), packed_integers(a.blob(10)))
            for a in allocations
            if a.integer(5)
        },
        outputs=dict(map(_output, proto.messages(11))),
        scheduling_mode=options.integer(404),
        mocks_calls=bool(options.integer(245)),
    )


def _output(entry: Message) -> tuple[ShapeIndex, Output]:
    info = Message(entry.blob(2))
    alias = None
    if 3 in info.numbers():
        donation = info.message(3)
        alias = donation.integer(2), packed_integers(donation.blob(3))
    return packed_integers(Message(entry.blob(1)).blob(1)), Output(info.integer(1), alias)


def _sequence(messages: list[Message]) -> tuple[GpuThunk, ...]:
    return tuple(map(_thunk, messages))


def _thunk(message: Message) -> GpuThunk:
    info = Message(message.blob(1))
    name = info.text(1)
    numbers = message.numbers() - {1}
    if len(numbers) != 1:
        raise HloError(f"thunk {name} has {len(numbers)} kinds, not one")
    (number,) = numbers
    region = info.integer(4) if 4 in info.numbers() else None
    if number not in KINDS:
        return GpuThunk(name, f"field {number}", region=region)
    kind, body = KINDS[number], message.message(number)
    flow, sequences, execution = FLOWS.get(number, (Flow.NONE, {}, 0))
    inner = tuple(
        _sequence(holder.messages(1) if is_message else [holder])
        for field, is_message in sequences.items()
        for holder in body.messages(field)
    )
    if flow is Flow.SEQUENCE and inner:
        inner = (tuple(thunk for part in inner for thunk in part),)
    return GpuThunk(
        name=name,
        kind=kind.name,
        accesses=tuple(_accesses(body, kind.fields, packed_integers(body.blob(kind.written)))),
        flow=flow,
        inner=inner,
        execution=body.integer(execution) if execution else 0,
        region=region,
        kernel=_text(body, kind.kernel),
        slices=moving_slices(body) if number == THUNK else (),
        embedded=_sequence(embedded_thunks(body)) if number == THUNK else (),
    )


def _accesses(body: Message, fields: Mapping[int, tuple], written: tuple[int, ...]):
    for number, parts in fields.items():
        for k, holder in enumerate(body.messages(number)):
            for path, role in parts:
                holding = _below(holder, path)
                if holding is None:
                    continue
                place = Slice(holding.integer(3), holding.integer(1), holding.integer(2))
                if role is Role.FLAGGED:
                    role = Role.WRITE if k < len(written) and written[k] else Role.READ
                yield Access(place, role is not Role.WRITE, role is not Role.READ)


def _text(body: Message, path: tuple[int, ...]) -> str:
    """Returns the string at the end of a path of field numbers; "" if one is missing, or for ()."""
    holder = _below(body, path[:-1])
    return holder.text(path[-1]) if path and holder is not None else ""


def _below(holder: Message, path: tuple[int, ...]) -> Message | None:
    """Returns the message at the end of a path of field numbers; None if one on it is missing."""
    for number in path:
        submessages = holder.messages(number)
        if not submessages:
            return None
        holder = submessages[0]
    return holder


# A dynamic_slice_fusion thunk has a piece of an operand or of a result in each iteration of a loop.
# The host computes where it begins, from the iteration's number, and does not read the module's
# index. Messages: DynamicSliceFusionThunkProto (xla/backends/gpu/runtime/thunk.proto),
# DynamicSliceConfig (xla/service/gpu/backend_configs.proto).

THUNK = 60
"""Number of the field of a ThunkProto that such a thunk is in."""

_PARAMETERS, _RESULTS, _PARTS, _EMBEDDED = 1, 2, 5, 6
_NUMBER, _SHAPE, _DIMENSIONS = {_PARAMETERS: 1, _RESULTS: 2}, {_PARAMETERS: 3, _RESULTS: 4}, 3
_CONFIG = {_PARAMETERS: 4, _RESULTS: 5}
_LOOP, _OFFSET, _STRIDE, _TABLE, _LINEAR = 1, 2, 3, 4, 5


class MovingSlice(NamedTuple):
    """An operand or result of a dynamic_slice_fusion thunk: a slice that moves with the iteration.

    Attributes:
      is_result: whether it is a result. number: of the fusion's operand, or of its result.
      size: bytes of the slice. dimensions: of the slice.
      is_cut: whether it is a part of that array, and not the whole.
      loop: which enclosing loop's iterations count, 0 the innermost; None where none does.
      start, stride: in bytes; the slice begins at start + stride * iteration.
      table: the bytes at which it begins, by iteration, instead; or ().
    """

    is_result: bool
    number: int
    size: int
    dimensions: tuple[int, ...]
    is_cut: bool = False
    loop: int | None = None
    start: int = 0
    stride: int = 0
    table: tuple[int, ...] = ()

    def offset(self, iterations: tuple[int, ...]) -> int:
        """Returns the slice's offset in bytes, given the iteration of each loop, outermost first.
        XLA counts 0 where there is no such loop, and a table's last entry is used from then on.
        """
        k = 0
        if self.loop is not None and self.loop < len(iterations):
            k = iterations[len(iterations) - 1 - self.loop]
        if self.table:
            return self.table[min(k, len(self.table) - 1)]
        return self.start + self.stride * k


def moving_slices(body: Message) -> tuple[MovingSlice, ...]:
    """Reads the operands, then the results, of a DynamicSliceFusionThunkProto as MovingSlices."""
    sizes = {part.integer(1): part.integer(2) for part in body.messages(_PARTS)}
    slices: list[MovingSlice] = []
    for kind in (_PARAMETERS, _RESULTS):
        for entry in body.messages(kind):
            plain = MovingSlice(
                kind == _RESULTS,
                entry.integer(_NUMBER[kind]),
                sizes.get(len(slices), 0),
                packed_integers(Message(entry.blob(_SHAPE[kind])).blob(_DIMENSIONS)),
            )
            config = entry.messages(_CONFIG[kind])
            slices.append(_configured(plain, config[0]) if config else plain)
    return tuple(slices)


def embedded_thunks(body: Message) -> list[Message]:
    """Lists ThunkProtos that a dynamic-slice fusion runs; allocation k is `moving_slices`' k-th."""
    return [thunk for sequence in body.messages(_EMBEDDED) for thunk in sequence.messages(1)]


def _configured(plain: MovingSlice, config: Message) -> MovingSlice:
    linear = config.messages(_LINEAR)
    where, first, second = (linear[0], 1, 2) if linear else (config, _OFFSET, _STRIDE)
    table = config.messages(_TABLE)
    return plain._replace(
        is_cut=True,
        loop=config.integer(_LOOP) if _LOOP in config.numbers() else None,
        start=where.signed(first),
        stride=where.signed(second),
        table=packed_integers(table[0].blob(1)) if table else (),
    )
