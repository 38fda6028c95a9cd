"""Flat orders: their live bytes are far below the peak at almost every step.

Offsets are hard to find where many steps come near the peak, since a packing can leave few gaps
there. So local search (moves.py) lowers the squared excess over a level well below the peak, and
lets no step rise above the peak. It often lowers the peak too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.schedule.search.moves import late_acceptance_search
from olla_xla.schedule.search.state import evaluate, new_state, with_arguments_pinned

_LEVELS = (0.8, 0.9, 0.5)
"""Levels to get below, from the order's least live bytes (0) to its peak (1)."""

_ROUNDS = 3
"""Rounds of moves for a level; the search then starts again with the next level."""

_MOVES, _MOVES_PER_OPERATOR = 100_000, 50
"""Most moves in the first round of a level; each further round has twice as many."""

_HISTORY = 300  # late acceptance: a cost is compared with the one this many moves before
_CHUNK = 20_000  # moves between two checks of the limits


def flattened(
    graph: GraphArrays,
    order: Sequence[int] | NDArray[np.int64],
    *,
    alignment: int = 1,
    seed: int = 0,
    first: int = 0,
    spend: Callable[[int], None] = lambda moves: None,
) -> Iterator[NDArray[np.int64]]:
    """Yields ever flatter orders, without end; none if fewer than two operators can move.

    An order is flat if few steps come near its peak. Where arguments are dead before another tensor
    replaces them, rounds alternate: in every second one, their buffers count as occupied at every
    step. An order that is flat by this count needs no tensor in the memory of a dead argument.

    Args:
      graph: the graph. order: operator ids. alignment: sizes are rounded up to it (bytes).
      seed: of the random numbers. first: operators before this step stay where they are.
      spend: called from time to time with the number of moves tried since; may raise to end it.

    Yields:
      Orders; under none is the largest live sum larger than under `order`.
    """
    transient = _rounded(np.maximum(graph.transient, 0), alignment)
    aligned = graph.resized(_rounded(graph.bytes, alignment))._replace(transient=transient)
    if aligned.n - first < 2:
        return
    start = np.asarray(order, np.int64)
    graphs = [aligned, with_arguments_pinned(aligned, replaced=True)]
    true, held = (new_state(g, start, seed) for g in graphs)
    if np.array_equal(true.live, held.live):
        graphs.pop()
    peak = int(true.live.max())
    for k in itertools.count():
        level = _LEVELS[k % len(_LEVELS)]
        runs = [_Run(g, start, level, seed + k) for g in graphs]
        moves = min(_MOVES, _MOVES_PER_OPERATOR * aligned.n)
        for _ in range(_ROUNDS):
            for run in runs:
                true.order[:] = run.round(moves, first, spend)
                if evaluate(aligned, true) <= peak:
                    yield true.order.copy()
            moves *= 2


class _Run:
    """Local search on one graph."""

    def __init__(
        self, graph: GraphArrays, start: NDArray[np.int64], level: float, seed: int
    ) -> None:
        self.graph = graph
        self.state = new_state(graph, start, seed)
        self.best = start.copy()
        self.peak, least = int(self.state.live.max()), int(self.state.live.min())
        self.level = least + int(level * (self.peak - least))

    def round(self, moves: int, first: int, spend: Callable[[int], None]) -> NDArray[np.int64]:
        """The order after a number of moves."""
        history = np.zeros(_HISTORY)
        for begun in range(0, moves, _CHUNK):
            chunk = min(_CHUNK, moves - begun)
            _, done = late_acceptance_search(
                self.graph, self.state, first, self.level, chunk, history, self.best, self.peak
            )
            spend(int(done))
        return self.best


def _rounded(sizes: NDArray[np.int64], alignment: int) -> NDArray[np.int64]:
    return -(-sizes // alignment) * alignment
