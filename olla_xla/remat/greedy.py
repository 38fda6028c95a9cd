"""Chooses evictions by greedy search: most bytes over the target removed per added second.

The excess of a state over a target is the sum, over all steps, of the live bytes above it. Each
round evicts one tensor of those that live across the highest step, together with the operands that
would otherwise be kept alive over that step to compute it again (whole chains). Gains change little
between rounds, so only the most promising are evaluated anew (Minoux, "Accelerated greedy", 1978).
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory import clock
from olla_xla.remat.evictions import Expansion, expand
from olla_xla.remat.graph import RematGraph

_SMALL = 2e-4  # tensors below this part of the peak are left alone
_CHAIN = 12  # most tensors of a chain
_LEAST_SECONDS = 1e-9
_NEARLY = 0.8
"""The best so far is taken if its gain per second is at least this part of what the next candidate
had. Gains only fall; else, of many similar layers all would be evaluated again each round."""


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A set of evictions, with the lifetime peak and added time that follow from it.

    Attributes:
      peak: lifetime peak in bytes, in the given order. seconds: predicted time added.
      moved: bytes moved beyond the module's own. evictions: int64 [k, 2] of (tensor, key).
    """

    peak: int
    seconds: float
    moved: int
    evictions: NDArray[np.int64]


class Selector:
    """Greedy search for the evictions in one graph that reduce its peak at the least added time.
    `deadline` is a time of `clock.now()`, in seconds, at which the search ends.
    """

    def __init__(self, graph: RematGraph, deadline: float) -> None:
        self.graph = graph
        self.deadline = deadline
        self._ratios: dict[int, float] = {}

    def point(self, evictions: NDArray[np.int64]) -> Point:
        """Evaluates drops of tensors (evictions), int64 [k, 2]: their peak, time, moved bytes."""
        e = expand(self.graph, evictions)
        return Point(e.peak, e.seconds, e.moved, evictions)

    def reduce(self, start: NDArray[np.int64], target: int, seconds: float = np.inf) -> Point:
        """Adds evictions greedily until the lifetime peak is at most `target`, none lowers it, or
        the time is up; then takes back those that are not needed (`thin`).

        Args:
          start: int64 [k, 2], evictions to begin with: (tensor, key of the moment at which it is
            dropped). target: bytes.
          seconds: ends the search where the evictions add more, however high the peak still is.
        """
        chosen = start
        now = expand(self.graph, chosen)
        self._ratios = {}
        while now.peak > target and now.seconds <= seconds and clock.now() < self.deadline:
            step = self._best(chosen, now, target)
            if step is None:
                break
            chosen, now = step
        return self.point(self.thin(chosen, max(target, now.peak)))

    def thin(self, evictions: NDArray[np.int64], target: int) -> NDArray[np.int64]:
        """Removes evictions that a peak of at most `target` bytes does not need, and whose removal
        adds no time; the most expensive are tried first. Returns the others, int64 [k, 2].
        """
        g = self.graph
        if not len(evictions):
            return evictions
        now = expand(g, evictions)
        price = g.seconds[g.arrays.source[evictions[:, 0]]]
        for k in np.lexsort((evictions[:, 0], -price)):
            if clock.now() >= self.deadline:
                break
            trial = evictions.copy()
            trial[k] = -1
            kept = trial[trial[:, 0] >= 0]
            e = expand(g, kept)
            if e.feasible and e.peak <= target and e.seconds <= now.seconds:
                evictions, now = trial, e
        return evictions[evictions[:, 0] >= 0]

    def _best(
        self, chosen: NDArray[np.int64], now: Expansion, target: int
    ) -> tuple[NDArray[np.int64], Expansion] | None:
        """Adds to `chosen` the evictions, at the moment of most live bytes, that lower the excess
        (live bytes above `target`, summed over the steps) most per added second. Returns (all
        evictions, their Expansion); None if nothing lowers it. `now`: the Expansion of `chosen`.
        """
        moment = int(now.keys[now.live.argmax()])
        excess = _excess(now, target)
        waiting = sorted(self._across(now, moment), key=lambda t: (-self._ratios.get(t, np.inf), t))
        best: tuple[float, NDArray[np.int64], Expansion] | None = None
        for t in waiting:
            if best is not None and best[0] >= _NEARLY * self._ratios.get(t, np.inf):
                break
            best_here = None
            for evictions, after in self._chains(chosen, now, t, waiting, moment):
                gain = excess - _excess(after, target)
                ratio = gain / max(after.seconds - now.seconds, _LEAST_SECONDS)
                if ratio > 0 and (best_here is None or ratio > best_here[0]):
                    best_here = (ratio, evictions, after)
            self._ratios[t] = best_here[0] if best_here else 0.0
            if best_here and (best is None or best_here[0] > best[0]):
                best = best_here
        return None if best is None else best[1:]

    def _across(self, now: Expansion, moment: int) -> list[int]:
        """Lists the larger tensors that live across `moment` and may be evicted (dropped) there."""
        g = self.graph
        over = (now.seg_start < moment) & (moment < now.seg_end)
        tensors = np.unique(now.seg_tensor[over])
        large = g.arrays.bytes[tensors] >= _SMALL * now.peak
        return tensors[large & g.evictable[tensors]].tolist()

    def _chains(
        self, chosen: NDArray[np.int64], now: Expansion, tensor: int, across: list[int], moment: int
    ) -> Iterator[tuple[NDArray[np.int64], Expansion]]:
        """Yields feasible (evictions, Expansion) with `tensor` dropped at a moment, then with all
        results in `across` of the operator that makes it; for each as `_chain` does.
        """
        yield from self._chain(chosen, now, [tensor], moment)
        g = self.graph.arrays
        v = g.source[tensor]
        results = [t for t in g.out_idx[g.out_ptr[v] : g.out_ptr[v + 1]].tolist() if t in across]
        if len(results) > 1:
            yield from self._chain(chosen, now, results, moment)

    def _chain(
        self, chosen: NDArray[np.int64], now: Expansion, added: list[int], moment: int
    ) -> Iterator[tuple[NDArray[np.int64], Expansion]]:
        """Yields (evictions, Expansion) if feasible: `chosen`, and `added` tensors dropped at
        `moment`; then also the operands that would be kept alive there to compute these again, and
        so on. Changes `added`. `now`: the Expansion of `chosen`.
        """
        before = _alive(now, moment)
        for _ in range(_CHAIN):
            evictions = np.concatenate(
                [chosen, np.array([(t, moment) for t in added], np.int64).reshape(-1, 2)]
            )
            after = expand(self.graph, evictions)
            if after.feasible:
                yield evictions, after
            grown = [
                t
                for t in sorted(_alive(after, moment) - before)
                if self.graph.evictable[t] and t not in added
            ]
            if not grown or len(added) + len(grown) > _CHAIN:
                return
            added += grown


def _excess(e: Expansion, target: int) -> float:
    over = e.live - target
    return float(over[over > 0].sum())


def _alive(e: Expansion, moment: int) -> set[int]:
    over = (e.seg_start < moment) & (moment < e.seg_end)
    return set(e.seg_tensor[over].tolist())
