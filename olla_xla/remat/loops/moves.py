"""Loops without what moves arrays for them: their slices are taken from where the arrays were.

What is transposed before a loop, so that each of its turns finds its slice in one piece, is held as
long as the loop runs, beside what it was made of. A slice is the same bytes wherever it is taken.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from hlo.module import HloError, Module, module_from_bytes
from hlo.rewrite.edit import Edit
from hlo.rewrite.sinkable import Sink, sinks
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import CheckError, ModuleFormatError
from olla_xla.memory.kernels import Pattern
from olla_xla.memory.module_state import PlannedModule
from olla_xla.problem import refusals
from olla_xla.problem.plan import Plan, PlanStatus
from olla_xla.remat.cost.roofline import CostModel, module_work

__all__ = ["Sunk", "without_moves"]


@dataclasses.dataclass(frozen=True, eq=False)
class Sunk:
    """A module without what moves arrays for loops alone.

    Attributes:
      names: of what is gone. data: the module. before: as it was.
      total: predicted bytes of it in XLA's order, as it was.
      kernels: patterns of its kernels, as they were. seconds, moved: predicted time of a step and
        bytes moved, as they were; less_seconds, less_moved: by how much less they are.
    """

    names: tuple[str, ...]
    data: bytes
    before: Module
    total: int
    kernels: Mapping[str, Pattern]
    seconds: float
    moved: int
    less_seconds: float
    less_moved: int

    def plan(self, plan: Plan, xla_bytes: int | None, seconds: float) -> Plan:
        """A plan of the module as one of it as it was.

        Args:
          plan: of the module. xla_bytes: XLA's own total, if known. seconds: of all planning.
        """
        status = PlanStatus.FEASIBLE if plan.status is PlanStatus.XLA else plan.status
        return dataclasses.replace(
            plan,
            fingerprint=self.before.fingerprint,
            sunk=self.names,
            xla_bytes=self.total if xla_bytes is None else xla_bytes,
            xla_predicted_bytes=self.total,
            step_seconds=self.seconds,
            added_seconds=plan.added_seconds - self.less_seconds,
            moved_bytes=self.moved,
            added_moved_bytes=plan.added_moved_bytes - self.less_moved,
            source=f"moves+{plan.source}",
            status=status,
            seconds=seconds,
        )


def without_moves(module: bytes, target: str, cost: CostModel) -> Sunk | None:
    """Takes out what moves arrays for loops, if that takes less memory and no more time.

    Args:
      module: serialized, scheduled module, without optimization barriers. target: "cpu" or "cuda".
      cost: prices operators.

    Raises:
      ModuleFormatError: it is none.
    """
    try:
        found = sinks(module_from_bytes(module), target)
    except HloError as error:
        raise ModuleFormatError(str(error)) from error
    if not found:
        return None
    planned = PlannedModule(module, target)
    names = tuple(sink.move.name for sink in found)
    sunk = _without(planned, module, names, cost)
    if sunk is None:
        own = cost.step_seconds(planned.module)
        kept = tuple(
            sink.move.name
            for sink in found
            if sink.in_order or _seconds(module, sink, target, cost) <= own
        )
        if kept and kept != names:
            sunk = _without(planned, module, kept, cost)
    return sunk


def _seconds(module: bytes, sink: Sink, target: str, cost: CostModel) -> float:
    """Predicted time of a module without one thing that moves an array."""
    try:
        data = Edit(module).sink((sink.move.name,), target).to_bytes()
    except HloError as error:
        refusals.note("a module without what moves an array for loops", error)
        return math.inf
    return cost.step_seconds(module_from_bytes(data))


def _without(
    planned: PlannedModule, module: bytes, names: tuple[str, ...], cost: CostModel
) -> Sunk | None:
    """A module without some of what moves arrays, if that is better in memory and no slower."""
    target = planned.target
    try:
        data = Edit(module).sink(names, target).to_bytes()
        after = PlannedModule(data, target)
        total, kernels = planned.own(every=True)
        times = [cost.step_seconds(view.module) for view in (planned, after)]
        if after.simulate().total_bytes >= total or times[1] > times[0]:
            return None
        check_rewrite(module, data, target, loops=True)
        check_executable(data, target)
    except (HloError, CheckError) as error:
        refusals.note("a module without what moves arrays for loops", error)
        return None
    moved = [module_work(view.module, target).bytes for view in (planned, after)]
    less = times[0] - times[1], moved[0] - moved[1]
    return Sunk(names, data, planned.module, total, kernels, times[0], moved[0], *less)
