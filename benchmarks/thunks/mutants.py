"""GPU executables with one fault each, as a planner, XLA or our reader could make them.

Most faults change thunks alone, like an executable that differs from its assignment. Faults that
stand for a wrong assignment by XLA change assignment and thunks together, so that they still agree.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from benchmarks.thunks.subject import Subject
from hlo.gpu_executable import GpuExecutable, GpuThunk
from hlo.gpu_thunks import Flow
from hlo.slices import Access, Slice

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
    options = KINDS[kind](subject)
    while options:
        yield random.choice(options)()


Options = list[Callable[[], Mutant]]


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


def _access(thunk: GpuThunk, changes: Mapping[int, Access]) -> GpuThunk:
    accesses = tuple(changes.get(k, access) for k, access in enumerate(thunk.accesses))
    return dataclasses.replace(thunk, accesses=accesses)


def _at(access: Access, place: Slice) -> Access:
    return dataclasses.replace(access, slice=place)


def _overlap(a: Slice, b: Slice) -> bool:
    return a.allocation == b.allocation and a.offset < b.end and b.offset < a.end


def _exchanged(subject: Subject) -> Options:
    """Two slices of a thunk are exchanged."""
    found: Options = []
    for at, thunks in _sequences(subject.executable.thunks):
        for k, thunk in enumerate(thunks):
            held = [n for n, a in enumerate(thunk.accesses) if a.slice.size]
            pairs = [(a, b) for a in held for b in held if a < b]
            for a, b in pairs:
                one, other = thunk.accesses[a], thunk.accesses[b]
                if one.slice == other.slice:
                    continue

                def made(at=at, thunks=thunks, k=k, a=a, b=b, one=one, other=other) -> Mutant:
                    changed = _access(
                        thunks[k], {a: _at(one, other.slice), b: _at(other, one.slice)}
                    )
                    row = (*thunks[:k], changed, *thunks[k + 1 :])
                    what = f"{changed.name}: slices {a} and {b}"
                    return Mutant(what, _with(subject.executable, at, row))

                found.append(made)
    return found


def _neighbour(subject: Subject) -> Options:
    """A slice is moved into another one of its allocation that lives at the time."""
    executable = subject.executable
    found: Options = []
    for at, thunks in _sequences(executable.thunks):
        for k, thunk in enumerate(thunks):
            for n, access in enumerate(thunk.accesses):
                own = access.slice
                near = {
                    a.slice
                    for other in thunks[max(k - 3, 0) : k + 4]
                    for a in other.accesses
                    if a.slice.allocation == own.allocation and a.slice.size
                }
                for place in near:
                    moved = Slice(own.allocation, place.offset, own.size)
                    if moved == own or not own.size or moved.end > executable.sizes[own.allocation]:
                        continue

                    def made(at=at, thunks=thunks, k=k, n=n, access=access, moved=moved) -> Mutant:
                        changed = _access(thunks[k], {n: _at(access, moved)})
                        row = (*thunks[:k], changed, *thunks[k + 1 :])
                        what = f"{changed.name}: slice {n} to {moved.offset}"
                        return Mutant(what, _with(executable, at, row))

                    found.append(made)
    return found


def _reordered(subject: Subject) -> Options:
    """A reader runs before the writer of its operand, or after the operand is overwritten."""
    found: Options = []
    for at, thunks in _sequences(subject.executable.thunks):
        for j, later in enumerate(thunks):
            for i in range(j):
                if not _depend(thunks[i], later):
                    continue

                def made(at=at, thunks=thunks, i=i, j=j) -> Mutant:
                    what = f"{thunks[j].name} before {thunks[i].name}"
                    return Mutant(what, _with(subject.executable, at, _moved(thunks, j, i)))

                found.append(made)
    return found


def _depend(a: GpuThunk, b: GpuThunk) -> bool:
    """Whether two plain thunks share bytes that one of them writes."""
    return any(
        (one.writes or other.writes) and _overlap(one.slice, other.slice)
        for one in a.accesses
        for other in b.accesses
        if one.slice.size and other.slice.size
    )


def _reused(subject: Subject) -> Options:
    """Something between a start and its done writes over what the start works on."""
    found: Options = []
    for at, thunks in _sequences(subject.executable.thunks):
        for i, start in enumerate(thunks):
            if start.flow is not Flow.START:
                continue
            done = next(
                j for j, t in enumerate(thunks) if j > i and t.execution == start.execution
                and t.flow is Flow.DONE
            )  # fmt: skip
            works = [a.slice for t in start.below() for a in t.accesses if a.slice.size]
            for k, other in enumerate(thunks):
                for n, access in enumerate(other.accesses):
                    if not access.writes or not access.slice.size or other.flow is not Flow.NONE:
                        continue
                    for place in works:

                        def made(
                            at=at, thunks=thunks, i=i, done=done, k=k, n=n, access=access,
                            place=place,
                        ) -> Mutant:  # fmt: skip
                            changed = _access(thunks[k], {n: _at(access, place)})
                            row = (*thunks[:k], changed, *thunks[k + 1 :])
                            if k < i or k > done:  # so that it runs between the two
                                row = _moved(row, k, i + 1 if k > done else done)
                            what = f"{changed.name} over what {thunks[i].name} works on"
                            return Mutant(what, _with(subject.executable, at, row))

                        found.append(made)
    return found


def _late(subject: Subject) -> Options:
    """A done comes too late: it runs after a thunk that depends on the bytes of its start."""
    found: Options = []
    for at, thunks in _sequences(subject.executable.thunks):
        for i, start in enumerate(thunks):
            if start.flow is not Flow.START:
                continue
            works = GpuThunk("", "", tuple(a for t in start.below() for a in t.accesses))
            done = next(
                j for j, t in enumerate(thunks) if j > i and t.execution == start.execution
                and t.flow is Flow.DONE
            )  # fmt: skip
            for k in range(done + 1, len(thunks)):
                if _depend(works, thunks[k]):

                    def made(at=at, thunks=thunks, done=done, k=k) -> Mutant:
                        row = _moved(thunks, done, k + 1)
                        what = f"{thunks[done].name} after {thunks[k].name}"
                        return Mutant(what, _with(subject.executable, at, row))

                    found.append(made)
    return found


def _shared(subject: Subject) -> Options:
    """XLA gives two operands of an instruction the same memory: assignment and thunks agree."""
    found: Options = []
    for value, place in subject.clashes():

        def made(value=value, place=place) -> Mutant:
            moved = subject.moved(value, place)
            return Mutant(f"{value.name} to {place.offset} of allocation {place.allocation}", moved)

        found.append(made)
    return found


def _arguments(subject: Subject) -> Options:
    """The caller's arguments or results are in each other's memory."""
    found: Options = []
    executable = subject.executable
    allocations = sorted(executable.parameters)
    for a, b in zip(allocations, allocations[1:], strict=False):

        def exchanged(a=a, b=b) -> Mutant:
            parameters = dict(executable.parameters)
            parameters[a], parameters[b] = parameters[b], parameters[a]
            changed = dataclasses.replace(executable, parameters=parameters)
            return Mutant(f"arguments in allocations {a} and {b}", changed)

        found.append(exchanged)
    held = [i for i in sorted(executable.outputs) if subject.is_held(i)]
    for a, b in zip(held, held[1:], strict=False):
        if executable.outputs[a].allocation == executable.outputs[b].allocation:
            continue

        def results(a=a, b=b) -> Mutant:
            outputs = dict(executable.outputs)
            outputs[a], outputs[b] = outputs[b], outputs[a]
            changed = dataclasses.replace(executable, outputs=outputs)
            return Mutant(f"results {a} and {b}", changed)

        found.append(results)
    return found


def _dropped(subject: Subject) -> Options:
    """The only thunk of an instruction is missing."""
    found: Options = []
    for at, thunks in _sequences(subject.executable.thunks):
        for k, thunk in enumerate(thunks):
            alone = sum(other.name == thunk.name for other in thunks) == 1
            if not alone or not (any(a.writes for a in thunk.accesses) or thunk.inner):
                continue

            def made(at=at, thunks=thunks, k=k) -> Mutant:
                row = (*thunks[:k], *thunks[k + 1 :])
                return Mutant(f"without {thunks[k].name}", _with(subject.executable, at, row))

            found.append(made)
    return found


KINDS: dict[str, Callable[[Subject], Options]] = {
    "slices exchanged": _exchanged,
    "offset into a neighbour": _neighbour,
    "reader after its writer": _reordered,
    "a start's buffer reused": _reused,
    "a done too late": _late,
    "two operands in one place": _shared,
    "another's argument or result": _arguments,
    "a thunk dropped": _dropped,
}
"""What is done -> the ways to do it to an executable."""
