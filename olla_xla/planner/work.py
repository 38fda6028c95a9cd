"""One computation while it is planned: its graph, the orders met so far, and the answer."""

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
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.lower import LoweredComputation
from olla_xla.memory.module_state import PlannedModule
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.proof import Proof
from olla_xla.problem.stop_reason import StopReason


@dataclasses.dataclass(frozen=True)
class Solved:
    """The result of planning one computation: its order, peak and bound, in bytes.

    Attributes (the others are as in `Plan`):
      module: the module with the order, its peak and its bound in it; rewritten if there are
        aliases. graph: of the computation in that module. order: of the graph's operators.
      aliases: fusion name -> results bound to operands.
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
    """One computation of a module with its graph and candidate orders, which have scores."""

    def __init__(self, planned: PlannedModule, lowered: LoweredComputation) -> None:
        self.planned = planned
        self.lowered = lowered
        self.graph = lowered.graph
        self.arrays = GraphArrays.of(lowered.graph)
        self.starts: dict[str, NDArray[np.int64]] = {}
        self.scores: dict[str, tuple[int, int]] = {}
        """By name: (predicted total of the module, lifetime peak)."""
        self._totals: dict[bytes, int] = {}
        """Digest of an order -> predicted total; callees' orders do not change meanwhile."""

    @property
    def is_entry(self) -> bool:
        """Whether it is the module's entry computation."""
        return self.lowered.computation is self.planned.module.entry

    def add(self, orders: Mapping[str, NDArray[np.int64]]) -> None:
        """Adds orders (by name) and their scores; an order that breaks an edge is repaired."""
        for name, order in orders.items():
            order = self._legal(order)
            total = self.total(order)
            self.starts[name] = order
            self.scores[name] = (total, peak_bytes(self.arrays, order))

    def _legal(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """The order itself, or the legal one that follows it most closely."""
        g = self.arrays
        steps = g.positions(order)
        before = np.repeat(np.arange(g.n), np.diff(g.succ_ptr))
        if (steps[before] < steps[g.succ_idx]).all():
            return order
        return schedule.by_priority(g, steps)

    def total(self, order: NDArray[np.int64]) -> int:
        """The predicted total in bytes of the module with this order of the computation; cached."""
        key = hashlib.blake2b(order.tobytes(), digest_size=16).digest()
        if key not in self._totals:
            self._totals[key] = self.planned.model.simulate(self.whole(order)).total_bytes
        return self._totals[key]

    def whole(
        self, order: Sequence[int] | NDArray[np.int64]
    ) -> dict[Computation, tuple[Instruction, ...]]:
        """Computation -> order, for the whole module, with this computation in `order`."""
        chosen = tuple(self.lowered.instructions[k] for k in order)
        return {**self.planned.orders, self.lowered.computation: chosen}

    def named(self, names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        """{"xla_memory": order} of another scheduler; {} if `names` are not these instructions.

        That scheduler does not know the edges that are added here (collectives, callbacks,
        bindings), so its order is made legal.
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
        """Enters the order `name` with its peak and bound in the module; returns it as a Solved."""
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
