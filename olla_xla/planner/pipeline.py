"""How a module is planned, from top to bottom: one state, handed from pass to pass.

XLA's own order always competes, so that no plan's predicted total is above it. What costs nothing
comes first (`rewriting.free_edits`), then the order itself (`order`). Where the options have a
memory budget that no order meets, or allow an overhead, what forward loops store for backward ones
is rematerialised (`rewriting`), then instructions of the entry computation (`rematerialise`), then
transfers may hide less (`relax_overlap`). Each pass compares predicted totals, and stops by itself
where its share of the time is spent or nothing is left to gain. Passes that change instructions are
loaded where a module has loops, or the options allow recomputation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hlo.backend import platform
from hlo.late import late
from olla_xla.errors import BudgetError, KernelError
from olla_xla.memory import clock
from olla_xla.memory.module_state import scheduled_module
from olla_xla.planner.computation import AlternativeOrders, Progress
from olla_xla.planner.effort import recomputation_limit
from olla_xla.planner.passes import order, relax_overlap, rewriting
from olla_xla.planner.state import ModuleState, PlanRequest
from olla_xla.problem import refusals
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import HINTED_OVERHEAD, LONGEST_PATH
from olla_xla.problem.summary import of_refusals
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel

if TYPE_CHECKING:
    import olla_xla.planner.estimate as estimate
else:
    estimate = late("olla_xla.planner.estimate")

_logger = logging.getLogger("olla_xla")

_LITTLE, _LITTLE_BYTES = 0.1, 2**20
"""An order that saves a smaller part is told with what recomputation may save, where that is more
than this part of the total and more bytes."""

_MOST = 0.5  # part of the step's predicted time up to which the knee is looked for


def plan_module(
    module: bytes,
    options: PlanOptions,
    *,
    target: str,
    xla_bytes: int | None = None,
    alternative_orders: AlternativeOrders | None = None,
    progress: Progress | None = None,
    schedule_seconds: float | None = None,
    device_kind: str = "",
    device_bytes: int | None = None,
) -> Plan:
    """Plans a scheduled module: order, results that overwrite operands, and what is computed again.

    Args:
      module: serialized HloModuleProto as XLA scheduled it.
      options: limits and seed. target: "cpu", "cuda" or "tpu".
      xla_bytes: XLA's own assigned total when it is known, for the report.
      alternative_orders: gives orders of another scheduler (computation name -> instruction names);
        called if the total is far above the bound, and as long as XLA took to its schedule is left.
      progress: called with one line at each phase and improvement.
      schedule_seconds: what XLA took to get to its schedule. Without a limit in the options, the
        search takes a time in proportion to it; where it is None, 20 s at most.
      device_kind: JAX's name of the GPU or TPU, for predicted times; "": an H100 or a TPU v5e.
      device_bytes: a device's memory. Where the plan would take more, transfers may overlap with
        less than in XLA's order, if it fits then and no overhead is set. None: any.

    Returns:
      A plan, checked independently, whose predicted total is never above that of XLA's order.

    Raises:
      BudgetError: no plan that was found meets the memory budget.
      KernelError: no order has kernels' arrays share memory as they must.
      ModuleFormatError: `module` cannot be read or has no schedule.
      CheckError: the check rejected the result (a bug).
    """
    cost = CostModel(device(target, device_kind), target)  # measured once on a CPU; no planning
    began = clock.wall()
    own_limits = options.time_limit is None  # which other programs' load is not to shorten
    with (
        clock.by_processor() if own_limits else contextlib.nullcontext(),
        refusals.counted() as tally,
    ):
        started = clock.now()
        request = PlanRequest(
            scheduled_module(module), options, target, cost, started, xla_bytes,
            alternative_orders, progress, schedule_seconds, device_bytes,
        )  # fmt: skip
        start = ModuleState(request, request.own)
        request = dataclasses.replace(request, options=options.in_need(start.before_bytes))
        state = _ordered(dataclasses.replace(start, request=request))
        hint = 0
        if _asks_for_recomputation(state):
            state = _recomputed(state)
        elif _leaves_much(state):
            request.tell("estimating what recomputation would save")
            hint = estimate.with_recomputation(state, HINTED_OVERHEAD)
        if device_bytes is not None:
            state = relax_overlap.to_fit(state)
        plan = state.finished()
    plan = dataclasses.replace(
        plan,
        seconds=clock.wall() - began,
        proposed=tally.proposed,
        refused=len(tally.errors),
        recomputed_bytes=hint,
    )
    if progress is not None and plan.refused:
        progress(of_refusals(plan.refused, plan.proposed))
    return plan


def _leaves_much(state: ModuleState) -> bool:
    """Whether the order saves little, and recomputation, not asked for, might save more."""
    plan, request = state.ordered, state.request
    kept = sum(p.shape.bytes for p in request.own.entry.parameters)
    left = plan.predicted_bytes - kept
    return (
        request.options.method == "search"
        and request.options.max_overhead is None
        and plan.predicted_bytes > (1 - _LITTLE) * plan.xla_predicted_bytes
        and left > max(_LITTLE * plan.predicted_bytes, _LITTLE_BYTES)
        and request.elapsed < (request.options.time_limit or math.inf)
    )


def _ordered(start: ModuleState, *, joins: bool = True) -> ModuleState:
    """Finds an order for the module with as many free edits as let kernels' arrays share memory as
    they must. Free edits drop or join arrays of loops and cost no time; without `joins` none are
    joined. But on a CPU, an edit is not free if a run is predicted to take longer. Where even the
    order alone makes it longer, that order is returned, and the caller of the planner keeps XLA's
    own. Raises KernelError if no order lets kernels' arrays share memory so.
    """
    refused = longer = None
    for state in _free_edits(start, joins):
        what = "+".join(state.edits.sources) or "no edit"
        try:
            planned = order.run(state)
        except KernelError as error:
            _logger.info("with %s: %s", what, error)
            refused = error
            continue
        if state.edits.sources and planned.ordered.predicted_bytes > start.before_bytes:
            # What lay in host memory is computed again, and no order makes up for what that takes.
            _logger.info("with %s the step takes more memory than in XLA's own order", what)
            continue
        # Work that overlapped with other work may have been replaced by work that does not.
        spared = planned.edits.spared
        allowed = -min(spared.less_seconds, 0.0) if spared else 0.0
        if planned.path_seconds <= LONGEST_PATH * planned.xla_path_seconds + allowed:
            return planned
        slower = planned.path_seconds / planned.xla_path_seconds - 1
        _logger.info("with %s the predicted time is %.1f %% above XLA's order", what, 100 * slower)
        longer = planned
    if longer is None:
        assert refused is not None
        raise refused
    return longer


def _free_edits(start: ModuleState, joins: bool) -> Iterable[ModuleState]:
    """States with edits that cost no time (arrays of loops dropped, joined), from most to none."""
    options = start.request.options
    if not options.loops or not (options.recomputes or start.module.may_spare):
        return [start]
    return rewriting.free_edits(start, joins=joins)


def _recomputed(state: ModuleState) -> ModuleState:
    """Returns a state with values recomputed, for the memory budget or within the allowed time.
    Arrays of loops that a free edit made one cannot be dropped, so the module without such edits is
    planned too, and the better state returned. Raises as `rewriting.recomputed`.
    """
    request, before = state.request, state.edits.spared
    if before is None or not before.joined:
        return rewriting.recomputed(_with_allowance(state))
    tried, missed = [], None
    for way in (state, _ordered(ModuleState(request, request.own), joins=False)):
        try:
            tried.append(rewriting.recomputed(_with_allowance(way)))
        except BudgetError as error:
            missed = error
    if missed is not None and not tried:
        raise missed
    enough = request.options.budget_bytes or 0
    return min(tried, key=lambda s: (max(s.ordered.predicted_bytes, enough), s.edits.added_seconds))


def _asks_for_recomputation(state: ModuleState) -> bool:
    """Whether the options allow recomputation, and the order does not reach what they ask for.
    Raises BudgetError where it misses the budget and they allow none.
    """
    options, least = state.request.options, state.ordered.predicted_bytes
    if state.request.xla_bytes is not None:
        least = min(least, state.request.xla_bytes)
    budget = options.budget_bytes
    if not options.recomputes:
        if budget is not None and least > budget:
            raise BudgetError(budget, least, "max_overhead=0 allows no recomputation")
        return False
    return least > 0 and (budget is None or least > budget)  # 0 bytes cannot be lowered


def _with_allowance(state: ModuleState) -> ModuleState:
    """Prepares a state for recomputation: sets `allowance` (seconds that this may add), `limit`
    (until when to look for it) and `met` (added seconds and bytes of the plan so far).
    """
    request, before, allowance = state.request, state.edits.spared, None
    arguments = sum(p.shape.bytes for p in request.own.entry.parameters)
    total = state.ordered.predicted_bytes
    took = request.schedule_seconds
    took = None if took is None else took * platform(request.target).compile_factor
    limit = recomputation_limit(request.options, took, request.elapsed, total, arguments)
    if request.options.max_overhead is not None:
        # A part of the original module's time, plus the time that `spared` arrays have saved.
        most = request.options.max_overhead
        allowance = (_MOST if isinstance(most, str) else most) * request.own_seconds
        allowance += 0.0 if before is None else before.less_seconds
    met = ((state.edits.added_seconds, total),)
    return dataclasses.replace(state, allowance=allowance, limit=limit, met=met)
