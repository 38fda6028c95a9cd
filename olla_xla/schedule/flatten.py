"""Orders whose live bytes are far below their largest sum almost everywhere.

What makes offsets hard to find is not the peak but how many steps come near it: there hardly any
hole may be left. So local search (anneal.py) lowers the squared excess over a level well below the
peak, and lets no step rise above the peak. It often lowers the peak too.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from olla_xla.lifetimes import GraphArrays
from olla_xla.schedule.anneal import Problem, anneal, evaluate, new_state, standing

__all__ = ["flattened"]

_LEVELS = (0.8, 0.9, 0.5)
"""The levels to be got below, between the least (0) and the largest (1) live sum of the order."""

_ROUNDS = 3
"""Of moves for a level, before the search begins anew with the next one."""

_MOVES, _MOVES_PER_OPERATOR = 100_000, 50
"""In the first round, at most; each later one for the same level has twice as many as the last."""

_HISTORY = 300  # late acceptance: moves looked back upon


def flattened(
    graph: GraphArrays, order: Sequence[int], *, alignment: int = 1, seed: int = 0
) -> Iterator[tuple[list[int], int]]:
    """Flatter and flatter orders from one to begin with, without end.

    Where arguments are dead before another tensor replaces them, rounds take turns: in every second
    one, their buffers count as occupied all the time. Under orders that are flat so, nothing need
    lie where an argument is dead.

    Args:
      graph: the graph. order: operator ids. alignment: sizes are rounded up to it (bytes).
      seed: of the random numbers.

    Yields:
      (order, moves tried for it). Under none is the largest live sum larger than under `order`.
    """
    aligned = dataclasses.replace(
        graph,
        bytes=_rounded(graph.bytes, alignment),
        transient=_rounded(np.maximum(graph.transient, 0), alignment),
    )
    if aligned.n < 2:
        return
    start = np.asarray(order, np.int64)
    problems = [Problem.of(aligned), standing(aligned, replaced=True)]
    first, held = (new_state(problem, start, seed) for problem in problems)
    if np.array_equal(first.live, held.live):
        problems.pop()
    least = int(first.live.max())
    for k in itertools.count():
        level = _LEVELS[k % len(_LEVELS)]
        runs = [_Run(problem, start, level, seed + k) for problem in problems]
        moves = min(_MOVES, _MOVES_PER_OPERATOR * aligned.n)
        for _ in range(_ROUNDS):
            for run in runs:
                best, done = run.round(moves)
                first.order[:] = best
                if evaluate(problems[0], first) <= least:
                    yield best.tolist(), done
            moves *= 2


class _Run:
    """Local search on one problem."""

    def __init__(self, problem: Problem, start: np.ndarray, level: float, seed: int) -> None:
        self.problem = problem
        self.state = new_state(problem, start, seed)
        self.peak, least = int(self.state.live.max()), int(self.state.live.min())
        self.level = least + int(level * (self.peak - least))

    def round(self, moves: int) -> tuple[np.ndarray, int]:
        """The flattest order of so many moves, and how many were tried."""
        history, best = np.zeros(_HISTORY), np.empty_like(self.state.order)
        found = anneal(self.problem, self.state, 0, self.level, moves, history, best, self.peak)
        return best, int(found[1])


def _rounded(sizes: np.ndarray, alignment: int) -> np.ndarray:
    return -(-sizes // alignment) * alignment
