"""The state of the exact search (descend.py): one node, changed in place and undone from trails."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.place.exact.model import Model

FAR = 2**62

# Entries of State.count.
ACTIVE, FRAMES, RESTS, BOUNDS, DEPTH, LEVEL, RANK, WORK = range(8)

# Columns of State.frames: a set of unplaced items that no other unplaced item meets in time.
LO, HI, FIRST, LAST, LOWEST, ABOVE, NEXT, PARENT, SPLIT, START = range(10)

# Columns of State.stack.
ITEM, SECOND, OLD_RESTS, OLD_BOUNDS, FRAME, OLD_FRAMES = range(6)


class PlacementState(NamedTuple):
    """A node of the search for a packing; arrays change in place and are undone from the trails.

    Attributes:
      rest: [items] highest end of placed blocks below. earliest: [items] bound of the offset.
      latest: [items] the highest offset within the capacity.
      offset: [items] of placed items, else -1.
      waiting, slot: the items, each frame's in one range, and each item's index in `waiting`.
      total: [sections] unplaced bytes.
      crossing: [sections] unplaced items that live both there and in the next section or later.
      dirty: [sections] whose bounds must be inferred again.
      highest: [sections] no `earliest` of an unplaced item there is higher.
      support: [items] an index into the neighbour list (`model.nb_idx`): the unplaced neighbour on
        which an item not placed at its rest could lie at its bound; -1: none known. Never undone.
      rests, bounds: trails of (item, old value) of `rest` and `earliest`.
      frames: [frames] parts packed one after the other. `waiting`[LO:HI]: its unplaced items, in
        sections FIRST..LAST; at its start, (offset, rank) of candidates must exceed
        (LOWEST, ABOVE). NEXT: frame searched after it, or -1. PARENT: frame that was split into it
        and others at depth SPLIT, or -1. START: depth of its own first decision.
      stack: [depth] item of a decision, 1 once its first branch is done, lengths of the trails
        before it, its frame, and the number of frames.
      count: ACTIVE frame, number of FRAMES, entries on the trails (RESTS, BOUNDS), DEPTH, offset
        and rank of the last candidate (LEVEL, RANK), and WORK: entries looked at, for all purposes.
      weight: [sections] failures seen.
    """

    rest: NDArray[np.int64]
    earliest: NDArray[np.int64]
    latest: NDArray[np.int64]
    offset: NDArray[np.int64]
    waiting: NDArray[np.int64]
    slot: NDArray[np.int64]
    total: NDArray[np.int64]
    crossing: NDArray[np.int64]
    dirty: NDArray[np.bool_]
    highest: NDArray[np.int64]
    support: NDArray[np.int64]
    rests: NDArray[np.int64]
    bounds: NDArray[np.int64]
    frames: NDArray[np.int64]
    stack: NDArray[np.int64]
    count: NDArray[np.int64]
    weight: NDArray[np.float64]


Trails = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Working memory: `rests`, `bounds` and `stack` of a PlacementState."""


def trails(entries: int) -> Trails:
    """Allocates memory to undo changes of that many entries, and a sixteenth as many decisions;
    only what is in use is touched.
    """
    return (
        np.empty((entries, 2), np.int64),
        np.empty((entries, 2), np.int64),
        np.empty((entries // 16, 6), np.int64),
    )


def start(
    model: Model, capacity: int, weight: NDArray[np.float64], trails: Trails
) -> PlacementState:
    """Makes the state before any item is placed, which includes `weight` ([sections], failures) and
    `trails` (memory to undo decisions). `capacity`: bytes.
    """
    n, sections = len(model.size), len(model.mem_ptr) - 1
    pinned = model.fixed >= 0
    latest = (capacity - model.need) // model.align * model.align
    crossing = np.zeros(sections + 1, np.int64)
    np.add.at(crossing, model.first, 1)
    np.subtract.at(crossing, model.last, 1)
    frames = np.zeros((2 * n + 2, 10), np.int64)
    frames[0, [HI, LAST]] = n, sections - 1
    frames[0, [ABOVE, NEXT, PARENT]] = -1
    count = np.zeros(8, np.int64)
    count[FRAMES], count[RANK] = 1, -1
    return PlacementState(
        rest=np.where(pinned, model.fixed, 0),
        earliest=np.where(pinned, model.fixed, 0),
        latest=np.where(pinned, np.minimum(latest, model.fixed), latest),
        offset=np.full(n, -1),
        waiting=np.arange(n),
        slot=np.arange(n),
        total=np.diff(np.append(0, np.cumsum(model.mem_height))[model.mem_ptr]),
        crossing=np.cumsum(crossing)[:sections],
        dirty=np.ones(sections, np.bool_),
        highest=np.full(sections, model.fixed.max()),
        support=np.full(n, -1),
        rests=trails[0],
        bounds=trails[1],
        frames=frames,
        stack=trails[2],
        count=count,
        weight=weight,
    )
