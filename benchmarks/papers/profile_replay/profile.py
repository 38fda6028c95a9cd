"""Profile and replay: memory planned from one recorded iteration.

Sekiyama, Imamichi, Imai and Raymond, "Profile-guided memory optimization for deep neural networks"
(2018), arXiv:1804.10001, section 4.

A program that repeats itself is recorded once: its k-th request has a size and a lifetime. The
offsets found for that profile serve the later iterations, request by request. Stretches that differ
from iteration to iteration are left out between `interrupt` and `resume`. A request that outgrows
its profile, or lives longer than it did, makes the rest of the iteration be placed again.

Example:
  >>> recorder = Recorder()
  >>> a = recorder.allocate(64)
  >>> b = recorder.allocate(32)
  >>> recorder.free(a)
  >>> c = recorder.allocate(64)
  >>> allocator = PlannedAllocator(recorder.problem())
  >>> allocator.arena_bytes
  96
  >>> allocator.begin()
  >>> allocator.allocate(64), allocator.allocate(32)
  ((0, 0), (1, 64))

`benchmarks.papers.profile_replay.record_arrays` records the arrays of a NumPy program.
"""

from __future__ import annotations

import dataclasses
import heapq

import numpy as np

from olla_xla.errors import InputError
from olla_xla.place.placer import place
from olla_xla.place.problem import PlacementProblem


class Recorder:
    """Records the requests of one iteration; time advances by one at each request and release."""

    def __init__(self) -> None:
        self._time = 0
        self._paused = False
        self._size: list[int] = []
        self._lower: list[int] = []
        self._upper: list[int | None] = []

    def allocate(self, size: int) -> int | None:
        """Records a request of `size` bytes; its number, or None while interrupted."""
        if size < 0:
            raise InputError(f"a request of {size} bytes")
        if self._paused:
            return None
        self._size.append(size)
        self._lower.append(self._time)
        self._upper.append(None)
        self._time += 1
        return len(self._size) - 1

    def free(self, request: int) -> None:
        """Records the release of a request; it may come while interrupted."""
        if not 0 <= request < len(self._size) or self._upper[request] is not None:
            raise InputError(f"request {request} is not allocated")
        self._upper[request] = self._time
        self._time += 1

    def interrupt(self) -> None:
        """Starts a dynamic stretch, which is left out of the profile."""
        self._paused = True

    def resume(self) -> None:
        """The recorded part goes on."""
        self._paused = False

    def problem(self, alignment: int = 1) -> PlacementProblem:
        """The profile, named by request number; what was not released lives to the end."""
        end = self._time + 1
        upper = [end if u is None else u for u in self._upper]
        return PlacementProblem.of(self._lower, upper, self._size, alignment=alignment)


class PlannedAllocator:
    """Serves the requests of later iterations from one arena.

    Args:
      profile: the recorded iteration, blocks in the order of their requests.
      time_limit, node_limit: of each placement; see `place`.

    Attributes:
      arena_bytes: what the arena must hold; it never shrinks.
      replans: placements made since the first.
    """

    def __init__(
        self, profile: PlacementProblem, *, time_limit: float = 1.0, node_limit: int | None = None
    ) -> None:
        if (profile.space != profile.space[:1]).any() or (profile.fixed >= 0).any():
            raise InputError("a profile has one memory space and no pinned blocks")
        self._problem = profile
        self._limits = {"time_limit": time_limit, "node_limit": node_limit}
        self.arena_bytes = 0
        self.replans = -1
        self._live: dict[int, int] = {}
        self._due: list[tuple[int, int]] = []  # (recorded end, request) of those that were served
        self._late: set[int] = set()  # live past their recorded end
        self._next = 0
        self._paused = False
        self._place()

    def begin(self) -> None:
        """Starts an iteration.

        Raises:
          InputError: a block of the iteration before is still allocated.
        """
        if self._live:
            raise InputError(f"request {min(self._live)} was not freed in the iteration before")
        self._next = 0
        self._paused = False
        self._due, self._late = [], set()
        if self._stale:  # offsets were found for the rest of an iteration only
            self._place()

    def interrupt(self) -> None:
        """Starts a dynamic stretch, which is not served from the arena."""
        self._paused = True

    def resume(self) -> None:
        """The recorded part goes on."""
        self._paused = False

    def allocate(self, size: int) -> tuple[int, int] | None:
        """Serves the next request of the iteration.

        Returns:
          (its number, its offset in the arena in bytes), or None where another allocator must serve
          it: while interrupted, or past the end of the profile.
        """
        if size < 0:
            raise InputError(f"a request of {size} bytes")
        if self._paused or self._next == len(self._problem):
            return None
        request = self._next
        grown = size > self._problem.size[request]
        if grown or self._meets_live(request):
            self._replan(request, size)
        self._next += 1
        self._live[request] = int(self._offsets[request])
        heapq.heappush(self._due, (int(self._problem.upper[request]), request))
        return request, self._live[request]

    def free(self, request: int) -> None:
        """Releases a request that `allocate` served."""
        if request not in self._live:
            raise InputError(f"request {request} is not allocated")
        del self._live[request]
        self._late.discard(request)

    def _meets_live(self, request: int) -> bool:
        """Whether a block that should be free by now lies where the request is to go.

        Blocks live within their recorded time lie elsewhere: the offsets are a packing.
        """
        while self._due and self._due[0][0] <= self._problem.lower[request]:
            _, late = heapq.heappop(self._due)
            if late in self._live:
                self._late.add(late)
        start = self._offsets[request]
        stop = start + self._problem.size[request]
        size = self._problem.size
        return any(self._live[k] < stop and start < self._live[k] + size[k] for k in self._late)

    def _replan(self, request: int, size: int) -> None:
        """Places what is still to come again; live blocks stay, and live on with the request."""
        problem = self._problem
        sizes, upper = problem.size.copy(), problem.upper.copy()
        sizes[request] = max(sizes[request], size)
        for k in self._live:
            upper[k] = max(upper[k], problem.lower[request] + 1)
        self._problem = dataclasses.replace(problem, size=sizes, upper=upper)
        self._due = [(int(upper[k]), k) for k in sorted(self._live)]
        heapq.heapify(self._due)
        self._late.clear()
        self._place()

    def _place(self) -> None:
        """Finds offsets; while an iteration runs, its live blocks are pinned."""
        fixed = np.full(len(self._problem), -1, np.int64)
        coming = np.arange(len(self._problem)) >= self._next
        for k, at in self._live.items():
            fixed[k] = at
            coming[k] = True
        now = dataclasses.replace(self._problem, fixed=fixed)
        chosen = np.flatnonzero(coming)
        part = PlacementProblem.of(
            now.lower[chosen], now.upper[chosen], now.size[chosen],
            alignment=now.alignment[chosen], fixed=fixed[chosen],
        )  # fmt: skip
        packing = place(part, **self._limits)
        assert packing.offsets is not None  # live blocks do not overlap; there is no capacity
        self._stale = len(chosen) < len(self._problem) or bool(self._live)
        self._offsets = np.zeros(len(self._problem), np.int64)
        self._offsets[chosen] = packing.offsets
        self.arena_bytes = max(self.arena_bytes, packing.height)
        self.replans += 1
