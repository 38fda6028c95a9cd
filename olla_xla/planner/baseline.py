"""A computation in XLA's order: its peak and bound before any search."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from hlo.module import Computation
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.module_state import PlannedModule
from olla_xla.planner.bounds import forced_live
from olla_xla.planner.work import Candidates, Solved
from olla_xla.problem.stop_reason import StopReason


@dataclasses.dataclass(frozen=True)
class BaselineEstimate:
    """The lifetime peak and lower bound of a computation in XLA's order, before any search.

    Attributes:
      work: its graph, with XLA's order. peak: lifetime peak of that, in bytes.
      bound: no order has a smaller one, in bytes.
      charged: computation -> its peak in `planned.peaks` when this was made.
    """

    work: Candidates
    peak: int
    bound: int
    charged: Mapping[Computation, int]

    @staticmethod
    def at(planned: PlannedModule, computation: Computation) -> BaselineEstimate:
        """Estimates a computation; sets its peak and bound in `planned`, which has its callees'."""
        work = Candidates(planned, planned.lowered(computation))
        charged = dict(planned.peaks)
        peak = peak_bytes(work.arrays, np.arange(work.arrays.n))
        bound = min(forced_live(work), peak)
        planned.peaks[computation] = planned.leasts[computation] = peak
        planned.bounds[computation] = bound
        return BaselineEstimate(work, peak, bound, charged)

    def is_current(self, planned: PlannedModule) -> bool:
        """Whether `planned` is the estimate's own module, and its callees' peaks are the same."""
        return planned is self.work.planned and self.is_charged(planned)

    def is_charged(self, planned: PlannedModule) -> bool:
        """Whether the callees' peaks in `planned` are the ones that the estimate used."""
        called = {c for i in self.work.lowered.instructions for c in i.called_control}
        return all(planned.peaks[planned.computations[c.name]] == self.charged[c] for c in called)


def unchanged(estimate: BaselineEstimate, total: int) -> Solved:
    """A solution that keeps XLA's order; `total`: the module's predicted bytes."""
    work = estimate.work
    work.starts["xla"] = np.arange(work.arrays.n)
    work.scores["xla"] = (total, estimate.peak)
    return work.solved(
        "xla",
        {},
        least=estimate.peak,
        bound=estimate.bound,
        steps=0,
        stopped_by=StopReason.NO_GAIN,
        candidates=dict(work.scores),
    )
