"""Orders whose live bytes are far below their largest sum almost everywhere.

What makes offsets hard to find is not the peak but how many steps come near it: there hardly any
hole may be left. So local search (moves.py) lowers the squared excess over a level well below the
peak, and lets no step rise above the peak. It often lowers the peak too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.schedule.search.moves import late_acceptance_search
from olla_xla.schedule.search.state import Problem, evaluate, new_state, with_arguments_pinned

__all__ = ["flattened"]

_LEVELS = (0.8, 0.9, 0.5)
"""The levels to be got below, between the least (0) and the largest (1) live sum of the order."""

_ROUNDS = 3
"""Of moves for a level, before the search begins anew with the next one."""

_MOVES, _MOVES_PER_OPERATOR = 100_000, 50
"""In the first round, at most; each later one for the same level has twice as many as the last."""

_HISTORY = 300  # late acceptance: moves looked back upon
_CHUNK = 20_000  # moves between looks at the limits


def flattened(
    graph: GraphArrays,
    order: Sequence[int] | NDArray[np.int64],
    *,
    alignment: int = 1,
    seed: int = 0,
    first: int = 0,
    spend: Callable[[int], None] = lambda moves: None,
) -> Iterator[NDArray[np.int64]]:
    """Flatter and flatter orders from one to begin with, without end.

    Where arguments are dead before another tensor replaces them, rounds alternate: in every second
    one, their buffers count as occupied all the time. Under orders that are flat so, nothing need
    lie where an argument is dead.

    Args:
      graph: the graph. order: operator ids. alignment: sizes are rounded up to it (bytes).
      seed: of the random numbers. first: operators before this step stay where they are.
      spend: is told every now and then how many moves were tried; may raise.

    Yields:
      Orders; under none is the largest live sum larger than under `order`.
    """
    aligned = graph._replace(
        bytes=_rounded(graph.bytes, alignment),
        transient=_rounded(np.maximum(graph.transient, 0), alignment),
    )
    if aligned.n - first < 2:
        return
    start = np.asarray(order, np.int64)
    problems = [Problem.of(aligned), with_arguments_pinned(aligned, replaced=True)]
    true, held = (new_state(problem, start, seed) for problem in problems)
    if np.array_equal(true.live, held.live):
        problems.pop()
    peak = int(true.live.max())
    for k in itertools.count():
        level = _LEVELS[k % len(_LEVELS)]
        runs = [_Run(problem, start, level, seed + k) for problem in problems]
        moves = min(_MOVES, _MOVES_PER_OPERATOR * aligned.n)
        for _ in range(_ROUNDS):
            for run in runs:
                true.order[:] = run.round(moves, first, spend)
                if evaluate(problems[0], true) <= peak:
                    yield true.order.copy()
            moves *= 2


class _Run:
    """Local search on one problem."""

    def __init__(self, problem: Problem, start: NDArray[np.int64], level: float, seed: int) -> None:
        self.problem = problem
        self.state = new_state(problem, start, seed)
        self.best = start.copy()
        self.peak, least = int(self.state.live.max()), int(self.state.live.min())
        self.level = least + int(level * (self.peak - least))

    def round(self, moves: int, first: int, spend: Callable[[int], None]) -> NDArray[np.int64]:
        """The order after a number of moves."""
        history = np.zeros(_HISTORY)
        for begun in range(0, moves, _CHUNK):
            chunk = min(_CHUNK, moves - begun)
            _, done = late_acceptance_search(
                self.problem, self.state, first, self.level, chunk, history, self.best, self.peak
            )
            spend(int(done))
        return self.best


def _rounded(sizes: NDArray[np.int64], alignment: int) -> NDArray[np.int64]:
    return -(-sizes // alignment) * alignment
