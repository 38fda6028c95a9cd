"""Checks an executable's thunks against its module: the same bytes, in the same order.

`memory.run` shows that the module's values survive in the places that XLA assigned. GPUs and CPUs
run thunks, which name slices of allocations. Here each thunk is compared with its instruction: it
reads the operands' bytes and writes the results', thunks follow the schedule, and nothing touches
bytes that are in use on another stream. So each thunk reads the values that the module says.
Commands that may run concurrently in a CUDA graph do not change this: XLA orders those that share
bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hlo.gpu_executable import GpuExecutable, GpuThunk
from hlo.gpu_thunks import Flow
from hlo.slices import Access, Slice
from hlo.wire import slice_ranges
from olla_xla.check.executable.element_order import digits
from olla_xla.check.executable.memory import PASSED_ON, Place
from olla_xla.check.executable.program import Op, Program, allocates
from olla_xla.check.executable.values import Frame, MemoryValue, Values, resolve
from olla_xla.errors import CheckError

if TYPE_CHECKING:
    from hlo.cpu_executable import CpuExecutable

_MAY_BE_NOTHING = frozenset(("copy", "custom-call"))
"""Opcodes that need no thunk where their results are in the memory of their operands."""

_UNCLEAR = frozenset("cublas_lt_matmul norm ragged_all_to_all select_k".split())
"""Kinds of thunks with slices that may be operands or results."""

_FILLS = frozenset(("memzero", "memset32bit_value"))
"""Kinds that write a part of what the thunks after them complete."""

_STILL = ("bitcast", "reshape")
_MOVES = frozenset(
    "broadcast concatenate constant copy dynamic-slice dynamic-update-slice parameter slice "
    "transpose".split()
)
_EXCHANGES = (
    "all-gather all-reduce all-to-all collective-broadcast collective-permute copy reduce-scatter"
).split()
"""Opcodes, their starts included, that copy where no other device takes part."""


@dataclasses.dataclass(frozen=True)
class _ThunkStep:
    """An instruction that thunks run: its position in the sequence, and the run it belongs to."""

    position: int
    frame: Frame
    op: Op


def check_thunks(
    program: Program,
    values: Values,
    places: Mapping[MemoryValue, Place],
    executable: GpuExecutable | CpuExecutable,
) -> None:
    """Checks that an executable's thunks do what its module says, at the bytes that XLA assigned.

    Raises CheckError, naming the thunk, if bytes, order or kinds of thunks differ. `program` and
    `values` are of the executable's module; `places`: value -> its assigned bytes.
    """
    walk = _Walk(places, executable.sizes)
    if isinstance(executable, GpuExecutable):
        walk.mocks_calls = executable.mocks_calls
        _check_interface(program, values, walk, executable)
    else:  # whose callers go by the assignment
        walk.tables = _tables(executable)
    walk.sequence(values.frame, executable.thunks)


def _check_interface(
    program: Program, values: Values, walk: _Walk, executable: GpuExecutable
) -> None:
    """Raises CheckError if arguments, results or aliases are not as the executable declares."""
    for allocation, (number, index) in executable.parameters.items():
        place = walk.place(values.frame.at[program.entry.parameters[number]].get(index))
        if place is not None and (place.allocation, place.offset) != (allocation, 0):
            raise CheckError(
                f"the executable declares argument {number}{_part(index)} in allocation "
                f"{allocation}, but XLA's buffer assignment does not put it there"
            )
    results = values.frame.at[program.entry.result]
    for index, value in results.items():
        place, output = walk.place(value), executable.outputs.get(index)
        if place is None or not place.size:
            continue
        if output is None or (place.allocation, place.offset) != (output.allocation, 0):
            raise CheckError(f"result {list(index)} is not in the memory that the caller reads")
        if output.parameter != program.aliases.get(index):
            raise CheckError(
                f"result {list(index)} is not in the memory of the argument that it aliases"
            )


class _Walk:
    """Checks the thunks of an executable, each once, those of loops and branches included."""

    def __init__(self, places: Mapping[MemoryValue, Place], sizes: Mapping[int, int]) -> None:
        self._places = places
        self._sizes = sizes
        self.mocks_calls = False
        self.tables: Mapping[str, set[Slice]] = {}
        self._running: dict[int, tuple[GpuThunk, list[Access]]] = {}
        """Number of an execution -> what runs on another stream, and its accesses."""
        self._touched: list[Access] = []

    def place(self, value: MemoryValue | None) -> Slice | None:
        """The bytes where a value lies, as a Slice; None for no value or one without a place."""
        where = None if value is None else self._places.get(resolve(value))
        return where and Slice(where.allocation, where.start, where.stop - where.start)

    def sequence(self, frame: Frame, thunks: Sequence[GpuThunk]) -> None:
        """Raises CheckError unless `thunks` do what `frame`, one run of a computation, does."""
        plain = tuple(_plain(thunks))
        whole = {t.name for t in plain if t.flow is Flow.NONE}
        steps = {step.op.name: step for step in _steps(frame, whole)}
        outside = set(self._running)
        of: dict[str, list[GpuThunk]] = {}
        last: _ThunkStep | None = None
        for thunk in plain:
            step = steps.get(thunk.name)
            if step is None:
                raise CheckError(f"{thunk} belongs to no instruction of {frame.body.name}")
            if last is not None and step.position < last.position:
                raise CheckError(f"{thunk} runs too late, after {last.op.name}")
            last = step
            self._touch(step, thunk)
            of.setdefault(thunk.name, []).append(thunk)
            if thunk.flow is Flow.START:
                self._begin(step, thunk)
            elif thunk.flow is Flow.DONE:
                self._wait(of, step, thunk)
            elif thunk.flow is not Flow.NONE:
                self._inner(step, thunk)
            elif thunk.is_known:
                self._check(step, of[thunk.name])
        for step in steps.values():
            self._complete(step, of.get(step.op.name, []))
        if left := set(self._running) - outside:
            raise CheckError(f"nothing waits for {self._running[min(left)][0]}")

    # What a thunk touches.

    def _accesses(self, step: _ThunkStep, thunk: GpuThunk) -> Sequence[Access]:
        """The accesses of a thunk; of an unknown kind, its instruction's operands and results.
        Where its kind does not tell what it writes, it writes what its instruction does.
        """
        if not thunk.is_known:
            read = [Access(place, True, False) for place in self._operands(step)]
            return [*read, *(Access(place, False, True) for place in self._results(step))]
        if thunk.kind not in _UNCLEAR:
            return thunk.accesses
        results = self._results(step)
        return [dataclasses.replace(a, writes=a.slice in results) for a in thunk.accesses]

    def _touch(self, step: _ThunkStep, thunk: GpuThunk) -> None:
        """Records what a thunk accesses. Raises CheckError where that is out of bounds, or
        conflicts with what still runs on another stream.
        """
        touched = self._accesses(step, thunk)
        for access in touched:
            if access.slice.end > self._sizes.get(access.slice.allocation, -1):
                raise CheckError(f"{thunk} accesses {_bytes(access.slice)}, out of bounds")
        self._touched += touched
        for other, accesses in self._running.values():
            for mine in touched:
                if any(_conflict(mine, theirs) for theirs in accesses):
                    raise CheckError(
                        f"{thunk} accesses {_bytes(mine.slice)}, which thunk {other.name} "
                        "still uses on another stream"
                    )

    def _check(self, step: _ThunkStep, thunks: list[GpuThunk]) -> None:
        """Raises CheckError if the last of an instruction's thunks accesses other bytes than
        its operands, its results, and what the thunks before it wrote.
        """
        *before, thunk = thunks
        operands, results = self._operands(step), self._results(step)
        accesses = [access for access in thunk.accesses if access.slice.size]
        if step.op.opcode == "call":
            self._check_call(step, thunk)
            return
        if [a.slice for a in accesses] == [*operands, *results]:
            self._roles(thunk, accesses, operands, results)
            return
        written = [a.slice for t in before for a in t.accesses if a.writes and a.slice.size]
        reads = [a.slice for a in accesses if not a.writes and a.slice not in written]
        writes = [a.slice for a in accesses if not a.reads]
        either = [a.slice for a in accesses if a.reads and a.writes]
        if not _in_order(reads, operands) and reads != self._copied(step, thunk):
            raise CheckError(f"{thunk} reads bytes that are not its operands: {_list(reads)}")
        if thunk.kind in _FILLS:
            inside = all(any(_within(w, r) for r in results) for w in writes)
        else:
            inside = _in_order(writes, results)
        if not inside:
            raise CheckError(f"{thunk} writes bytes that are not its results: {_list(writes)}")
        unclear = operands if thunk.kind in _UNCLEAR else []
        if not _in_order(either, [*unclear, *results]):
            raise CheckError(f"{thunk} updates bytes that are not its results: {_list(either)}")
        if _only_moves(thunk) and set(writes) & set(written):
            raise CheckError(f"{thunk} overwrites a result of {step.op.name}")

    def _check_call(self, step: _ThunkStep, thunk: GpuThunk) -> None:
        """Checks a kernel that runs a whole computation, and lists all buffers in any order.

        XLA lists each array that an operation there reads, and each that one makes, with its shape,
        and the tables of tuples. Raises CheckError where a kernel lists others or lacks some.
        """
        reads, writes = (set[tuple[Slice, bytes]]() for _ in range(2))
        tables, made = (set[Slice]() for _ in range(2))
        for frame in (f for called in step.frame.inner[step.op] for f in called.every()):
            for op in frame.at:
                reads.update(a for o in op.operands for a in self._arrays(frame, o))
                writes.update(self._arrays(frame, op) if op.opcode != "parameter" else ())
                tables.update(self.tables.get(op.name, ()))
                made.update(self.tables.get(op.name, ()) if op.opcode == "tuple" else ())
        tables.update(*(self.tables.get(o.name, ()) for o in step.op.operands))
        known = reads | writes
        tables -= {place for place, _ in known}
        listed = [a for a in thunk.accesses if a.slice.size and a.slice not in tables]
        if strange := sorted({a.slice for a in listed if (a.slice, a.shape) not in known}):
            raise CheckError(f"{thunk} accesses bytes of no operand or result: {_list(strange)}")
        reads -= {(a.slice, a.shape) for a in listed if a.reads}
        writes -= {(a.slice, a.shape) for a in listed if a.writes}
        made -= {a.slice for a in thunk.accesses if a.writes}
        if lost := sorted(made.union(place for place, _ in reads | writes)):
            raise CheckError(f"{thunk} does not access all its buffers: {_list(lost)}")

    def _arrays(self, frame: Frame, op: Op) -> Iterator[tuple[Slice, bytes]]:
        """Yields (assigned bytes, key of the shape) of each array that is not empty in a result."""
        for index, value in frame.at[op].items():
            if (place := self.place(value)) is not None and place.size:
                yield place, op.shape.at(index).key

    def _copied(self, step: _ThunkStep, thunk: GpuThunk) -> list[Slice] | None:
        """The bytes that a thunk must read if it copies a static slice, which its instruction is;
        None if it is no such copy, or these bytes are outside of the operand.
        """
        part = _copied_slice(step.op) if thunk.kind.endswith("copy") else None
        whole = part and self.place(step.frame.at[step.op.operands[part[0]]].get(()))
        if part is None or whole is None:
            return None
        read = Slice(whole.allocation, whole.offset + part[1], thunk.accesses[0].slice.size)
        return [read] if _within(read, whole) else None

    def _roles(
        self, thunk: GpuThunk, found: list[Access], operands: list[Slice], results: list[Slice]
    ) -> None:
        """Raises CheckError unless the accesses `found`, first to operands, then to results, read
        the operands, but for those that are results, too, and write the results.
        """
        for access in found[: len(operands)]:
            if not access.reads and access.slice not in results:
                raise CheckError(f"{thunk} writes the operand {_bytes(access.slice)}")
        for access in found[len(operands) :]:
            if not access.writes:
                raise CheckError(f"{thunk} does not write the result {_bytes(access.slice)}")

    def _complete(self, step: _ThunkStep, thunks: list[GpuThunk]) -> None:
        """Raises CheckError where an instruction's thunks leave out a part of what it does."""
        op = step.op
        if op.opcode in PASSED_ON or op.opcode.endswith("-done"):
            return
        if any(t.flow is not Flow.NONE or not t.is_known for t in thunks):
            return
        operands, results = self._operands(step), self._results(step)
        if not thunks and op.opcode in _MAY_BE_NOTHING and set(results) <= set(operands):
            return
        if not thunks and allocates(op):
            return
        if not thunks and op.opcode == "custom-call" and self.mocks_calls:
            return  # XLA was told to leave out what it has no code for
        if not thunks and results:
            raise CheckError(f"no thunk runs {op.name}")
        if thunks and all(map(_only_moves, thunks)) and not _moves_only(op):
            raise CheckError(f"thunks of {op.name} copy data, but none computes its result")
        if op.opcode.endswith("-start"):
            return  # it may have results for which nothing is written
        accesses = [a for t in thunks if t.kind not in _FILLS for a in t.accesses]
        written = {a.slice for a in accesses if a.writes}
        if lost := [result for result in results if result not in written]:
            raise CheckError(f"no thunk writes the result of {op.name} at {_bytes(lost[0])}")
        if op.opcode == "custom-call":  # what computes it works on all its results
            written = {a.slice for t in thunks if not _only_moves(t) for a in t.accesses} or written
        if lost := [result for result in results if result not in written]:
            raise CheckError(f"the result of {op.name} is not computed at {_bytes(lost[0])}")
        touched = {a.slice for a in accesses}
        unread = [operand for operand in operands if operand not in touched]
        if unread and op.opcode != "call" and _copied_slice(op) is None:
            raise CheckError(f"no thunk reads the operand of {op.name} at {_bytes(unread[0])}")

    def _operands(self, step: _ThunkStep) -> list[Slice]:
        at, operands = step.frame.at, step.op.operands
        return _held(self.place(v) for o in operands for v in at[o].values())

    def _results(self, step: _ThunkStep) -> list[Slice]:
        op = step.op
        made = (v for i, v in step.frame.at[op].items() if v.op is op and v.index == i)
        return _held(map(self.place, made))

    # What runs other thunks.

    def _begin(self, step: _ThunkStep, thunk: GpuThunk) -> None:
        if thunk.execution in self._running:
            raise CheckError(f"{thunk} starts an operation that is already running")
        outside, self._touched = self._touched, []
        (inner,) = thunk.inner or ((),)
        if frames := step.frame.inner.get(step.op, ()):
            self.sequence(frames[0], inner)
        for k, one in enumerate(inner if not frames else ()):
            self._touch(step, one)
            if one.is_known:
                self._check(step, list(inner[: k + 1]))
        self._running[thunk.execution] = thunk, self._touched
        self._touched = outside + self._touched

    def _wait(self, of: Mapping[str, list[GpuThunk]], step: _ThunkStep, thunk: GpuThunk) -> None:
        start = step.op.operands[0]
        while start.opcode.endswith("-update"):
            start = start.operands[0]
        begun = [t.execution for t in of.get(start.name, ()) if t.flow is Flow.START]
        if thunk.execution not in begun or thunk.execution not in self._running:
            raise CheckError(f"{thunk} does not wait for the operation of {start.name}")
        del self._running[thunk.execution]

    def _inner(self, step: _ThunkStep, thunk: GpuThunk) -> None:
        """Checks a loop's or a branch's thunk: what decides it, and the thunks of its bodies."""
        op, frames = step.op, step.frame.inner.get(step.op, ())
        if thunk.flow is Flow.LOOP:
            frames = frames[::-1]  # a thunk has its condition first
            decides = frames[0].at[frames[0].body.result][()] if frames else None
        else:
            decides = step.frame.at[op.operands[0]][()]
        if len(frames) != len(thunk.inner):
            raise CheckError(f"{thunk} does not run the computations that {op.name} calls")
        read = [access.slice for access in thunk.accesses]
        if read != [self.place(decides)]:
            raise CheckError(f"{thunk} reads {_list(read)} instead of its condition")
        for frame, inner in zip(frames, thunk.inner, strict=True):
            self.sequence(frame, inner)


def _steps(frame: Frame, whole: Collection[str], begin: int = 0) -> Iterator[_ThunkStep]:
    """Yields a run's instructions as steps, at positions from `begin` on; before a call that is not
    in `whole` come those that it runs.
    """
    position = begin
    for op in frame.body.ops:
        if op.opcode == "call" and op.name not in whole:
            for inner in frame.inner[op]:
                for step in _steps(inner, whole, position):
                    position = step.position + 1
                    yield step
        yield _ThunkStep(position, frame, op)
        position += 1


def _tables(executable: CpuExecutable) -> Mapping[str, set[Slice]]:
    """Instruction name -> all bytes assigned to it, its tuples' tables of pointers included."""
    places: dict[str, set[Slice]] = {}
    for allocation in executable.assignment.buffer_allocations:
        for a in allocation.assigned:
            of = places.setdefault(executable.names[a.logical_buffer_id], set())
            of.add(Slice(allocation.index, a.offset, a.size))
    return places


def _plain(thunks: Iterable[GpuThunk]) -> Iterator[GpuThunk]:
    """Yields the thunks in order; a nested sequence is replaced by its thunks."""
    for thunk in thunks:
        if thunk.flow is Flow.SEQUENCE:
            for sequence in thunk.inner:
                yield from _plain(sequence)
        else:
            yield thunk


def _only_moves(thunk: GpuThunk) -> bool:
    return thunk.kind in _FILLS or thunk.kind.endswith("copy")


def _held(slices: Iterable[Slice | None]) -> list[Slice]:
    return [one for one in slices if one is not None and one.size]


def _conflict(a: Access, b: Access) -> bool:
    one, other = a.slice, b.slice
    shared = one.allocation == other.allocation
    return shared and (a.writes or b.writes) and one.offset < other.end and other.offset < one.end


def _within(a: Slice, b: Slice) -> bool:
    return a.allocation == b.allocation and b.offset <= a.offset and a.end <= b.end


def _in_order(found: Iterable[Slice], expected: Iterable[Slice]) -> bool:
    """Whether `found` is a subsequence of `expected`."""
    left = iter(expected)
    return all(any(one == other for other in left) for one in found)


def _moves_only(op: Op) -> bool:
    """Whether a GPU may run an instruction as copies alone, without computing."""
    if op.opcode != "fusion":
        return op.opcode in _MOVES or op.opcode.removesuffix("-start") in _EXCHANGES
    root = op.called[0].result
    return all(
        part.behind(*_STILL).opcode in _MOVES
        for part in (root.operands if root.opcode == "tuple" else (root,))
    )


def _copied_slice(op: Op) -> tuple[int, int] | None:
    """(operand number, offset in bytes) of the slice of an operand that a GPU copies for `op`;
    None if `op` is neither a static slice nor a fusion of one of an operand.
    """
    cut = op.called[0].result.behind(*_STILL) if op.opcode == "fusion" else op
    if cut.opcode != "slice":
        return None
    source = cut.operands[0]
    if op.opcode == "fusion":
        source = source.behind(*_STILL)
        if source.opcode != "parameter":
            return None
    number = source.proto.parameter_number if op.opcode == "fusion" else 0
    shape = cut.operands[0].shape
    pairs = zip(slice_ranges(cut.proto), digits(shape), strict=True)
    first = sum(start * distance for (start, *_), (_, distance) in pairs)
    return number, first * shape.element_bits // 8


def _part(index: tuple[int, ...]) -> str:
    return f", part {list(index)}" if index else ""


def _list(slices: Iterable[Slice]) -> str:
    return ", ".join(map(_bytes, slices)) or "none"


def _bytes(place: Slice) -> str:
    return f"[{place.offset}, {place.end}) of allocation {place.allocation}"
