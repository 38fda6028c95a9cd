"""The buffers of a CPU executable, found from what its thunks read and write.
A read belongs to the writes whose bytes it may find, a write to the operands that it overlaps with;
what belongs together is one buffer, which moves as a whole. Loops and branches are followed as they
may run: a read in a loop may find what the iteration before wrote, or what was there before it.
Scratch memory of a kernel that runs a whole computation is listed among what it reads, which is
left out where it can be told; elsewhere a read may find what nothing wrote.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence

from hlo.cpu_executable import CpuExecutable, CpuThunk
from hlo.gpu_thunks import Flow
from hlo.slices import Slice
from olla_xla.errors import OllaError


class OffsetsError(OllaError):
    """Raised where an executable's buffers must keep the offsets that XLA gave them; says why."""


@dataclasses.dataclass(frozen=True)
class CpuAllocation:
    """One of XLA's buffer allocations, of `size` bytes.

    Attributes:
      filled: it holds an argument or a constant at the start. kept: its content is a result.
      hosts: it is a result that thunks write, so that other buffers may lie in its free bytes.
    """

    size: int
    filled: bool
    kept: bool
    hosts: bool


@dataclasses.dataclass
class Buffer:
    """Bytes of one allocation that thunks read and write, which must move together.

    Attributes:
      allocation, low, high: where XLA put it: bytes [low, high) of an allocation.
      first, last: numbers of the thunks from which and up to which it is live.
      pinned: it must not move. accesses: (number of a thunk, number of one of its accesses).
    """

    allocation: int
    low: int
    high: int
    first: int
    last: int
    pinned: bool = False
    accesses: list[tuple[int, int]] = dataclasses.field(default_factory=list)


def allocations(executable: CpuExecutable) -> dict[int, CpuAllocation]:
    """Describes each of the executable's buffer allocations: index -> CpuAllocation."""
    written = {a.slice.allocation for t in executable.flat for a in t.accesses if a.writes}
    return {
        a.index: CpuAllocation(
            size=a.size,
            filled=a.is_entry_computation_parameter or a.is_constant,
            kept=a.maybe_live_out,
            hosts=a.maybe_live_out
            and a.index in written
            and not (a.is_tuple or a.is_constant or a.is_thread_local),
        )
        for a in executable.assignment.buffer_allocations
    }


def buffers(executable: CpuExecutable, areas: Mapping[int, CpuAllocation]) -> list[Buffer]:
    """Finds the buffers in all allocations of an executable, from what its thunks read and write.
    Raises OffsetsError if an access leaves its allocation, or a buffer lies in two.
    """
    return _BufferFinder(executable, areas).found()


_Key = tuple[str, int] | tuple[int, int]
"""("start" or "end", an allocation): what is in it before the first thunk and after the last; or
(number of a thunk, of one of its accesses)."""


class _AccessSets:
    """Union-find: disjoint sets of accesses (reads, writes of thunks) that belong to one buffer."""

    def __init__(self) -> None:
        self._parent: dict[_Key, _Key] = {}

    def find(self, key: _Key) -> _Key:
        """Finds the access that represents the set of `key`; a new one is a set of its own."""
        parent = self._parent.setdefault(key, key)
        while parent != key:
            grand = self._parent[parent]
            self._parent[key] = grand
            key, parent = parent, grand
        return key

    def join(self, a: _Key, b: _Key) -> None:
        """Merges the sets of accesses that contain `a` and `b`."""
        self._parent[self.find(a)] = self.find(b)


class _Writers:
    """For each byte of an allocation, the accesses of thunks that may have written it last; stored
    for runs of bytes.
    """

    def __init__(self, starts: list[int], owners: list[frozenset[_Key]]) -> None:
        self.starts, self.owners = starts, owners

    def of(self, s: Slice) -> frozenset[_Key]:
        """Collects the keys of all accesses that may have written a byte of slice `s` last."""
        first = bisect.bisect_right(self.starts, s.offset) - 1
        last = bisect.bisect_left(self.starts, s.end)
        return frozenset().union(*self.owners[first:last]) if s.size else frozenset()

    def write(self, s: Slice, key: _Key) -> None:
        """Makes the access `key` the only one that may have written the bytes of slice `s` last."""
        if not s.size:
            return
        self._cut(s.offset)
        self._cut(s.end)
        first, last = (bisect.bisect_left(self.starts, at) for at in (s.offset, s.end))
        self.starts[first:last] = [s.offset]
        self.owners[first:last] = [frozenset((key,))]

    def joined(self, other: _Writers) -> _Writers:
        """Unites, for each byte, the accesses that may have written it last by this state or
        `other`; returns `self` if `other` adds none.
        """
        starts = sorted({*self.starts, *other.starts})
        pairs = [self._at(at) | other._at(at) for at in starts]
        kept = [k for k in range(len(starts)) if not k or pairs[k] != pairs[k - 1]]
        result = _Writers([starts[k] for k in kept], [pairs[k] for k in kept])
        same = result.starts == self.starts and result.owners == self.owners
        return self if same else result

    def copy(self) -> _Writers:
        """Returns a copy that can be changed by itself."""
        return _Writers(list(self.starts), list(self.owners))

    def _at(self, at: int) -> frozenset[_Key]:
        return self.owners[bisect.bisect_right(self.starts, at) - 1]

    def _cut(self, at: int) -> None:
        """Splits the run of bytes that holds byte `at`, so that one begins there; a run is a range
        of bytes that the same accesses may have written.
        """
        k = bisect.bisect_left(self.starts, at)
        if k == len(self.starts) or self.starts[k] != at:
            self.starts.insert(k, at)
            self.owners.insert(k, self.owners[k - 1])


_State = dict[int, _Writers]


def _either(a: _State, b: _State) -> _State:
    return {index: writers.joined(b[index]) for index, writers in a.items()}


class _BufferFinder:
    """Finds an executable's buffers: follows all ways its thunks may run (loops, branches)."""

    def __init__(self, executable: CpuExecutable, areas: Mapping[int, CpuAllocation]) -> None:
        self._executable, self._areas = executable, areas
        self._sets = _AccessSets()
        self._loops: dict[int, tuple[tuple[int, int], ...]] = {}
        """Number of a thunk -> the loops that it is in, as their first and last thunk."""
        self._spans: dict[_Key, tuple[int, int]] = {}
        """Access -> first and last thunk of the loops through which its bytes must live."""
        self._place_loops(executable.thunks, ())

    def _place_loops(self, thunks: Sequence[CpuThunk], loops: tuple[tuple[int, int], ...]) -> None:
        for thunk in thunks:
            inner = loops
            if thunk.flow is Flow.LOOP:
                inner = (*loops, (thunk.number, max(t.number for t in thunk.below())))
            self._loops[thunk.number] = inner
            for sequence in thunk.inner:
                self._place_loops(sequence, inner)

    def found(self) -> list[Buffer]:
        state: _State = {}
        for index, area in self._areas.items():
            state[index] = _Writers([0], [frozenset()])  # past the end, nothing is written
            state[index].write(Slice(index, 0, area.size), ("start", index))
        state = self._sequence(self._executable.thunks, state)
        for index, area in self._areas.items():
            if area.kept:
                for writer in frozenset().union(*state[index].owners):
                    self._sets.join(("end", index), writer)
                    self._live_through(("end", index), writer)
        return self._collected()

    def _sequence(self, thunks: Sequence[CpuThunk], state: _State) -> _State:
        """Joins the accesses of thunks, in turn, with those that may have written what they read.
        `state`: allocation -> each byte's possible last writers; may be changed. Returns the next.
        """
        for thunk in thunks:
            if thunk.flow is Flow.LOOP:
                state = self._loop(thunk, state)
                continue
            self._read(thunk, state)
            if thunk.flow is Flow.SEQUENCE:
                state = self._sequence(thunk.inner[0], state)
            elif thunk.flow is Flow.BRANCH:
                ends = [self._sequence(s, _copied(state)) for s in thunk.inner]
                state = ends[0]
                for end in ends[1:]:
                    state = _either(state, end)
            for i, a in enumerate(thunk.accesses):
                if a.writes:
                    state[a.slice.allocation].write(a.slice, (thunk.number, i))
        return state

    def _loop(self, thunk: CpuThunk, head: _State) -> _State:
        """Follows a loop's reads and writes until no iteration adds an access that may have written
        a byte last. `head`: allocation -> these accesses before the loop. Returns those after it.
        """
        while True:
            tested = self._sequence(thunk.inner[0], _copied(head))
            self._read(thunk, tested)
            if thunk.counted:  # which may skip its condition
                tested = _either(tested, head)
            after = _either(head, self._sequence(thunk.inner[1], _copied(tested)))
            if all(after[i] is writers for i, writers in head.items()):
                return tested
            head = after

    def _read(self, thunk: CpuThunk, state: _State) -> None:
        for i, a in enumerate(thunk.accesses):
            s, key = a.slice, (thunk.number, i)
            if s.end > self._areas[s.allocation].size:
                raise OffsetsError(f"a slice of {thunk.name} reaches beyond its allocation")
            if a.reads and key not in self._executable.scratch:
                writers = state[s.allocation].of(s)
                for writer in writers:
                    written = writer[0] != "start" or self._areas[s.allocation].filled
                    if written:
                        self._sets.join(key, writer)
                    if written or len(writers) > 1:
                        self._live_through(key, writer)
            if a.writes:
                for j, b in enumerate(thunk.accesses):
                    t = b.slice
                    same = t.allocation == s.allocation and t.offset < s.end and s.offset < t.end
                    if i != j and same:
                        self._sets.join(key, (thunk.number, j))

    def _live_through(self, reader: _Key, writer: _Key) -> None:
        """Notes that the bytes that access `reader` reads must live through all of each loop that
        contains only one of the two accesses `reader` and `writer`.
        """
        inside = [self._loops[k[0]] if isinstance(k[0], int) else () for k in (reader, writer)]
        for loop in set(inside[0]) ^ set(inside[1]):
            first, last = self._spans.get(reader, loop)
            self._spans[reader] = (min(first, loop[0]), max(last, loop[1]))

    def _collected(self) -> list[Buffer]:
        by_root: dict[_Key, Buffer] = {}
        for thunk in self._executable.flat:
            for i, a in enumerate(thunk.accesses):
                s, k, key = a.slice, thunk.number, (thunk.number, i)
                b = by_root.setdefault(
                    self._sets.find(key), Buffer(s.allocation, s.offset, s.end, k, k)
                )
                if b.allocation != s.allocation:
                    raise OffsetsError(f"a buffer of {thunk.name} lies in two allocations")
                b.low, b.high = min(b.low, s.offset), max(b.high, s.end)
                # A loop reads its condition's result once that has run.
                ends = [t.number for c in thunk.inner[:1] for x in c for t in x.below()]
                last = max(ends, default=k) if thunk.flow is Flow.LOOP else k
                b.last = max(b.last, last)
                b.accesses.append((k, i))
        for key, (first, last) in self._spans.items():
            root = self._sets.find(key)
            if root in by_root:
                b = by_root[root]
                b.first, b.last = min(b.first, first), max(b.last, last)
        self._pin(by_root)
        return list(by_root.values())

    def _pin(self, found: dict[_Key, Buffer]) -> None:
        """Pins the buffers of arguments and constants (live from the start) and results (live to
        the end): they take their whole allocations. Results that no thunk accesses are added.
        `found`: the access that represents a buffer -> it, changed in place.
        """
        ends = len(self._executable.flat)
        for index, area in self._areas.items():
            start, end = self._sets.find(("start", index)), self._sets.find(("end", index))
            if start in found:
                b = found[start]
                b.first, b.low, b.high, b.pinned = -1, 0, area.size, True
            if area.kept:
                first = -1 if start == end else ends
                b = found.setdefault(end, Buffer(index, 0, area.size, first, ends))
                b.last, b.low, b.high, b.pinned = ends, 0, area.size, True


def _copied(state: _State) -> _State:
    return {index: writers.copy() for index, writers in state.items()}
