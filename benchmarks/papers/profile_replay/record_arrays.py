"""Records the allocations of a NumPy program, for `benchmarks.papers.profile_replay.profile`.

Arrays made from a recorded one are recorded themselves: results of ufuncs, products, copies. A view
is no allocation. An array's memory is released when nothing refers to it or to a view of it.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import numpy as np


class Records(Protocol):
    """Receives allocations and releases, such as a `Recorder`."""

    def allocate(self, size: int) -> Any:
        """Notes a request of `size` bytes; returns what `free` takes, or None for nothing."""
        ...

    def free(self, request: Any) -> None:
        """Notes a release."""
        ...


class RecordedArray(np.ndarray):
    """An array whose memory is recorded, and that of all arrays made from it; see `recorded`."""

    _tracker: _Tracker | None = None

    def __array_finalize__(self, obj: Any) -> None:
        tracker = getattr(obj, "_tracker", None)
        if tracker is not None:
            self._tracker = tracker
            tracker.track(self)


def recorded(array: np.ndarray, records: Records) -> RecordedArray:
    """A view of an array from which recording starts; the array's own memory is not recorded.

    Args:
      array: such as an input or a weight, which outlives the program's loop.
      records: is told of what is made from it, from now on.
    """
    view = np.asarray(array).view(RecordedArray)
    view._tracker = _Tracker(records, _owner(view))
    return view


class _Tracker:
    """Reports each block of memory once, and its release."""

    def __init__(self, records: Records, given: np.ndarray) -> None:
        self._records = records
        self._given = weakref.ref(given)
        self._known: set[int] = set()

    def track(self, array: np.ndarray) -> None:
        owner = _owner(array)
        if owner is self._given() or id(owner) in self._known:
            return
        request = self._records.allocate(owner.nbytes)
        if request is None:
            return
        self._known.add(id(owner))
        weakref.finalize(owner, self._release, id(owner), request).atexit = False

    def _release(self, owner: int, request: Any) -> None:
        self._known.discard(owner)
        self._records.free(request)


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory it is."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
