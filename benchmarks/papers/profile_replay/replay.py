"""Replay that learns its profiles itself, for loops whose iterations differ, as with sequences.

It extends section 4 of Sekiyama et al. (2018) from one profile to any number. An iteration is a
sequence of requests and releases. Known iterations form a tree of common prefixes, and a request in
a common prefix has the same offset in all of them, so the caller need not know in advance which one
an iteration will be. An iteration that leaves the tree is recorded from there on: its further
requests are served around the live blocks, and from the next iteration on it is a known profile.

Example:
  >>> allocator = LearningAllocator()
  >>> for sizes in ([64, 32, 64], [64, 32, 16, 16], [64, 32, 64], [64, 32, 16, 16]):
  ...     allocator.begin()
  ...     requests = [allocator.allocate(size) for size in sizes]
  ...     for number, _ in requests:
  ...         allocator.free(number)
  >>> allocator.recorded, allocator.arena_bytes
  (2, 160)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from olla_xla.errors import InputError, LimitError
from olla_xla.place.placer import place
from olla_xla.place.problem import PlacementProblem


@dataclasses.dataclass(slots=True)
class _Node:
    """A state of known iterations.

    Attributes:
      offset: of the request that led here, bytes; 0 where a release did.
      following: by event, what comes next: a size, or -1 - k where request k is released.
    """

    offset: int = 0
    following: dict[int, _Node] = dataclasses.field(default_factory=dict)


class _Profile(NamedTuple):
    """An iteration that was recorded.

    Attributes:
      events: as in `_Node.following`. sizes, lower, upper: of its requests; time is the event.
      live_bytes: the most that was live.
    """

    events: tuple[int, ...]
    sizes: list[int]
    lower: list[int]
    upper: list[int]
    live_bytes: int


class LearningAllocator:
    """Serves the requests of each iteration from one arena, and learns from those it did not know.

    Nothing is live between iterations, so the arena may have another size, and places others, in
    each: it is as large as the largest known iteration needs, and larger only while one runs that
    was not known.

    Args:
      most_profiles: iterations that are remembered; the one unused for longest is forgotten first.
      time_limit, node_limit: of each placement; see `place`.

    Attributes:
      arena_bytes: what the arena must hold now. largest_arena_bytes: the most that it ever had to.
      recorded: iterations that were not known. profiles: those that are remembered.

    Raises:
      LimitError: `most_profiles` is not positive.
    """

    def __init__(
        self,
        *,
        most_profiles: int = 64,
        time_limit: float = 1.0,
        node_limit: int | None = None,
    ) -> None:
        if most_profiles < 1:
            raise LimitError(f"most_profiles={most_profiles} must be at least 1")
        self._most = most_profiles
        self._limits = {"time_limit": time_limit, "node_limit": node_limit}
        self._known: dict[tuple[int, ...], _Profile] = {}  # the last one used last
        self._root = _Node()
        self._planned_bytes = 0
        self.arena_bytes = self.largest_arena_bytes = 0
        self.recorded = 0
        self._live: dict[int, tuple[int, int]] = {}  # by request: offset and size
        self._events: list[int] = []
        self._count = 0
        self._at: _Node | None = self._root  # None where the iteration is not known

    @property
    def profiles(self) -> int:
        """How many iterations are remembered."""
        return len(self._known)

    def begin(self) -> None:
        """Starts an iteration; the one before becomes a profile if it was not known.

        Raises:
          InputError: a block of the iteration before is still allocated.
        """
        if self._live:
            raise InputError(f"request {min(self._live)} was not freed in the iteration before")
        if self._events:
            self._remember(tuple(self._events))
        self._events, self._count = [], 0
        self._at = self._root
        self.arena_bytes = self._planned_bytes

    def allocate(self, size: int) -> tuple[int, int]:
        """Serves a request: its number within the iteration, and its offset in the arena, bytes."""
        if size < 0:
            raise InputError(f"a request of {size} bytes")
        self._follow(size)
        offset = self._gap(size) if self._at is None else self._at.offset
        number = self._count
        self._count += 1
        self._live[number] = offset, size
        self.arena_bytes = max(self.arena_bytes, offset + size)
        self.largest_arena_bytes = max(self.largest_arena_bytes, self.arena_bytes)
        return number, offset

    def free(self, request: int) -> None:
        """Releases a request."""
        if request not in self._live:
            raise InputError(f"request {request} is not allocated")
        self._follow(-1 - request)
        del self._live[request]

    def _follow(self, event: int) -> None:
        self._events.append(event)
        if self._at is not None:
            self._at = self._at.following.get(event)

    def _gap(self, size: int) -> int:
        """The lowest offset at which `size` bytes overlap no live block."""
        offset = 0
        for at, taken in sorted(self._live.values()):
            if at >= offset + size:
                break
            offset = max(offset, at + taken)
        return offset

    def _remember(self, events: tuple[int, ...]) -> None:
        """Makes a profile of an iteration, or of a known one the last that was used."""
        profile = self._known.pop(events, None)
        known = profile is not None
        self._known[events] = _profile(events) if profile is None else profile
        if known:
            return
        self.recorded += 1
        forgotten = len(self._known) > self._most
        if forgotten:
            del self._known[next(iter(self._known))]
        others = list(self._known.values())[:-1]
        new = self._known[events]
        if forgotten or all(new.live_bytes > p.live_bytes for p in others):
            # The largest has its places first, and those that begin alike take them over.
            self._root, self._planned_bytes = _Node(), 0
            for p in sorted(self._known.values(), key=lambda p: -p.live_bytes):
                self._add(p)
        else:
            self._add(new)

    def _add(self, profile: _Profile) -> None:
        """Places those requests of an iteration that it does not share with placed iterations."""
        node, offsets = self._root, []
        for event in profile.events:
            if event not in node.following:
                break
            node = node.following[event]
            if event >= 0:
                offsets.append(node.offset)
        rest = len(profile.sizes) - len(offsets)
        found = _placed(profile, [*offsets, *[-1] * rest], self._planned_bytes, self._limits)
        node, number = self._root, 0
        for event in profile.events:
            node = node.following.setdefault(event, _Node())
            if event >= 0:
                node.offset = found[number]
                number += 1
                self._planned_bytes = max(self._planned_bytes, node.offset + event)


def _profile(events: tuple[int, ...]) -> _Profile:
    sizes: list[int] = []
    lower: list[int] = []
    upper: list[int] = []
    live = most = 0
    for time, event in enumerate(events):
        if event >= 0:
            sizes.append(event)
            lower.append(time)
            upper.append(len(events))
            live += event
            most = max(most, live)
        else:
            upper[-1 - event] = time
            live -= sizes[-1 - event]
    return _Profile(events, sizes, lower, upper, most)


def _placed(profile: _Profile, fixed: Sequence[int], height: int, limits: dict) -> list[int]:
    """Offsets, those at `fixed` (-1: free) as they are; within `height` if that will do."""
    lives = profile.lower, profile.upper, profile.sizes
    if height >= profile.live_bytes:
        within = PlacementProblem.of(*lives, fixed=fixed, capacity=height)
        packing = place(within, **limits)
        if packing.offsets is not None:
            return packing.offsets.tolist()
    packing = place(PlacementProblem.of(*lives, fixed=fixed), **limits)
    assert packing.offsets is not None  # what is shared does not overlap; there is no capacity
    return np.asarray(packing.offsets).tolist()
