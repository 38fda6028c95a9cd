"""One computation while it is planned: its graph, candidate orders, and the one chosen."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

import olla_xla.schedule as schedule
from hlo.module import Computation, Instruction
from hlo.rewrite.aliases import Alias
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.lower import LoweredComputation
from olla_xla.memory.mincut import least_live
from olla_xla.memory.module_state import PlannedModule
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.plan_parts import Proof, StopReason
from olla_xla.schedule.search.run import SearchResult


@dataclasses.dataclass(frozen=True)
class Solved:
    """The result of planning one computation: its order, peak and bound, in bytes.

    Attributes (the others are as in `Plan`):
      module: the module with the order, its peak and its bound in it; rewritten if there are
        aliases. graph: of the computation in that module. order: of the graph's operators.
      aliases: fusion name -> results that are written over operands. least: the least lifetime peak
        of any order that was found, in bytes.
      proof: what a solver proved, if one was used.
    """

    module: PlannedModule
    graph: TensorGraph
    order: NDArray[np.int64]
    aliases: Mapping[str, tuple[Alias, ...]]
    source: str
    peak: int
    least: int
    bound: int
    candidates: Mapping[str, tuple[int, int]]
    steps: int
    stopped_by: StopReason
    proof: Proof | None = None


class Candidates:
    """One computation of a module with its graph and candidate orders, which have scores.

    Attributes:
      planned, lowered: the module and the computation. graph, arrays: of the computation.
      called: the computations that it calls.
      starts: name -> order. scores: name -> (the module's predicted total, lifetime peak).
      peak: lifetime peak in the order of the module's own schedule, in bytes. bound: no order has a
        smaller one. Both are estimated by `at`, with the peaks of callees at that time.
    """

    def __init__(self, planned: PlannedModule, lowered: LoweredComputation) -> None:
        self.planned = planned
        self.lowered = lowered
        self.graph = lowered.graph
        self.arrays = GraphArrays.of(lowered.graph)
        self.called = {c for i in lowered.instructions for c in i.called_control}
        self.starts: dict[str, NDArray[np.int64]] = {}
        self.scores: dict[str, tuple[int, int]] = {}
        self._totals: dict[bytes, int] = {}
        """Digest of an order -> predicted total; callees' orders do not change meanwhile."""
        self._charged = {c: planned.peaks.get(c, 0) for c in self.called}
        self.peak = self.bound = 0

    @staticmethod
    def at(planned: PlannedModule, computation: Computation) -> Candidates:
        """Makes Candidates with a computation's lifetime peak in the module's own schedule and a
        lower bound for all orders, in bytes; writes both to `planned` too.
        """
        work = Candidates(planned, planned.lowered(computation))
        work.peak = peak_bytes(work.arrays, np.arange(work.arrays.n))
        bounded = work._with_callees(planned.bounds)
        work.bound = min(forced_live_bound(bounded)[0], work.peak)
        planned.peaks[computation] = planned.leasts[computation] = work.peak
        planned.bounds[computation] = work.bound
        return work

    def is_charged(self, planned: PlannedModule) -> bool:
        """Whether called computations in `planned` have the lifetime peaks this was made with."""
        return all(
            planned.peaks[planned.computations[c.name]] == p for c, p in self._charged.items()
        )

    def _with_callees(self, peaks: Mapping[Computation, int]) -> GraphArrays:
        """Graph arrays; a call and what it reads or makes take the callee's bytes in `peaks`."""
        if all(peaks[c] == self.planned.peaks[c] for c in self.called):
            return self.arrays
        return GraphArrays.of(self.planned.lowered(self.lowered.computation, peaks).graph)

    def certified(self, found: SearchResult) -> int:
        """Returns a search's lower bound on the lifetime peak, in bytes, lowered so that it holds
        in all orders of the computations that are called.
        """
        bounded = self._with_callees(self.planned.bounds)
        if bounded is self.arrays:
            return found.bound_bytes
        bound = forced_live_bound(bounded)[0]
        if found.cut_at >= 0:
            bound = max(bound, least_live(bounded, found.cut_at).bytes)
        return min(bound, found.least_peak_bytes)

    def least_peak(self, *found: SearchResult) -> int:
        """The least lifetime peak, in bytes, of several searches' orders, and of the first search's
        best order if called computations ran in the orders of their own least peaks.
        """
        least = min(result.least_peak_bytes for result in found)
        relaxed = self._with_callees(self.planned.leasts)
        if relaxed is self.arrays:
            return least
        return min(least, peak_bytes(relaxed, found[0].lifetime_order))

    @property
    def is_entry(self) -> bool:
        """Whether it is the module's entry computation."""
        return self.lowered.computation is self.planned.module.entry

    def add(self, orders: Mapping[str, NDArray[np.int64]]) -> None:
        """Adds orders (by name) and computes their scores; one that breaks an edge is repaired."""
        for name, order in orders.items():
            order = self._legal(order)
            total = self.total(order)
            self.starts[name] = order
            self.scores[name] = (total, peak_bytes(self.arrays, order))

    def _legal(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the order itself if it breaks no edge, else a legal one close to it."""
        g = self.arrays
        steps = g.positions(order)
        before = np.repeat(np.arange(g.n), np.diff(g.succ_ptr))
        if (steps[before] < steps[g.succ_idx]).all():
            return order
        return schedule.by_priority(g, steps)

    def total(self, order: NDArray[np.int64]) -> int:
        """Returns predicted bytes of the module with this order of the computation; cached."""
        key = hashlib.blake2b(order.tobytes(), digest_size=16).digest()
        if key not in self._totals:
            self._totals[key] = self.planned.model.simulate(self.whole(order)).total_bytes
        return self._totals[key]

    def whole(
        self, order: Sequence[int] | NDArray[np.int64]
    ) -> dict[Computation, tuple[Instruction, ...]]:
        """Returns computation -> instructions in order, of the module; this one's in `order`."""
        chosen = tuple(self.lowered.instructions[k] for k in order)
        return {**self.planned.orders, self.lowered.computation: chosen}

    def named(self, names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        """Returns {"xla_memory": order} for another scheduler's instruction `names` in order; {} if
        they are not this computation's. That scheduler does not know the edges that are added here
        (for collectives, callbacks, in-place results), so its order is made legal.
        """
        step = {i: k for k, i in enumerate(self.lowered.instructions)}
        own = {i.name: i for i in step}
        if not own.keys() >= set(names) or not names:
            return {}
        whole = self.planned.translated([own[n] for n in names], self.lowered.computation)
        if len(whole) != len(own):
            return {}
        return {"xla_memory": self._legal(np.array([step[i] for i in whole]))}

    def solved(self, name: str, aliases: Mapping[str, tuple[Alias, ...]], **facts) -> Solved:
        """Chooses the order called `name`: writes it, its lifetime peak and bounds into the module;
        returns a Solved with them, `aliases` and `facts`, its other fields.
        """
        order, peak = self.starts[name], self.scores[name][1]
        computation = self.lowered.computation
        bound = min(facts.pop("bound"), peak)
        self.planned.orders[computation] = self.whole(order)[computation]
        self.planned.peaks[computation] = peak
        least = min(facts.pop("least"), peak)
        self.planned.leasts[computation] = least
        self.planned.bounds[computation] = bound
        return Solved(
            module=self.planned,
            graph=self.graph,
            order=order,
            aliases=aliases,
            source=name,
            peak=peak,
            least=least,
            bound=bound,
            **facts,
        )

    def unchanged(self, total: int) -> Solved:
        """Adds the module's own order as "xla"; returns its `solved`. `total`: predicted bytes."""
        self.starts["xla"] = np.arange(self.arrays.n)
        self.scores["xla"] = (total, self.peak)
        return self.solved(
            "xla",
            {},
            least=self.peak,
            bound=self.bound,
            steps=0,
            stopped_by=StopReason.NO_GAIN,
            candidates=dict(self.scores),
        )
