"""The referee of a CPU executable whose buffers lie elsewhere: the same steps on the same bytes.

It computes nothing and knows nothing of lifetimes, blocks or how places were found. It follows both
programs side by side with the pairs of bytes, one of the old memory and one of the new, that surely
hold the same value. A read must find only such pairs, a write makes them, and whatever either
program writes ends those that it touches. A loop keeps the pairs that an iteration leaves as they
were, a conditional those that all branches leave: so it holds for any number of iterations.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Collection, Mapping, Sequence

from hlo import xla_pb2
from hlo.cpu_executable import CpuExecutable, CpuThunk
from hlo.gpu_thunks import Flow
from hlo.slices import Slice
from olla_xla.errors import CheckError

ALIGNMENT = 64
"""Bytes; what XLA's CPU kernels take for granted of every address."""


@dataclasses.dataclass(frozen=True)
class Area:
    """One allocation of an executable, of `size` bytes.

    Attributes:
      filled: it begins with a value in it. kept: its value is read at the end.
      writable: a step may write to it.
    """

    size: int
    filled: bool = False
    kept: bool = False
    writable: bool = True


def check_relocated(before: CpuExecutable, after: CpuExecutable) -> None:
    """Checks that a CPU executable whose buffers were moved computes what XLA's own does.

    Raises CheckError if anything but addresses differs, or as `check_thunks`. `before`: as XLA made
    it. `after`: with other places, as it will be loaded.
    """
    if before.without_places() != after.without_places():
        raise CheckError("the changed executable differs from XLA's in more than addresses")
    areas = _areas(before)
    sizes = {a.index: a.size for a in after.assignment.buffer_allocations}
    if areas.keys() != sizes.keys() or _kinds(before) != _kinds(after):
        raise CheckError("allocations were added, removed or changed")
    if any(sizes[i] != a.size and (a.filled or a.kept) for i, a in areas.items()):
        raise CheckError("allocations of arguments, results and constants must keep their sizes")
    new_areas = {i: dataclasses.replace(a, size=sizes[i]) for i, a in areas.items()}
    _check_assignment(before, after)
    check_thunks(before.thunks, after.thunks, areas, new_areas, before.scratch)


def _areas(executable: CpuExecutable) -> dict[int, Area]:
    """Allocation index -> its Area; constants and arguments are not writable, but for those
    arguments that are outputs, too, and that thunks write.
    """
    written = {a.slice.allocation for t in executable.flat for a in t.accesses if a.writes}
    return {
        a.index: Area(
            size=a.size,
            filled=a.is_entry_computation_parameter or a.is_constant,
            kept=a.maybe_live_out,
            writable=not a.is_constant
            and (a.maybe_live_out or not a.is_entry_computation_parameter)
            and (a.index in written or not a.is_entry_computation_parameter),
        )
        for a in executable.assignment.buffer_allocations
    }


def _kinds(executable: CpuExecutable) -> bytes:
    """The serialized buffer assignment without the allocations' sizes and logical buffers."""
    proto = xla_pb2.BufferAssignmentProto()
    proto.CopyFrom(executable.assignment)
    for allocation in proto.buffer_allocations:
        allocation.size = 0
        del allocation.assigned[:]
    return proto.SerializeToString(deterministic=True)


def _check_assignment(before: CpuExecutable, after: CpuExecutable) -> None:
    """Checks that each logical buffer has moved with the thunk that writes it; else CheckError.

    XLA finds results by their places, and ends the process if the assignment is inconsistent. What
    no thunk writes, such as a returned argument, stays in arguments, results and constants.
    """
    old = _places(before)
    written: dict[tuple[str, Slice], set[Slice]] = {}
    for x, y in zip(before.flat, after.flat, strict=True):
        for a, b in zip(x.accesses, y.accesses, strict=True):
            if a.writes:
                written.setdefault((x.name, a.slice), set()).add(b.slice)
    fixed = {
        a.index
        for a in before.assignment.buffer_allocations
        if a.maybe_live_out or a.is_entry_computation_parameter or a.is_constant
    }
    sizes = {a.index: a.size for a in after.assignment.buffer_allocations}
    new = _places(after)
    if new.keys() != old.keys():
        raise CheckError("a logical buffer was added or removed")
    for number, place in new.items():
        was, name = old[number], before.names[number]
        if place.size != was.size or place.offset < 0 or place.end > sizes[place.allocation]:
            raise CheckError(f"logical buffer {number} ({name}) reaches beyond its allocation")
        allowed = written.get((name, was), {was} if was.allocation in fixed else set())
        if allowed and place != was and (was in allowed or place not in allowed):
            raise CheckError(f"logical buffer {number} ({name}) is not where thunks write it")
        if allowed and place == was not in allowed:
            raise CheckError(f"logical buffer {number} ({name}) is where no thunk writes it")


def _places(executable: CpuExecutable) -> dict[int, Slice]:
    """Logical buffer -> its place; raises CheckError where it has two."""
    pairs = [
        (a.logical_buffer_id, Slice(b.index, a.offset, a.size))
        for b in executable.assignment.buffer_allocations
        for a in b.assigned
    ]
    places = dict(pairs)
    if len(places) != len(pairs):
        raise CheckError("a logical buffer has two addresses")
    return places


def check_thunks(
    before: Sequence[CpuThunk],
    after: Sequence[CpuThunk],
    areas: Mapping[int, Area],
    new_areas: Mapping[int, Area],
    scratch: Collection[tuple[int, int]] = (),
) -> None:
    """Checks that thunks whose buffers were moved compute what they did before, run in sequence.

    Raises CheckError, naming the thunk, if a slice leaves its allocation, lies at a misaligned
    address or in memory that may not be written, overlaps with another of its thunk otherwise than
    it did, or is read where another value may lie; or if what is left at the end differs.

    Args:
      before, after: the same thunks, access by access, with the old and the new places.
      areas, new_areas: their allocations, by index.
      scratch: (thunk's number, access) of reads that find what their thunk itself wrote.
    """
    referee = _Referee(new_areas, scratch)
    same = SameBytes()
    for index, area in areas.items():
        if area.filled:
            whole = Slice(index, 0, area.size)
            same.add(whole, whole)
            referee.defined.add(whole, whole)
    referee.sequence(before, after, same)
    for index, area in areas.items():
        for part in referee.defined.parts(Slice(index, 0, area.size)):
            if area.kept and not same.holds(part, part):
                raise CheckError(f"output allocation {index} would hold other final values")


class _Referee:
    """Checks thunks one by one against those with other places.

    `defined`: the bytes of the old memory written so far, paired with themselves.
    """

    def __init__(self, areas: Mapping[int, Area], scratch: Collection[tuple[int, int]]) -> None:
        self._areas, self._scratch = areas, scratch
        self.defined = SameBytes()

    def sequence(
        self, before: Sequence[CpuThunk], after: Sequence[CpuThunk], same: SameBytes
    ) -> None:
        """Checks thunks, in sequence, with old places (`before`) against those with new ones.

        `same`: the old and new bytes that hold equal values; changed to those after the thunks.
        """
        if len(before) != len(after):
            raise CheckError(f"{len(before)} steps became {len(after)}")
        for x, y in zip(before, after, strict=True):
            self._check_slices(x, y)
            if len(x.inner) != len(y.inner) or x.flow != y.flow:
                raise CheckError(f"{x.name} runs other thunks")
            if x.flow is Flow.LOOP:
                self._loop(x, y, same)
                continue
            self._read(x, y, same)
            if x.flow is Flow.SEQUENCE:
                self.sequence(x.inner[0], y.inner[0], same)
            elif x.flow is Flow.BRANCH:
                ends = []
                for one, other in zip(x.inner, y.inner, strict=True):
                    ends.append(same.copy())
                    self.sequence(one, other, ends[-1])
                same.become(ends[0])
                for end in ends[1:]:
                    same.intersect(end)
            for a, b in zip(x.accesses, y.accesses, strict=True):
                if a.writes:
                    same.forget(a.slice, b.slice)
                    same.add(a.slice, b.slice)
                    self._define(a.slice)

    def _loop(self, x: CpuThunk, y: CpuThunk, same: SameBytes) -> None:
        """Checks a loop, with old places (`x`) and with new ones, for any number of iterations.

        `same`: the old and new bytes that hold equal values; changed to those after the loop.
        """
        for thunk in x.below():  # the second iteration finds what the first one wrote
            for a in thunk.accesses:
                if a.writes:
                    self._define(a.slice)
        while True:
            tested, size = same.copy(), same.size
            self.sequence(x.inner[0], y.inner[0], tested)
            self._read(x, y, tested)
            if x.counted:  # which tests nothing
                tested.intersect(same)
            end = tested.copy()
            self.sequence(x.inner[1], y.inner[1], end)
            same.intersect(end)
            if same.size == size:
                break
        same.become(tested)

    def _define(self, written: Slice) -> None:
        self.defined.forget(written, written)
        self.defined.add(written, written)

    def _read(self, x: CpuThunk, y: CpuThunk, same: SameBytes) -> None:
        """Raises CheckError if `y` (new places) may read other values than `x` (old places)."""
        for k, (a, b) in enumerate(zip(x.accesses, y.accesses, strict=True)):
            reads = a.reads and (x.number, k) not in self._scratch
            for part in self.defined.parts(a.slice) if reads else ():
                at = b.slice.offset + part.offset - a.slice.offset
                if not same.holds(part, Slice(b.slice.allocation, at, part.size)):
                    raise CheckError(f"{x.name} would read other values than in XLA's executable")

    def _check_slices(self, x: CpuThunk, y: CpuThunk) -> None:
        """Raises CheckError unless `y` accesses what `x` does, in slices inside their allocations,
        aligned and writable if they moved, that overlap as `x`'s do where one is written.
        """
        if x.name != y.name or len(x.accesses) != len(y.accesses):
            raise CheckError(f"step {x.name} became {y.name}")
        for a, b in zip(x.accesses, y.accesses, strict=True):
            p, q = a.slice, b.slice
            if (p.size, a.reads, a.writes) != (q.size, b.reads, b.writes):
                raise CheckError(f"the size of a slice of {x.name}, or its access, has changed")
            area = self._areas.get(q.allocation)
            if area is None or q.offset < 0 or q.end > area.size:
                raise CheckError(f"a slice of {x.name} reaches beyond allocation {q.allocation}")
            if p != q and q.offset % ALIGNMENT:
                raise CheckError(f"a slice of {x.name} lies at {q.offset}, which is not aligned")
            if p != q and not area.writable:
                raise CheckError(f"{x.name} would write to read-only allocation {q.allocation}")
        for i, (a, b) in enumerate(zip(x.accesses, y.accesses, strict=True)):
            for c, d in zip(x.accesses[:i], y.accesses[:i], strict=True):
                if not (a.writes or c.writes):
                    continue
                if _distance(a.slice, c.slice) != _distance(b.slice, d.slice):
                    raise CheckError(f"slices of {x.name} do not overlap as in XLA's executable")


def _distance(p: Slice, q: Slice) -> int | None:
    """The offset of p minus that of q if they share bytes, else None."""
    if p.allocation != q.allocation or p.offset >= q.end or q.offset >= p.end:
        return None
    return p.offset - q.offset


_Run = tuple[int, int, int, int]
"""(first byte, size) on one side; (allocation, first byte) on the other."""


class SameBytes:
    """Pairs of an old and a new byte that hold the same value; each byte is in one pair at most.

    Runs of pairs are kept by the allocation of their old and of their new bytes, sorted. `size` is
    the number of pairs.
    """

    def __init__(self) -> None:
        self._old: dict[int, list[_Run]] = {}
        self._new: dict[int, list[_Run]] = {}
        self.size = 0

    def copy(self) -> SameBytes:
        """Another object with the same pairs."""
        other = SameBytes()
        other.become(self)
        return other

    def become(self, other: SameBytes) -> None:
        """Replaces the pairs by a copy of those of `other`."""
        self._old = {k: list(runs) for k, runs in other._old.items()}
        self._new = {k: list(runs) for k, runs in other._new.items()}
        self.size = other.size

    def holds(self, old: Slice, new: Slice) -> bool:
        """Whether, for all k, byte k of `old` and byte k of `new` are a pair."""
        at = old.offset
        for start, size, allocation, first in _touching(self._old.get(old.allocation, []), old):
            if start > at or allocation != new.allocation:
                return False
            if first - start != new.offset - old.offset:
                return False
            at = start + size
        return at >= old.end

    def parts(self, old: Slice) -> list[Slice]:
        """The parts of a slice of the old memory whose bytes are in pairs, by offset."""
        return [
            Slice(old.allocation, low, min(start + size, old.end) - low)
            for start, size, *_ in _touching(self._old.get(old.allocation, []), old)
            for low in (max(start, old.offset),)
        ]

    def add(self, old: Slice, new: Slice) -> None:
        """Makes pairs of all bytes of two slices, none of which is in one."""
        if old.size:
            run = (old.offset, old.size, new.allocation, new.offset)
            bisect.insort(self._old.setdefault(old.allocation, []), run)
            run = (new.offset, old.size, old.allocation, old.offset)
            bisect.insort(self._new.setdefault(new.allocation, []), run)
            self.size += old.size

    def forget(self, old: Slice, new: Slice) -> None:
        """Ends all pairs with a byte of `old` or of `new`."""
        for mine, theirs, where in ((self._old, self._new, old), (self._new, self._old, new)):
            for run in _touching(mine.get(where.allocation, []), where):
                start, size, allocation, first = run
                low, high = max(start, where.offset), min(start + size, where.end)
                _drop(mine[where.allocation], run)
                _drop(theirs[allocation], (first, size, where.allocation, start))
                self.size -= size
                for begin, end in ((start, low), (high, start + size)):
                    if begin < end:
                        a = Slice(where.allocation, begin, end - begin)
                        b = Slice(allocation, first + begin - start, end - begin)
                        self.add(*((a, b) if mine is self._old else (b, a)))

    def intersect(self, other: SameBytes) -> None:
        """Keeps only the pairs that `other` has too."""
        kept = SameBytes()
        for index, runs in self._old.items():
            theirs = other._old.get(index, [])
            for start, size, allocation, first in runs:
                for run in _touching(theirs, Slice(index, start, size)):
                    if run[2] == allocation and run[3] - run[0] == first - start:
                        low, high = max(start, run[0]), min(start + size, run[0] + run[1])
                        new = Slice(allocation, first + low - start, high - low)
                        kept.add(Slice(index, low, high - low), new)
        self.become(kept)


def _touching(runs: list[_Run], where: Slice) -> list[_Run]:
    """The runs of pairs that share a byte with a slice, sorted by start."""
    if not where.size:
        return []
    first = bisect.bisect_right(runs, where.offset, key=lambda run: run[0])
    last = bisect.bisect_left(runs, where.end, lo=first, key=lambda run: run[0])
    if first and runs[first - 1][0] + runs[first - 1][1] > where.offset:
        first -= 1
    return runs[first:last]


def _drop(runs: list[_Run], run: _Run) -> None:
    del runs[bisect.bisect_left(runs, run)]
