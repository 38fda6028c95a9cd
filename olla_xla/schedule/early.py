"""Orders changed so that some operators run early, where that helps to place what lives later."""

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays, sum_by
from olla_xla.schedule.rules import by_priority


def small_first(
    g: GraphArrays, order: NDArray[np.int64], movable: NDArray[np.bool_], most: int
) -> NDArray[np.int64]:
    """A changed order, int64 [n]: operators with small results run as soon as they can. A small
    value that is placed above large ones, and outlives them, divides the gap that they leave. Only
    small values live longer than in the given order; operands do not. `movable`: bool [n], the
    operators that may run earlier. `most`: bytes of all the buffers that an operator with small
    results writes.
    """
    buffers = np.zeros(int(g.buffer.max(initial=-1)) + 1, np.int64)
    np.maximum.at(buffers, g.buffer, g.bytes)
    written = sum_by(g.source, buffers[g.buffer], g.n)
    small = movable & (written > 0) & (written <= most)
    return by_priority(g, g.positions(order) + np.where(small, 0, g.n))


def arguments_first(g: GraphArrays, order: NDArray[np.int64], least: float) -> NDArray[np.int64]:
    """Changes an order, int64 [n]: arguments of at least `least` bytes that one operator reads are
    read as soon as can be. Then other values fit into their memory, each of which is an allocation
    of its own. Only operators whose results take no more bytes than the argument run earlier, those
    of the largest first.
    """
    ends = g.live_in & ~g.live_out & (np.diff(g.sink_ptr) == 1) & (g.bytes >= least)
    freed = np.zeros(g.n, np.int64)
    np.add.at(freed, g.sink_idx[g.sink_ptr[:-1][ends]], g.bytes[ends])
    freed[g.free & (g.made == 0)] = g.bytes.sum()  # what leads to them takes nothing
    moves = (freed > 0) & (g.made <= freed)
    return by_priority(g, np.where(moves, -freed, g.positions(order)))
