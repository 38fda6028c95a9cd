"""A module while passes plan it: what was asked for, what was changed, and the plan so far."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hlo.backend import platform
from hlo.late import late
from hlo.module import Module
from olla_xla.errors import KernelError
from olla_xla.memory import clock
from olla_xla.memory.kernels import Pattern
from olla_xla.memory.module_state import facts_of
from olla_xla.planner.computation import AlternativeOrders, Progress
from olla_xla.planner.effort import Timing
from olla_xla.planner.orders import plan_order
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import LoopRecord, PlanStatus
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import CostModel, module_work

if TYPE_CHECKING:
    import olla_xla.planner.knee as knee
    from hlo.rewrite.clones import Clone
    from olla_xla.remat.loops.moves import Spared
    from olla_xla.remat.loops.residual_choices import ResidualChoices
else:
    knee = late("olla_xla.planner.knee")

_logger = logging.getLogger("olla_xla")

WORTH = 0.999
"""Part of the total that a plan which takes more time must stay below, if there is no budget."""


@dataclasses.dataclass(frozen=True, eq=False)
class PlanRequest:
    """The arguments of `plan_module`, by their names, and when planning began.

    Attributes:
      own: the module as XLA scheduled it, without optimization barriers.
      cost: prices operators on the device. started: when planning began, on `memory.clock`.
    """

    own: Module
    options: PlanOptions
    target: str
    cost: CostModel
    started: float
    xla_bytes: int | None = None
    alternative_orders: AlternativeOrders | None = None
    progress: Progress | None = None
    schedule_seconds: float | None = None
    device_bytes: int | None = None

    def tell(self, phase: str) -> None:
        """Calls `progress`, if there is one, with the name of the phase that begins."""
        if self.progress is not None:
            self.progress(phase)

    @functools.cached_property
    def own_seconds(self) -> float:
        """Predicted seconds of one run of XLA's own module in XLA's own order."""
        return run_seconds(self.own, self.cost)

    @property
    def elapsed(self) -> float:
        """Seconds since planning began."""
        return clock.now() - self.started

    def limited(self, seconds: float) -> PlanOptions:
        """Returns the options with a time limit of `seconds`; unchanged if they set none."""
        if self.options.time_limit is None:
            return self.options
        return dataclasses.replace(self.options, time_limit=max(seconds, 0.01))


@dataclasses.dataclass(frozen=True, eq=False)
class Edits:
    """All changes of a module by planner passes, other than its order and in-place results.

    Attributes:
      spared: the module without arrays that its loops need not have; None: there are none.
      loops: scan residuals (arrays stored by forward loops) that are recomputed: `Plan.loops`.
      clones: instructions that are computed again, in execution order.
      added_seconds: predicted time that `loops`, `clones` and transfers that overlap with less add;
        exposed_seconds: the part of these transfers. added_moved_bytes: bytes moved to and from
        memory, likewise. What `spared` saves is not in them.
      least_stack_bytes, least_added_seconds: as in `Plan`.
      sources: names of the passes, for `Plan.source`.
    """

    spared: Spared | None = None
    loops: tuple[LoopRecord, ...] = ()
    clones: tuple[Clone, ...] = ()
    added_seconds: float = 0.0
    exposed_seconds: float = 0.0
    added_moved_bytes: int = 0
    least_stack_bytes: int = 0
    least_added_seconds: float = 0.0
    sources: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleState:
    """A module and the results of the planner's passes so far; a pass returns a new state.

    Attributes:
      request: what was asked for. module: its module, with the edits. edits: changes by passes.
      kernels: kernel name -> which of its arrays must share memory (memory.kernels); None: as in
        the order that `module` comes with.
      choices: of scan residuals to recompute, for the module without `edits.loops` and
        `edits.clones`; None before they are known.
      plan: of `module`; None before it has an order.
      allowance: predicted seconds that recomputation may add in all; None: any.
      other: a state of less predicted time and a larger total, whose time left for recomputation
        may make up for that; None: there is none.
      met: (predicted seconds added, predicted bytes) of each recomputation that was tried.
      entry: graph and order of the entry computation, once it has an order.
      limit: seconds since planning began in which recomputation is looked for; None: not asked for.
    """

    request: PlanRequest
    module: Module
    edits: Edits = dataclasses.field(default_factory=Edits)
    kernels: Mapping[str, Pattern] | None = None
    choices: ResidualChoices | None = None
    plan: Plan | None = None
    allowance: float | None = None
    limit: float | None = None
    other: ModuleState | None = None
    met: tuple[tuple[float, int], ...] = ()
    entry: tuple[TensorGraph, NDArray[np.int64]] | None = None

    @property
    def ordered(self) -> Plan:
        """The plan in the state, which an earlier pass must have made."""
        assert self.plan is not None
        return self.plan

    @property
    def before_bytes(self) -> int:
        """Predicted bytes of the module without recomputation, in the order that it came with."""
        spared = self.edits.spared
        return facts_of(spared.module if spared else self.request.own, self.request.target).total

    @property
    def seconds_left(self) -> float:
        """Seconds left for recomputation, at least 0.1, so that each pass finds a first answer."""
        assert self.limit is not None
        return max(self.limit - self.request.elapsed, 0.1)

    @property
    def least_worth(self) -> int:
        """Predicted bytes that a plan with more added time must stay below to replace this plan."""
        total = self.ordered.predicted_bytes
        return total if self.request.options.budget_bytes is not None else int(total * WORTH)

    @property
    def allowance_left(self) -> float:
        """Predicted seconds that recomputation may still add; infinite without an allowance."""
        return math.inf if self.allowance is None else self.allowance - self.edits.added_seconds

    @functools.cached_property
    def run_seconds(self) -> float:
        """Predicted seconds of a run in the plan's order, if there is one (else op after op)."""
        order, request = None if self.plan is None else self.plan.order, self.request
        if self.module is request.own and order in (None, request.own.order):
            return request.own_seconds
        return run_seconds(self.module, request.cost, order)

    @property
    def path_seconds(self) -> float:
        """Predicted seconds of a run in the plan's order on a device's streams; 0 on a CPU."""
        return self.run_seconds if platform(self.request.target).runs_beside else 0.0

    @property
    def xla_path_seconds(self) -> float:
        """Predicted seconds of a run in XLA's own order on a device's streams; 0 on a CPU."""
        request = self.request
        return request.own_seconds if platform(request.target).runs_beside else 0.0

    def ordered_anew(
        self, module: Module, kernels: Mapping[str, Pattern], seconds: float
    ) -> Plan | None:
        """Plans `module`, with other edits, in at most `seconds` of search; None if kernels' arrays
        cannot share memory as they must by `kernels`: kernel name -> which of them (its pattern).
        """
        request = self.request
        try:
            return plan_order(
                module,
                request.limited(seconds),
                request.target,
                progress=request.progress,
                timing=Timing(request.schedule_seconds, seconds),
                kept=kernels,
            )
        except KernelError as error:
            _logger.info("one choice of values to recompute cannot be used: %s", error)
            return None

    def finished(self) -> Plan:
        """Returns the final Plan for the module as XLA scheduled it, with all edits' cost."""
        plan, edits, request = self.ordered, self.edits, self.request
        xla, spared = facts_of(request.own, request.target).total, edits.spared
        step_seconds, moved_bytes = 0.0, 0
        less, less_moved = (spared.less_seconds, spared.less_moved) if spared else (0.0, 0)
        added, added_moved = edits.added_seconds - less, edits.added_moved_bytes - less_moved
        if edits.sources or self.limit is not None:
            step_seconds = request.own_seconds
            moved_bytes = module_work(request.own, request.target).bytes
        met = [(s - less, size) for s, size in self.met] + [(added, plan.predicted_bytes)]
        # XLA's order of a changed module is no order of XLA's own.
        changed = edits.sources and plan.status is PlanStatus.XLA
        status = PlanStatus.FEASIBLE if changed else plan.status
        return dataclasses.replace(
            plan,
            fingerprint=request.own.fingerprint,
            sunk=spared.names if spared else (),
            joined=spared.joined if spared else (),
            loops=edits.loops,
            clones=tuple((c.name, c.original, c.operands, c.readers) for c in edits.clones),
            xla_bytes=xla if request.xla_bytes is None else request.xla_bytes,
            xla_predicted_bytes=xla,
            step_seconds=step_seconds,
            added_seconds=added,
            least_added_seconds=edits.least_added_seconds,
            exposed_seconds=edits.exposed_seconds,
            path_seconds=self.path_seconds,
            xla_path_seconds=self.xla_path_seconds,
            least_stack_bytes=edits.least_stack_bytes,
            moved_bytes=moved_bytes,
            added_moved_bytes=added_moved,
            status=status,
            front=knee.front([(s, size) for s, size in met if s <= added]) if self.met else (),
            source="+".join((*edits.sources, plan.source)),
            time_limit=plan.time_limit if self.limit is None else self.limit,
        )
