"""Simulates a module's schedule over memory and shows that every read finds the value written.

Memory holds values. Each value that an operation reads must still be there. A value that it writes
ends all that share a byte with it. Two kinds of memory are simulated: the buffers that XLA must
share, as its alias analysis defines them (`shared_buffers`), and, where XLA's buffer assignment is
known, the bytes of its allocations (`assigned_places`).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hlo.late import late
from hlo.shapes import ShapeIndex
from olla_xla.check.executable.overwrite import may_overwrite, must_share
from olla_xla.check.executable.program import CONTROL_FLOW, Op, Program, allocates
from olla_xla.check.executable.values import Frame, MemoryValue, Values, resolve
from olla_xla.errors import CheckError

if TYPE_CHECKING:
    import olla_xla.check.executable.tpu as tpu
else:
    tpu = late("olla_xla.check.executable.tpu")

PASSED_ON = frozenset(
    "parameter constant tuple get-tuple-element bitcast opt-barrier optimization-barrier domain "
    "add-dependency async-update".split()
)
"""Opcodes that read no array when they run."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies: bytes [start, stop) of an allocation."""

    allocation: int
    start: int
    stop: int


Places = Mapping[MemoryValue, Place]


def shared_buffers(program: Program, values: Values, target: str) -> dict[MemoryValue, Place]:
    """Value -> a place that stands for the buffer that XLA must put it into (HloAliasAnalysis).

    Each buffer counts as an allocation of one byte, or of none. Sets `MemoryValue.buffer`. Values
    found to equal others (`same`) are left out.
    """
    live = [value for value in values.defined if value.same is None]
    for number, value in enumerate(live):
        value.buffer = number
    parent = list(range(len(live)))

    def find(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    def join(a: MemoryValue, b: MemoryValue) -> None:
        i, j = find(resolve(a).buffer), find(resolve(b).buffer)
        parent[max(i, j)] = min(i, j)

    for frame in values.frame.every():
        for states in frame.states.values():
            for _, start, state, end, after in states:
                for other in (start, end, after):
                    join(state, other)
        for chosen in frame.choices.values():
            for result, parts in chosen:
                for part in parts:
                    join(result, part)
        for op in frame.body.ops:
            for index, number, inner in must_share(op, target):
                join(frame.at[op][index], frame.at[op.operands[number]][inner])
    root = values.frame.at[program.entry.result]
    for index, (number, inner) in program.aliases.items():
        if index in root:
            join(root[index], values.frame.at[program.entry.parameters[number]][inner])
    return {
        value: Place(find(value.buffer), 0, min(value.op.shape.at(value.index).bytes, 1))
        for value in live
    }


def assigned_places(
    values: Values, found: Mapping[tuple[str, ShapeIndex], Place]
) -> dict[MemoryValue, Place]:
    """Value -> its bytes in XLA's buffer assignment, without values found to equal others.

    Raises CheckError if a value of some bytes has no place, or a loop's state has two. `found`:
    (instruction name, shape index) -> bytes assigned to it.
    """
    places = {}
    for value in values.defined:
        if value.same is not None:
            continue
        names = [(value.op.name, value.index), *((op.name, index) for op, index in value.also)]
        known = [found[name] for name in names if name in found]
        if not known:
            if not value.op.shape.at(value.index).bytes:
                continue
            raise CheckError(f"XLA assigned no memory to {value.name}")
        if any((p.allocation, p.start) != (known[0].allocation, known[0].start) for p in known):
            raise CheckError(f"the loop state {value.name} has two different addresses")
        places[value] = known[0]
    return places


def run(
    program: Program,
    values: Values,
    places: Places,
    target: str,
    tables: Mapping[str, Place] | None = None,
) -> None:
    """Simulates a schedule over memory, with each loop's body and each branch once.

    Raises CheckError if a value is read that was overwritten, or not written; a result is written
    over an operand against XLA's rules; that of a loop, a branch or an aliased output is not in the
    place that it must have; or a constant, a result, or an argument not donated is overwritten.

    `places`: value -> where it lies. `target`: "cpu", "cuda" or "tpu". `tables`: name of a tuple
    instruction whose code writes pointers to the elements -> where.
    """
    machine = _Machine(places, target, tables or {})
    arguments = [(p, i, v) for p in program.entry.parameters for i, v in values.frame.at[p].items()]
    constants = [value for value in values.defined if value.op.opcode == "constant"]
    for value in (*constants, *(value for _, _, value in arguments)):
        machine.write(value, None)
    machine.run(values.frame)
    given = {(number, index) for number, index in program.aliases.values()} | program.donors
    for parameter, index, value in arguments:
        if (parameter.proto.parameter_number, index) not in given:
            machine.read(value, "the caller", "an argument that was not donated")
    for value in constants:
        machine.read(value, "the next run", "a constant")
    for index, value in values.frame.at[program.entry.result].items():
        machine.read(value, "the caller", "a result")
        if index in program.aliases:
            number, inner = program.aliases[index]
            argument = values.frame.at[program.entry.parameters[number]][inner]
            machine.same_place(argument, value, "an argument and the output that reuses it")


class _Memory:
    """The values that memory holds: sorted by start in each allocation, no two sharing a byte."""

    def __init__(self) -> None:
        self._starts: dict[int, list[int]] = {}
        self._held: dict[int, list[tuple[int, int, MemoryValue]]] = {}
        self._ended_by: dict[MemoryValue, Op | None] = {}
        self.holds: set[MemoryValue] = set()
        self.log: list[tuple[bool, MemoryValue, Place]] = []

    def put(self, value: MemoryValue, place: Place, by: Op | None) -> None:
        """Writes and logs a value at `place`; values that share a byte end, overwritten by `by`."""
        starts = self._starts.setdefault(place.allocation, [])
        held = self._held.setdefault(place.allocation, [])
        first = bisect.bisect_left(starts, place.start)
        if first and held[first - 1][1] > place.start:
            first -= 1
        last = first
        while last < len(held) and held[last][0] < place.stop:
            start, stop, old = held[last]
            self.holds.discard(old)
            self._ended_by[old] = by
            self.log.append((False, old, Place(place.allocation, start, stop)))
            last += 1
        starts[first:last] = [place.start]
        held[first:last] = [(place.start, place.stop, value)]
        self.holds.add(value)
        self.log.append((True, value, place))

    def undo(self, mark: int) -> dict[MemoryValue, Place]:
        """Restores memory to when the log had `mark` entries; returns what ended since -> where."""
        ended: dict[MemoryValue, Place] = {}
        while len(self.log) > mark:
            written, value, place = self.log.pop()
            starts, held = self._starts[place.allocation], self._held[place.allocation]
            at = bisect.bisect_left(starts, place.start)
            if written:
                del starts[at], held[at]
                self.holds.discard(value)
            else:
                starts.insert(at, place.start)
                held.insert(at, (place.start, place.stop, value))
                self.holds.add(value)
                ended[value] = place
        return ended

    def drop(self, places: Places, by: Op) -> None:
        """Ends those values in `places` that memory holds, as overwritten by operation `by`."""
        for value in places.keys() & self.holds:
            place = places[value]
            starts, held = self._starts[place.allocation], self._held[place.allocation]
            at = bisect.bisect_left(starts, place.start)
            del starts[at], held[at]
            self.holds.discard(value)
            self._ended_by[value] = by
            self.log.append((False, value, place))

    def ended_by(self, value: MemoryValue) -> str:
        """Text that says which operation wrote over a value, or that nothing wrote it."""
        by = self._ended_by.get(value)
        return "nothing wrote it" if by is None else f"{by.name} has written over it"


class _Machine:
    def __init__(self, places: Places, target: str, tables: Mapping[str, Place]) -> None:
        self._places = places
        self._tables = tables
        self._target = target
        self._memory = _Memory()
        self._blank: set[MemoryValue] = set()
        """Memory that was given as it is, before anything is written into it."""

    def read(self, value: MemoryValue, reader: str, what: str = "") -> None:
        value = resolve(value)
        if value in self._memory.holds or value not in self._places:
            return
        what = f", {what}" if what else ""
        raise CheckError(f"{reader} reads {value.name}{what}, but {self._memory.ended_by(value)}")

    def write(self, value: MemoryValue, by: Op | None) -> None:
        value = resolve(value)
        place = self._places.get(value)
        if place is not None and place.stop > place.start:
            self._memory.put(value, place, by)
        elif place is not None:
            self._memory.holds.add(value)

    def same_place(self, a: MemoryValue, b: MemoryValue, what: str) -> None:
        first, second = self._places.get(resolve(a)), self._places.get(resolve(b))
        if first is None or second is None or first.start == first.stop:
            return
        if (first.allocation, first.start) != (second.allocation, second.start):
            raise CheckError(f"{a.name} and {b.name}, {what}, must have one address, but have two")

    def run(self, frame: Frame) -> None:
        for op in frame.body.ops:
            if op.opcode in CONTROL_FLOW:
                _CONTROL[op.opcode](self, frame, op)
            elif op.opcode not in PASSED_ON:
                self.step(frame, op)
            elif op.name in self._tables:
                self._memory.put(MemoryValue(op, ()), self._tables[op.name], op)

    def step(self, frame: Frame, op: Op) -> None:
        """Simulates an operation: reads its operands, writes its results; CheckError if wrong."""
        begun = self._begun_by(frame, op) if op.opcode.endswith("-done") else ()
        reads: dict[MemoryValue, list[int]] = {}
        for number, operand in enumerate(op.operands):
            for value in frame.at[operand].values():
                reads.setdefault(resolve(value), []).append(number)
        for value in reads:
            if not any(self._overlap(value, result) and value is not result for result in begun):
                self.read(value, op.name)
        updated = {number for _, number, _ in must_share(op, self._target)}
        for value, numbers in reads.items():
            reads_it = not updated.issuperset(numbers) and not op.opcode.endswith("-done")
            if value in self._blank and reads_it:
                raise CheckError(f"{op.name} reads {value.name}, but nothing was written to it")
        writes = [v for i, v in frame.at[op].items() if v.op is op and v.index == i]
        joined = self._target == "tpu" and self._joins(frame, op)
        for result in writes:
            for value, numbers in reads.items():
                if self._overlap(result, value) and not joined:
                    self._reuse(op, result, value, numbers)
        places = [place for v in writes if (place := self._places.get(resolve(v))) is not None]
        twice = self._target == "tpu" and len(set(places)) < len(places)
        if twice:  # a part of a collective names one array twice, and one of the two is read
            writes.sort(key=lambda result: _is_read(frame, op, result.index))
        for result in writes:
            self.write(result, op)
        # XLA:TPU's fusions read such memory where they write a slice of it.
        if self._target != "tpu" and allocates(op):
            self._blank.update(map(resolve, writes))
        for result in writes:
            if not twice or _is_read(frame, op, result.index):
                self.read(result, f"what follows {op.name}", "one of its results")

    def _joins(self, frame: Frame, op: Op) -> bool:
        """Whether `op`, on a TPU, joins its operands, slices, into its result without a move.

        They fill its place without a gap, in the order of their positions in the sliced array.
        """
        starts = tpu.joined_at(op)
        whole = self._places.get(resolve(frame.at[op][()])) if starts is not None else None
        if starts is None or whole is None:
            return False
        parts = [self._places.get(resolve(frame.at[o][()])) for o in op.operands]
        known = sorted(
            (p.start, p.stop, s)
            for p, s in zip(parts, starts, strict=True)
            if p is not None and p.allocation == whole.allocation
        )
        edges = [whole.start, *(stop for _, stop, _ in known)]
        fills = [start for start, _, _ in known] == edges[:-1] and edges[-1] == whole.stop
        return len(known) == len(starts) and fills and [s for _, _, s in known] == sorted(starts)

    def _begun_by(self, frame: Frame, op: Op) -> tuple[MemoryValue, ...]:
        """For a -done operation: the results of its -start that are not the start's operands."""
        start = op.operands[0]
        while start.opcode.endswith("-update"):
            start = start.operands[0]
        given = {resolve(v) for o in start.operands for v in frame.at[o].values()}
        return tuple(v for v in map(resolve, frame.at[start].values()) if v not in given)

    def _overlap(self, a: MemoryValue, b: MemoryValue) -> bool:
        first, second = self._places.get(a), self._places.get(b)
        if first is None or second is None or first.allocation != second.allocation:
            return False
        return first.start < second.stop and second.start < first.stop

    def _reuse(self, op: Op, result: MemoryValue, value: MemoryValue, numbers: list[int]) -> None:
        same = self._places[result] == self._places[value]  # in size, too
        if not same or not may_overwrite(op, result.index, numbers, self._target):
            raise CheckError(f"{op.name} writes {result.name} over {value.name} before reading it")

    def loop(self, frame: Frame, op: Op) -> None:
        body, condition = frame.inner[op]
        states = frame.states.get(op, [])
        for value in frame.at[op.operands[0]].values():
            self.read(value, op.name)
        for _, start, state, _, _ in states:
            self.same_place(start, state, f"what goes into {op.name} and its state")
            self.write(state, op)
            if resolve(start) in self._blank:
                self._blank.add(resolve(state))
        self.run(condition)
        self.run(body)
        for _, _, state, end, _ in states:
            self.read(end, op.name, "the state for its next iteration")
            self.same_place(end, state, f"the state of {op.name} before and after an iteration")
        for value in body.at[body.body.result].values():
            self.read(value, op.name)
        for _, _, state, _, _ in states:
            self.write(state, op)
            self._blank.discard(resolve(state))
        self.run(condition)
        for _, _, state, _, after in states:
            self.read(state, op.name, "its result")
            self.same_place(state, after, f"the state and the result of {op.name}")
        for _, _, _, _, after in states:
            self.write(after, op)

    def branch(self, frame: Frame, op: Op) -> None:
        for value in frame.at[op.operands[0]].values():
            self.read(value, op.name)
        chosen = frame.choices.get(op, [])
        ended: dict[MemoryValue, Place] = {}
        mark = len(self._memory.log)
        for k, inner in enumerate(frame.inner[op]):
            self.run(inner)
            for result, parts in chosen:
                self.read(parts[k], op.name, "a branch's result")
                self.same_place(parts[k], result, f"the results of {op.name} and of its branch")
            for value in inner.at[inner.body.result].values():
                self.read(value, op.name)
            ended |= self._memory.undo(mark)
        self._memory.drop(ended, op)
        for result, _ in chosen:
            self.write(result, op)

    def inline(self, frame: Frame, op: Op) -> None:
        for inner in frame.inner[op]:
            self.run(inner)
        passed = {resolve(v) for o in op.operands for v in frame.at[o].values()}
        for index, value in frame.at[op].items():
            value = resolve(value)
            if value.op is op and value.index == index and value not in passed:
                self.write(value, op)


def _is_read(frame: Frame, op: Op, index: ShapeIndex) -> bool:
    """Whether anything, or the caller, may read the part at `index` of an operation's result."""
    users = [user for user in frame.body.ops if op in user.operands]
    if op is frame.body.result or any(u.opcode != "get-tuple-element" for u in users):
        return True
    return not index or any(u.proto.tuple_index == index[0] for u in users)


_CONTROL = {
    "while": _Machine.loop,
    "conditional": _Machine.branch,
    "call": _Machine.inline,
    "async-start": _Machine.inline,
}
