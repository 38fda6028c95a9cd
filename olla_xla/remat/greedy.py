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
        """The peak, time and bytes moved that follow from these evictions."""
        e = expand(self.graph, evictions)
        return Point(e.peak, e.seconds, e.moved, evictions)

    def reduce(self, start: NDArray[np.int64], target: int, seconds: float = np.inf) -> Point:
        """Adds evictions greedily until the lifetime peak is at most `target`, or none lowers it.

        Args:
          start: int64 [k, 2], evictions (tensor, key) to begin with. target: bytes.
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
        """Returns evictions without those, expensive ones first, that the target peak can spare."""
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
        """Evicts, at the highest moment, what lowers the excess over `target` most per added
        second. Returns (all evictions, their Expansion); None if nothing lowers it.
        """
        moment = int(now.keys[now.live.argmax()])
        excess = _excess(now, target)
        waiting = sorted(self._across(now, moment), key=lambda t: (-self._ratios.get(t, np.inf), t))
        best: tuple[float, NDArray[np.int64], Expansion] | None = None
        for t in waiting:
            if best is not None and best[0] >= _NEARLY * self._ratios.get(t, np.inf):
                break
            found = None
            for evictions, after in self._chains(chosen, now, t, waiting, moment):
                gain = excess - _excess(after, target)
                ratio = gain / max(after.seconds - now.seconds, _LEAST_SECONDS)
                if ratio > 0 and (found is None or ratio > found[0]):
                    found = (ratio, evictions, after)
            self._ratios[t] = found[0] if found else 0.0
            if found and (best is None or found[0] > best[0]):
                best = found
        return None if best is None else best[1:]

    def _across(self, now: Expansion, moment: int) -> list[int]:
        """Tensors that live across a moment and may be evicted there, without the smallest."""
        g = self.graph
        over = (now.seg_start < moment) & (moment < now.seg_end)
        tensors = np.unique(now.seg_tensor[over])
        large = g.arrays.bytes[tensors] >= _SMALL * now.peak
        return tensors[large & g.evictable[tensors]].tolist()

    def _chains(
        self, chosen: NDArray[np.int64], now: Expansion, tensor: int, across: list[int], moment: int
    ) -> Iterator[tuple[NDArray[np.int64], Expansion]]:
        """Yields what `_chain` yields for a tensor, then for its operator's results in `across`."""
        yield from self._chain(chosen, now, [tensor], moment)
        g = self.graph.arrays
        v = g.source[tensor]
        results = [t for t in g.out_idx[g.out_ptr[v] : g.out_ptr[v + 1]].tolist() if t in across]
        if len(results) > 1:
            yield from self._chain(chosen, now, results, moment)

    def _chain(
        self, chosen: NDArray[np.int64], now: Expansion, added: list[int], moment: int
    ) -> Iterator[tuple[NDArray[np.int64], Expansion]]:
        """Yields (evictions, Expansion) if feasible: `chosen` with the tensors `added` at `moment`,
        then also with the operands that this would keep alive there, and so on. Changes `added`.
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
