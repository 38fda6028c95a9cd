"""Gives every computation an order, and binds results to operands (planner.orders)."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.module_state import facts_of
from olla_xla.planner.effort import LONGEST, Timing
from olla_xla.planner.orders import plan_order
from olla_xla.planner.state import ModuleState
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.options import NOTHING
from olla_xla.problem.plan_parts import PlanStatus

_ORDER_SHARE = 0.4
"""Part of the time limit for an order without recomputation, where that is allowed too."""


def run(state: ModuleState) -> ModuleState:
    """The planner's pass that finds an order for every computation; XLA's own stays if none gains
    enough. Raises KernelError if in no order kernels' arrays share memory as they must.
    """
    request, kernels = state.request, state.kernels
    options, longest = request.options, LONGEST
    if options.recomputes:
        # An order alone costs nothing, so it comes first; recomputation has the rest of the time.
        longest *= _ORDER_SHARE
        options = request.limited((options.time_limit or 0.0) * _ORDER_SHARE)
        if kernels is None:
            kernels = facts_of(state.module, request.target).all_kernels
    request.tell("searching for an order")
    seen: list[tuple[TensorGraph, NDArray[np.int64]]] = []
    by_default = options.is_default and request.schedule_seconds is not None
    least_gain = NOTHING if by_default and not state.edits.sources else 0
    plan = plan_order(
        state.module,
        options,
        request.target,
        progress=request.progress,
        alternative_orders=None if state.edits.sources else request.alternative_orders,
        timing=Timing(request.schedule_seconds, longest, request.started),
        kept=kernels,
        seen=seen,
        least_gain=least_gain,
    )
    if least_gain and plan.source != "xla" and plan.order == state.module.order:
        optimal = plan.peak_bytes <= plan.lower_bound_bytes
        status = PlanStatus.OPTIMAL if optimal else plan.status
        plan = dataclasses.replace(plan, source="xla", status=status)
    plan = dataclasses.replace(plan, xla_predicted_bytes=state.before_bytes)
    return dataclasses.replace(state, plan=plan, kernels=kernels, entry=seen[0])
