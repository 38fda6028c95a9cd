"""GPU executables with one fault each, as a planner, XLA or our reader could make them.

Most faults change thunks alone, like an executable that differs from its assignment. Faults that
stand for a wrong assignment by XLA change assignment and thunks together, so that they still agree.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from benchmarks.thunks.subject import Subject
from hlo.gpu_executable import GpuExecutable, GpuThunk, MovingSlice
from hlo.gpu_thunks import Flow
from hlo.slices import Access, Slice
from olla_xla.check.executable.values import MemoryValue

Path = tuple[int, ...]
"""Where a sequence of thunks is: thunk, sequence within it, thunk, and so on; () the outermost."""


class Mutant(NamedTuple):
    """An executable with a fault: what was done, and the executable."""

    what: str
    executable: GpuExecutable


def mutants(subject: Subject, kind: str, random: random.Random) -> Iterator[Mutant]:
    """Faults of one of `KINDS`, drawn without end; none where the executable has no place for it.

    Args:
      subject: the executable. kind: of fault. random: draws.
    """
    options = list(KINDS[kind](subject))
    while options:
        yield random.choice(options)()


def _sequences(thunks: tuple[GpuThunk, ...], at: Path = ()) -> Iterator[tuple[Path, tuple]]:
    yield at, thunks
    for k, thunk in enumerate(thunks):
        for n, inner in enumerate(thunk.inner):
            yield from _sequences(inner, (*at, k, n))


def _with(executable: GpuExecutable, at: Path, thunks: tuple[GpuThunk, ...]) -> GpuExecutable:
    """The executable with another sequence of thunks at a path."""

    def put(sequence: tuple[GpuThunk, ...], path: Path) -> tuple[GpuThunk, ...]:
        if not path:
            return thunks
        k, n, *rest = path
        inner = list(sequence[k].inner)
        inner[n] = put(inner[n], tuple(rest))
        changed = dataclasses.replace(sequence[k], inner=tuple(inner))
        return (*sequence[:k], changed, *sequence[k + 1 :])

    return dataclasses.replace(executable, thunks=put(executable.thunks, at))


def _moved(thunks: tuple[GpuThunk, ...], source: int, to: int) -> tuple[GpuThunk, ...]:
    """Thunks with one before the one that stands at `to`."""
    rest = [*thunks[:source], *thunks[source + 1 :]]
    rest.insert(to if to < source else to - 1, thunks[source])
    return tuple(rest)


Row = tuple[GpuThunk, ...]


def _placed(row: Row, k: int, places: Mapping[int, Slice]) -> Row:
    """The thunks of a row, some slices of number k elsewhere."""
    accesses = list(row[k].accesses)
    for n, place in places.items():
        accesses[n] = dataclasses.replace(accesses[n], slice=place)
    return (*row[:k], dataclasses.replace(row[k], accesses=tuple(accesses)), *row[k + 1 :])


def _overlap(a: Slice, b: Slice) -> bool:
    return a.allocation == b.allocation and a.offset < b.end and b.offset < a.end


Options = Iterator[Callable[[], Mutant]]
"""What makes each fault of a kind that an executable has a place for."""


def _exchanged(subject: Subject) -> Options:
    """Two slices of a thunk are exchanged."""

    def made(at: Path, row: Row, k: int, a: int, b: int) -> Mutant:
        one, other = (row[k].accesses[n].slice for n in (a, b))
        changed = _placed(row, k, {a: other, b: one})
        return Mutant(f"{row[k].name}: slices {a} and {b}", _with(subject.executable, at, changed))

    for at, row in _sequences(subject.executable.thunks):
        for k, thunk in enumerate(row):
            held = [n for n, a in enumerate(thunk.accesses) if a.slice.size]
            for a, b in itertools.combinations(held, 2):
                if thunk.accesses[a].slice != thunk.accesses[b].slice:
                    yield partial(made, at, row, k, a, b)


def _neighbour(subject: Subject) -> Options:
    """A slice is moved into another one of its allocation that lives at the time."""
    executable = subject.executable

    def made(at: Path, row: Row, k: int, n: int, place: Slice) -> Mutant:
        what = f"{row[k].name}: slice {n} to {place.offset}"
        return Mutant(what, _with(executable, at, _placed(row, k, {n: place})))

    for at, row in _sequences(executable.thunks):
        for k, thunk in enumerate(row):
            for n, own in enumerate(a.slice for a in thunk.accesses):
                near = {
                    a.slice
                    for other in row[max(k - 3, 0) : k + 4]
                    for a in other.accesses
                    if a.slice.allocation == own.allocation and a.slice.size
                }
                for place in near:
                    moved = Slice(own.allocation, place.offset, own.size)
                    fits = moved.end <= executable.sizes[own.allocation]
                    if moved != own and own.size and fits:
                        yield partial(made, at, row, k, n, moved)


def _reordered(subject: Subject) -> Options:
    """A reader runs before the writer of its operand, or after the operand is overwritten."""

    def made(at: Path, row: Row, i: int, j: int) -> Mutant:
        what = f"{row[j].name} before {row[i].name}"
        return Mutant(what, _with(subject.executable, at, _moved(row, j, i)))

    for at, row in _sequences(subject.executable.thunks):
        for j, later in enumerate(row):
            for i in range(j):
                if _depend(row[i], later):
                    yield partial(made, at, row, i, j)


def _depend(a: GpuThunk, b: GpuThunk) -> bool:
    """Whether two plain thunks share bytes that one of them writes."""
    return any(
        (one.writes or other.writes) and _overlap(one.slice, other.slice)
        for one in a.accesses
        for other in b.accesses
        if one.slice.size and other.slice.size
    )


def _under_way(subject: Subject) -> Iterator[tuple[Path, Row, int, int, tuple[Access, ...]]]:
    """What runs beside other thunks: where, numbers of its start and done, and its accesses."""
    for at, row in _sequences(subject.executable.thunks):
        for i, start in enumerate(row):
            if start.flow is not Flow.START:
                continue
            ends = (j for j, t in enumerate(row) if j > i and t.flow is Flow.DONE)
            done = next(j for j in ends if row[j].execution == start.execution)
            yield at, row, i, done, tuple(a for t in start.below() for a in t.accesses)


def _reused(subject: Subject) -> Options:
    """Something between a start and its done writes over what the start works on."""

    def made(at: Path, row: Row, i: int, done: int, k: int, n: int, place: Slice) -> Mutant:
        changed = _placed(row, k, {n: place})
        if k < i or k > done:  # so that it runs between the two
            changed = _moved(changed, k, i + 1 if k > done else done)
        what = f"{row[k].name} over what {row[i].name} works on"
        return Mutant(what, _with(subject.executable, at, changed))

    for at, row, i, done, accesses in _under_way(subject):
        works = [a.slice for a in accesses if a.slice.size]
        for k, other in enumerate(row):
            for n, access in enumerate(other.accesses):
                if access.writes and access.slice.size and other.flow is Flow.NONE:
                    for place in works:
                        yield partial(made, at, row, i, done, k, n, place)


def _late(subject: Subject) -> Options:
    """A done comes too late: it runs after a thunk that depends on the bytes of its start."""

    def made(at: Path, row: Row, done: int, k: int) -> Mutant:
        what = f"{row[done].name} after {row[k].name}"
        return Mutant(what, _with(subject.executable, at, _moved(row, done, k + 1)))

    for at, row, _, done, accesses in _under_way(subject):
        works = GpuThunk("", "", accesses)
        for k in range(done + 1, len(row)):
            if _depend(works, row[k]):
                yield partial(made, at, row, done, k)


def _shared(subject: Subject) -> Options:
    """XLA gives two operands of an instruction the same memory: assignment and thunks agree."""

    def made(value: MemoryValue, place: Slice) -> Mutant:
        what = f"{value.name} to {place.offset} of allocation {place.allocation}"
        return Mutant(what, subject.moved(value, place))

    for value, place in subject.clashes():
        yield partial(made, value, place)


def _arguments(subject: Subject) -> Options:
    """The caller's arguments or results are in each other's memory."""
    executable = subject.executable

    def exchanged(what: str, field: str, a: Any, b: Any) -> Mutant:
        places = dict(getattr(executable, field))
        places[a], places[b] = places[b], places[a]
        changed = dataclasses.replace(executable, **{field: places})
        return Mutant(f"{what} {a} and {b}", changed)

    for pair in itertools.pairwise(sorted(executable.parameters)):
        yield partial(exchanged, "arguments in allocations", "parameters", *pair)
    held = [i for i in sorted(executable.outputs) if subject.is_held(i)]
    for a, b in itertools.pairwise(held):
        if executable.outputs[a].allocation != executable.outputs[b].allocation:
            yield partial(exchanged, "results", "outputs", a, b)


def _iteration(subject: Subject) -> Options:
    """A slice that moves with the iteration is another iteration's."""

    def made(at: Path, row: Row, k: int, n: int, moved: MovingSlice) -> Mutant:
        slices = list(row[k].slices)
        slices[n] = moved
        thunk = dataclasses.replace(row[k], slices=tuple(slices))
        what = f"{row[k].name}: slice {n} from {moved.offset((0,))}, then {moved.offset((1,))}"
        changed = (*row[:k], thunk, *row[k + 1 :])
        return Mutant(what, _with(subject.executable, at, changed))

    for at, row in _sequences(subject.executable.thunks):
        for k, thunk in enumerate(row):
            for n, cut in enumerate(thunk.slices):
                if cut.is_cut:
                    table = tuple(start + cut.size for start in cut.table)
                    start = 0 if cut.start else cut.size
                    yield partial(made, at, row, k, n, cut._replace(start=start, table=table))
                    for stride in (0, -cut.stride, 2 * cut.stride):
                        if stride != cut.stride and not cut.table:
                            yield partial(made, at, row, k, n, cut._replace(stride=stride))


def _dropped(subject: Subject) -> Options:
    """The only thunk of an instruction is missing."""

    def made(at: Path, row: Row, k: int) -> Mutant:
        left = (*row[:k], *row[k + 1 :])
        return Mutant(f"without {row[k].name}", _with(subject.executable, at, left))

    for at, row in _sequences(subject.executable.thunks):
        for k, thunk in enumerate(row):
            alone = sum(other.name == thunk.name for other in row) == 1
            if alone and (any(a.writes for a in thunk.accesses) or thunk.inner):
                yield partial(made, at, row, k)


KINDS: dict[str, Callable[[Subject], Options]] = {
    "slices exchanged": _exchanged,
    "offset into a neighbour": _neighbour,
    "reader after its writer": _reordered,
    "a start's buffer reused": _reused,
    "a done too late": _late,
    "two operands in one place": _shared,
    "another iteration's slice": _iteration,
    "another's argument or result": _arguments,
    "a thunk dropped": _dropped,
}
"""What is done -> the ways to do it to an executable."""
