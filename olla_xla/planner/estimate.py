"""Estimates quickly how many bytes recomputation could save where an order saves little.

Nothing is searched, written or ordered. Of the tensors that are live at the highest step but not
read there, the cheapest one for its bytes is recomputed, until the added time is spent.
"""

import math

import numpy as np
from numpy.typing import NDArray

from hlo.module import Instruction, Module
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import intervals, live_bytes
from olla_xla.planner.state import ModuleState
from olla_xla.problem.graph import TensorGraph
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.loops.selection import lowest
from olla_xla.remat.purity import recomputable

_SPENT = 0.6
"""Part of the time that the search spends, as it was in 7 steps: clones need memory too."""

_SMALL = 2e-4  # tensors below this part of the peak are left alone
_MOST = 300  # tensors that go, at most: a large module's estimate is to take little time
_DEEP = 12  # instructions on a chain that is computed again, at most


def with_recomputation(state: ModuleState, overhead: float) -> int:
    """Estimates roughly the bytes of a step if values were recomputed; at most those of its plan,
    which `state` must have. `overhead`: time that may be added, as a fraction of the step's.
    """
    plan, cost = state.ordered, state.request.cost
    allowance = overhead * state.request.own_seconds
    least = plan.predicted_bytes
    if state.choices is not None and (choice := lowest(state.choices, allowance)) is not None:
        least = min(least, choice.total)
    if state.entry is None:
        return least
    graph, order = state.entry
    gaps = _Gaps(state.module, graph, order, cost)
    # XLA's total lies between the peaks with arguments' memory used again and not.
    ways = [gaps.live(held=held) for held in (False, True)]
    nearest = min(ways, key=lambda way: abs(int(way[1].max()) - plan.predicted_bytes))
    return min(least, plan.predicted_bytes - gaps.less(*nearest, _SPENT * allowance))


class _Gaps:
    """Estimates how far the entry computation's peak falls if tensors are computed again. A gap is
    the steps between two readers of a tensor, in which its memory can be freed.

    Args:
      module: of the graph. graph: of the entry. order: of its operators. cost: predicts their time.
    """

    def __init__(
        self, module: Module, graph: TensorGraph, order: NDArray[np.int64], cost: CostModel
    ) -> None:
        self._g = g = GraphArrays.of(graph)
        self._position = g.positions(order)
        self._spans = intervals(g, order)
        self._transient = g.transient[order]
        by_name = {i.name: i for i in module.entry.instructions}
        self._instructions = [by_name.get(o.name) for o in graph.operators]
        self._cost = cost
        self._prices: dict[int, float] = {}
        alone = np.bincount(g.buffer, minlength=1)[g.buffer] == 1
        self._may_go = alone & ~g.live_in & ~g.live_out

    def live(self, *, held: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns (int64[m], bytes of each tensor; int64[n], live bytes at each step). If `held`,
        no other tensor may use arguments' memory: it counts at all steps, and tensors in it as 0.
        """
        g = self._g
        size = np.where(np.isin(g.buffer, g.buffer[g.live_in]), 0, g.bytes) if held else g.bytes
        arguments = int(g.bytes[g.live_in].sum()) if held else 0
        live = live_bytes(self._spans[:, 0], self._spans[:, 1], size, g.n)
        return size, live + self._transient + arguments

    def less(self, size: NDArray[np.int64], live: NDArray[np.int64], allowance: float) -> int:
        """Bytes by which the peak falls if tensors are freed between two readers and computed
        again, within `allowance` seconds of added time. `size`: int64 [m], bytes of each tensor;
        `live`: int64 [n], live bytes at each step, changed in place.
        """
        first, spans = int(live.max()), self._spans
        waiting = self._may_go & (size >= _SMALL * first)
        for _ in range(_MOST):
            step = int(live.argmax())
            over = np.flatnonzero(waiting & (spans[:, 0] < step) & (step < spans[:, 1] - 1))
            cheapest = sorted((self._price(t) / int(size[t]), t) for t in over.tolist())
            with_gaps = ((p, t, gap) for p, t in cheapest if (gap := self._gap(t, step)))
            price, t, gap = next(with_gaps, (math.inf, -1, (0, 0)))
            if not price * int(size[t]) <= allowance:
                break
            allowance -= price * int(size[t])
            waiting[t] = False
            live[gap[0] + 1 : gap[1]] -= size[t]
            live[gap[1] - 1] += size[t] + int(sum(size[u] for u in self._gone(t)))
        return first - int(live.max())

    def _gone(self, tensor: int) -> list[int]:
        """Inputs of a tensor's operator that are not live any more at the tensor's last reader."""
        g, k = self._g, self._g.source[tensor]
        read = g.in_idx[g.in_ptr[k] : g.in_ptr[k + 1]].tolist()
        stops = self._spans[:, 1]
        return [u for u in read if not g.live_in[u] and stops[u] < stops[tensor]]

    def _gap(self, tensor: int, step: int) -> tuple[int, int] | None:
        """The steps around `step` at which a tensor is made or read, (last before, first after): in
        between its memory can be freed. None if `step` is one itself, or none follows.
        """
        g = self._g
        sinks = g.sink_idx[g.sink_ptr[tensor] : g.sink_ptr[tensor + 1]]
        at = self._position[sinks]
        before, after = at[at <= step], at[at >= step]
        start = max(int(self._position[g.source[tensor]]), int(before.max(initial=0)))
        stop = int(after.min(initial=g.n))
        return (start, stop) if start < step < stop < g.n else None

    def _price(self, tensor: int, depth: int = 0) -> float:
        """Seconds to compute a tensor again for its last reader, with inputs dead then; inf if that
        is not possible, or takes too long a chain.
        """
        if tensor in self._prices:
            return self._prices[tensor]
        g, k = self._g, int(self._g.source[tensor])
        seconds = 0.0 if g.free[k] else self._seconds(self._instructions[k])
        for u in self._gone(tensor):
            seconds += self._price(u, depth + 1) if depth < _DEEP else math.inf
        self._prices[tensor] = seconds
        return seconds

    def _seconds(self, i: Instruction | None) -> float:
        if i is None or not recomputable(i, self._cost.target):
            return math.inf
        return self._cost.copied_seconds(i)
