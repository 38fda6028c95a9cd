"""What is tried after a first plan: one that meets the budget, and one where XLA recomputes."""

from __future__ import annotations

import dataclasses
import logging

import jax

from hlo.module import module_from_bytes
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.compile.captured import Captured
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.outcomes import NO_GAIN, Outcome, chosen
from olla_xla.compile.session import planned_within
from olla_xla.errors import BudgetError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.remat.cost.path import path_seconds
from olla_xla.remat.cost.roofline import CostModel

_logger = logging.getLogger("olla_xla")

_BUDGET_TRIES = 3  # plans for a budget, each corrected by the error of the one before


def fitted(
    compiles: Compiles, options: PlanOptions, captured: Captured, outcome: Outcome
) -> Outcome:
    """Plans again, at most twice, while XLA assigns more bytes to the plan's executable than the
    memory budget and options allow recomputation; returns the last outcome. Raises BudgetError.
    """
    budget = options.budget_bytes
    for _ in range(_BUDGET_TRIES - 1):
        plan = outcome.plan
        if budget is None or plan is None or not outcome.planned or not options.recomputes:
            break
        excess = assigned_bytes(outcome.compiled) - budget
        if excess <= 0:
            break
        less = min(plan.predicted_bytes - 1, budget) - excess
        attempt = dataclasses.replace(options, memory_budget=max(less, 1))
        plan = planned_within(compiles.name, captured, options, attempt)
        outcome = chosen(compiles, plan, compiles.apply(plan), captured)
    return outcome


def quiet(
    compiles: Compiles, options: PlanOptions, captured: Captured, outcome: Outcome
) -> Outcome:
    """Replaces an executable in which XLA's own rematerialization recomputes instructions.
    The new one takes no more bytes: XLA's order without that pass, or a plan that takes no more
    time. Where there is neither, the time is logged. Returns the outcome, unchanged if XLA
    recomputes nothing or nothing better is found.
    """
    plan = outcome.plan
    if plan is None or not compiles.may_run_again(captured, outcome.compiled):
        return outcome
    if not (again := compiles.ran_again(outcome.compiled, plan)):
        return outcome
    most, total = assigned_bytes(outcome.compiled), plan.xla_predicted_bytes
    if total <= most and not compiles.too_large(outcome.compiled, total):
        own = compiles.own_quiet()
        if own is not None and (total := assigned_bytes(own)) <= most:
            plan = dataclasses.replace(
                plan, xla_bytes=total, assigned_bytes=total, without_rematerialization=True
            )
            return dataclasses.replace(outcome, compiled=own, plan=plan)
    if outcome.reason == NO_GAIN and options.method == "search" and options.max_overhead != 0:
        other = _cheaper(compiles, options, captured, outcome, plan)
        if other is not None:
            return other
    more = f"; else the step takes {(total - most) / 2**20:,.1f} MB more" if total > most else ""
    _logger.info("%s: %s%s", plan.module, again, more)
    return outcome


def _cheaper(
    compiles: Compiles, options: PlanOptions, captured: Captured, outcome: Outcome, plan: Plan
) -> Outcome | None:
    """Compiles a plan that takes no more bytes and predicted time than XLA's own executable, that
    of `outcome`, in which XLA recomputes instructions and which `compiles` then keeps as its own;
    None if none is found. `plan`: describes XLA's own order.
    """
    own, budget = outcome.compiled, assigned_bytes(outcome.compiled)
    compiles.note_own(own)
    cost = compiles.cost(plan)
    seconds = _run_seconds(own, cost)
    added = seconds / plan.xla_path_seconds - 1 if plan.xla_path_seconds else 0
    if added <= 0:
        return None
    attempt = dataclasses.replace(options, memory_budget=budget, max_overhead=added)
    try:
        plan = planned_within(compiles.name, captured, attempt, attempt)
    except BudgetError:
        return None
    if plan.path_seconds > seconds or plan.keeps_xla:
        return None
    cheaper = chosen(compiles, plan, compiles.apply(plan), captured)
    if not cheaper.planned or _run_seconds(cheaper.compiled, cost) > seconds:
        return None
    return cheaper


def _run_seconds(compiled: jax.stages.Compiled, cost: CostModel) -> float:
    return path_seconds(module_from_bytes(final_module(compiled)), cost)
