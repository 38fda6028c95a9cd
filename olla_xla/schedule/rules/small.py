"""An order in which small results come early, for memory that is given out as values come."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.schedule.rules.greedy import by_priority


def small_first(
    g: GraphArrays, order: NDArray[np.int64], movable: NDArray[np.bool_], most: int
) -> NDArray[np.int64]:
    """Changes an order so that operators with small results run as soon as they can.

    A small value that is placed above large ones, and outlives them, divides the gap that they
    leave. Only small values live longer than in the given order; operands do not.

    Args:
      g: the graph. order: of its operators, int64 [n].
      movable: bool [n], the operators that may run earlier.
      most: bytes of all the buffers that an operator of small results writes.
    """
    buffers = np.zeros(int(g.buffer.max(initial=-1)) + 1, np.int64)
    np.maximum.at(buffers, g.buffer, g.bytes)
    written = np.zeros(g.n, np.int64)
    np.add.at(written, g.source, buffers[g.buffer])
    small = movable & (written > 0) & (written <= most)
    return by_priority(g, g.positions(order) + np.where(small, 0, g.n))
