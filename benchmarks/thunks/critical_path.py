"""Predicted times of a GPU's thunks: as XLA issues them, and of their longest dependent chain.

Two thunks that share bytes, at least one of which writes them, must run in order. Plans that use
less memory add such pairs without adding operators. The longest chain of such thunks is a lower
bound that no use of streams or graphs can beat. By default XLA does not reach it: it issues thunks
to one stream, and only work that was started on another stream runs concurrently
(olla_xla.remat.cost.path has the same for modules).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hlo.gpu_executable import GpuExecutable, GpuThunk
from hlo.gpu_thunks import Flow
from hlo.module import Instruction, Module
from hlo.slices import Access, Slice
from olla_xla.remat.cost.path import Streams, is_transfer
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.cost.work import trips


class Durations(NamedTuple):
    """Predicted seconds of one run: of the thunks as issued, and of the longest chain of them."""

    issued: float
    chain: float


def durations(executable: GpuExecutable, module: Module, cost: CostModel) -> Durations:
    """Both of an executable.

    Args:
      executable: as it was read. module: its module. cost: prices instructions.
    """
    named = {i.name: i for c in module.control_computations for i in c.instructions}
    return _Clock(named, cost).sequence(executable.thunks)


class _Clock:
    def __init__(self, named: Mapping[str, Instruction], cost: CostModel) -> None:
        self._named, self._cost = named, cost

    def sequence(self, thunks: Sequence[GpuThunk]) -> Durations:
        """The durations of a sequence of thunks that starts while nothing else runs."""
        longest, chains = 0.0, _Chains()
        streams = Streams(self._cost.device.start_seconds)
        for k, thunk in enumerate(thunks):
            own = self._own(thunk, last=not any(t.name == thunk.name for t in thunks[k + 1 :]))
            if thunk.flow is Flow.START:
                kinds = (t.kind.replace("_", "-") for t in thunk.below())
                link = "devices" if any(map(is_transfer, kinds)) else ""
                streams.start(thunk.execution, own.issued, link=link)
            elif thunk.flow is Flow.DONE:
                streams.done(thunk.execution)
            else:
                streams.run(own.issued)
            accesses = [a for t in thunk.below() for a in t.accesses if a.slice.size]
            longest = max(longest, chains.add(accesses, own.chain))
        return Durations(streams.finish(), longest)

    def _own(self, thunk: GpuThunk, *, last: bool) -> Durations:
        """The durations of one thunk; if several run an instruction, the last has its time."""
        i = self._named.get(thunk.name)
        inside = [self.sequence(inner) for inner in thunk.inner]
        if thunk.flow is Flow.BRANCH:
            return max(inside, default=Durations(0.0, 0.0))
        if inside:
            times = trips(i) if i is not None else 1
            issued, chain = (times * sum(part) for part in zip(*inside, strict=True))
            return Durations(issued, chain)
        if i is None or not last or thunk.flow is Flow.DONE:
            return Durations(0.0, 0.0)
        seconds = self._cost.seconds(i)
        return Durations(seconds, seconds)


class _Chains:
    """For each byte, when the last write of it ends, and the last read since then."""

    def __init__(self) -> None:
        self._starts: dict[int, list[int]] = {}
        self._ends: dict[int, list[tuple[float, float]]] = {}

    def add(self, accesses: Iterable[Access], seconds: float) -> float:
        """Adds a thunk by its accesses; returns when the longest chain through it ends."""
        accesses = list(accesses)
        begin = 0.0
        for access in accesses:
            ends = self._ends.setdefault(access.slice.allocation, [(0.0, 0.0)])
            for k in self._parts(access.slice):
                begin = max(begin, ends[k][0], ends[k][1] if access.writes else 0.0)
        end = begin + seconds
        for access in accesses:
            ends = self._ends[access.slice.allocation]
            for k in self._parts(access.slice):
                written, read = ends[k]
                if access.writes:
                    ends[k] = (max(written, end), max(read, end))
                else:
                    ends[k] = (written, max(read, end))
        return end

    def _parts(self, place: Slice) -> range:
        """The pieces of an allocation that a slice is made of, cut at its ends."""
        starts = self._starts.setdefault(place.allocation, [0])
        ends = self._ends.setdefault(place.allocation, [(0.0, 0.0)])
        for cut in (place.offset, place.end):
            k = bisect.bisect_left(starts, cut)
            if k == len(starts) or starts[k] != cut:
                starts.insert(k, cut)
                ends.insert(k, ends[k - 1])
        return range(
            bisect.bisect_left(starts, place.offset), bisect.bisect_left(starts, place.end)
        )
