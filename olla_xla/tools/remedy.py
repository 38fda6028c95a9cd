"""Where an order saves next to nothing: what else would, with figures that were computed."""

from __future__ import annotations

import dataclasses

from olla_xla.errors import OllaError
from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.memory_view import memory_view
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.planner import plan_module
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan

__all__ = ["Remedy", "remedy"]

_LITTLE = 0.1
"""Part of XLA's total below which what an order saves is little, and other remedies are tried."""

_OVERHEAD = 0.2
"""What is allowed for recomputation when it is tried: a fifth of the step's predicted time."""

_SECONDS = 10.0
"""Most that trying it may take."""

_WORTH_WHILE = 0.05
"""Part of the total from which on a remedy is one."""


_STATE = f"{Category.PARAMETERS} and {Category.OPTIMIZER}"


@dataclasses.dataclass(frozen=True)
class Remedy:
    """What recomputation would come to, beside a plan without it.

    Attributes:
      what: what most of the memory at the peak is used for. what_bytes: of it.
      is_state: whether that is what the step's arguments hold, which nothing makes again.
      total_bytes: of the plan as it is.
      max_overhead: what was allowed: a part of the step's predicted time.
      bytes: the predicted total with it. overhead: the predicted time that it adds, as a part.
    """

    what: str
    what_bytes: int
    is_state: bool
    total_bytes: int
    max_overhead: float
    bytes: int
    overhead: float

    @property
    def helps(self) -> bool:
        """Whether it saves a twentieth or more."""
        return self.bytes <= (1 - _WORTH_WHILE) * self.total_bytes


def remedy(
    module: bytes, planned: bytes, plan: Plan, options: PlanOptions, device_kind: str = ""
) -> Remedy | None:
    """Tries recomputation where a plan without it saves little.

    Args:
      module: as XLA scheduled it, serialized. planned: the same with the plan, or `module`.
      plan: the plan. options: that it was made with. device_kind: as for `plan_module`.

    Returns:
      None where the plan saves much, where it recomputes already, or where the trial fails.
    """
    total = plan.predicted_bytes if plan.assigned_bytes is None else plan.assigned_bytes
    if options.recomputes or total < (1 - _LITTLE) * plan.xla_bytes:
        return None
    seconds = min(options.time_limit or _SECONDS, _SECONDS)
    asked = dataclasses.replace(options, max_overhead=_OVERHEAD, time_limit=seconds)
    try:
        found = plan_module(module, asked, target=plan.target, device_kind=device_kind)
    except OllaError:
        return None
    view = memory_view(PlannedModule(scheduled_module(planned), plan.target), "planned")
    sums = {str(category): size for category, size in view.by_category().items()}
    sums[_STATE] = sums.pop(Category.PARAMETERS, 0) + sums.pop(Category.OPTIMIZER, 0)
    what = max(sums, key=lambda name: sums[name])
    return Remedy(
        what=what,
        what_bytes=sums[what],
        is_state=what in (_STATE, Category.BATCH, Category.ARGUMENTS),
        total_bytes=total,
        max_overhead=_OVERHEAD,
        bytes=found.predicted_bytes,
        overhead=found.overhead,
    )
