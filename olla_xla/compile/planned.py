"""Compiles a function with a planned schedule: one compile, inside which the planner runs.
1. Without a stored plan: XLA hands over the scheduled module (stage_compiles.py) and waits while
   the planner runs, then goes on with the planned schedule. The total of XLA's own order is only
   predicted. If XLA assigns the plan another total than predicted, XLA's own order is compiled too,
   and the better one is kept.
2. With a stored plan: the same compile, in which the hook only applies the plan.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import jax

from hlo.backend import platform
from olla_xla.compile import own_places, plan_store, refused, second_tries
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.handlers import raises_of_handlers
from olla_xla.compile.outcomes import NO_GAIN, Outcome, chosen, failed, require_budget, without_gain
from olla_xla.compile.session import PlanningSession
from olla_xla.errors import BudgetError, PlanMismatchError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan

_logger = logging.getLogger("olla_xla")

_LONGEST, _LEAST_PART = 20.0, 0.25
"""Seconds of search for an order for XLA's places after an integer program without a limit; and the
part of a limit that such a search has in any case."""


@raises_of_handlers
def compile_planned(
    lowered: jax.stages.Lowered,
    options: PlanOptions,
    *,
    environment: str,
    store: plan_store.PlanStore | None = None,
    compiler_options: dict[str, Any] | None = None,
    **compile_kwargs: Any,
) -> Outcome:
    """Compiles `lowered` with a planned schedule where that lowers XLA's total bytes.
    Calls of the jitted function that `lowered` came from then run the same executable, unless
    `compiler_options` or other `compile` arguments are given (as in JAX).

    Args:
      lowered: JAX's lowered stage; nothing else may compile it meanwhile.
      options: of the planner: limits, budget, seed.
      environment: part of the key of stored plans: names the devices, their runtime and the
        compiler options of `lowered`.
      store: where plans are kept for reuse; the process's own by default.
      compiler_options: as for `Lowered.compile`; other arguments of it in `compile_kwargs`.

    Raises:
      BudgetError: XLA assigns more than the options' memory budget to the best plan.
      Whatever XLA raises compiling its own schedule. Errors in planning are in the outcome.
    """
    with contextlib.closing(Compiles(lowered, compiler_options, compile_kwargs)) as compiles:
        outcome = _compile(compiles, options, environment, store, compiler_options)
        outcome = dataclasses.replace(outcome, compiled=compiles.kept(outcome.compiled))
    require_budget(outcome.compiled, options, outcome.reason)
    return outcome


@raises_of_handlers
def compile_given(
    lowered: jax.stages.Lowered,
    plan: Plan,
    options: PlanOptions,
    *,
    compiler_options: dict[str, Any] | None = None,
    **compile_kwargs: Any,
) -> Outcome:
    """Compiles `lowered` with a plan that was made before, checked like any other; XLA's own order
    is used if the plan keeps that, is rejected or gains nothing. Raises PlanMismatchError if the
    plan was made for another program, BudgetError if XLA assigns more than the memory budget.
    """
    try:
        with contextlib.closing(Compiles(lowered, compiler_options, compile_kwargs)) as compiles:
            if plan.keeps_xla:
                captured, own = compiles.captured()
                if plan.without_rematerialization:
                    own = compiles.own_quiet() or own
                if captured.view.fingerprint != plan.fingerprint:
                    raise PlanMismatchError(
                        f"the plan for {plan.module} does not fit module {captured.view.name}"
                    )
                outcome = Outcome(own, plan, False, NO_GAIN)
            else:
                outcome = chosen(compiles, plan, compiles.apply(plan))
            outcome = dataclasses.replace(outcome, compiled=compiles.kept(outcome.compiled))
    except PlanMismatchError as error:
        raise PlanMismatchError(
            f"plan=: {error}; a plan fits only the function, shapes, devices (here "
            f"{plan.target}), version of JAX and flags for which it was made"
        ) from error
    require_budget(outcome.compiled, options, outcome.reason)
    return outcome


def _compile(
    compiles: Compiles,
    options: PlanOptions,
    environment: str,
    store: plan_store.PlanStore | None,
    compiler_options: dict[str, Any] | None,
) -> Outcome:
    """Compiles with the stored plan or a new one, which is stored unless rejected; errors are in
    the outcome. It has the better executable, planned or XLA's own. BudgetError is raised.
    """
    try:
        key = plan_store.plan_key(
            compiles.stablehlo.bytecode, environment, compiler_options, options
        )
        store = store or plan_store.process_store()
        plan = store.load(key)
        if plan is not None:
            with contextlib.suppress(PlanMismatchError):
                outcome = _known(compiles, plan, key, store.accepted(key))
                if outcome.accepted and outcome.accepted not in store.accepted(key):
                    store.save(key, plan, outcome.accepted)
                return outcome
            _logger.info(
                "%s: the stored plan does not fit this program; planning again", plan.module
            )
        outcome = _best(compiles, options, key)
        if outcome.plan is not None and not outcome.fell_back:
            store.save(key, outcome.plan, outcome.accepted)
        return outcome
    except BudgetError:
        raise
    except Exception as error:
        return failed(compiles.own(), error)


def _known(compiles: Compiles, plan: Plan, key: str, accepted: Sequence[str]) -> Outcome:
    """Compiles with a stored plan; its executable is checked unless its digest is in `accepted`.
    If the plan gains nothing, XLA's own order is compiled. Raises PlanMismatchError if it is of
    another program. `key`: under which it is stored.
    """
    if without_gain(plan):
        # A stored plan without a gain describes XLA's order already.
        quiet = compiles.own_quiet(key) if plan.without_rematerialization else None
        return Outcome(quiet or compiles.own(key), plan, False, NO_GAIN)
    return chosen(compiles, plan, compiles.apply(plan, key, accepted))


def _best(compiles: Compiles, options: PlanOptions, key: str) -> Outcome:
    """Searches for a plan and compiles with it. If it is for addresses that this package chooses,
    and these fail or cost much, it does so again for XLA's addresses.
    Returns the outcome of fewer bytes. Raises BudgetError if the budget cannot be met. `key`: for
    JAX's persistent cache.
    """
    outcome = _fresh(compiles, options, key)
    plan = outcome.plan
    if options.placement != "own" or plan is None or not plan.peak_bytes:
        return outcome
    most = (1 + own_places.LOSS) * plan.peak_bytes
    if not plan.placement_note and assigned_bytes(outcome.compiled) <= most:
        return outcome
    _logger.info("%s: also trying an order for addresses that XLA chooses", plan.module)
    other = _fresh(compiles, _for_xlas_places(options, plan), "")
    if other.plan is None:
        return outcome
    merged = dataclasses.replace(
        other.plan,
        least_peak_bytes=min(plan.least_peak_bytes, other.plan.least_peak_bytes),
        lower_bound_bytes=max(plan.lower_bound_bytes, other.plan.lower_bound_bytes),
        seconds=_seconds(plan) + other.plan.seconds,
        time_limit=plan.time_limit,
        proofs=tuple(proof for proof in plan.proofs if proof.what == "order"),
    )
    if plan.placement_note:
        merged = dataclasses.replace(merged, placement_note=plan.placement_note)
        other = dataclasses.replace(other, plan=merged)
    else:
        other = _placed(other, merged)
    return min(outcome, other, key=lambda o: assigned_bytes(o.compiled))


def _for_xlas_places(options: PlanOptions, plan: Plan) -> PlanOptions:
    """Returns options for a second search, of an order for XLA's addresses, in the time left or at
    least a part of it. It is by search: an integer program proves nothing of XLA's addresses.
    """
    limit, is_search = options.time_limit, options.method == "search"
    if limit is None and not is_search:
        limit = _LONGEST
    return dataclasses.replace(
        options,
        placement="xla",
        method="search",
        gap=0.0,
        early_updates=False,
        time_limit=limit and max(limit - _seconds(plan), _LEAST_PART * limit),
    )


def _seconds(plan: Plan) -> float:
    """Sums the seconds that a plan took and those of the integer programs for its addresses."""
    return plan.seconds + sum(proof.seconds for proof in plan.proofs if proof.what == "places")


def _placed(outcome: Outcome, plan: Plan) -> Outcome:
    """Returns the outcome with `plan`, and buffers moved to our own addresses where possible.
    The prediction is then the order's lifetime peak: XLA's rules of placement do not count.
    """
    compiled, plan = own_places.placed(outcome.compiled, plan)
    if plan.placement != "own":
        return dataclasses.replace(outcome, plan=plan)
    total = assigned_bytes(compiled)
    plan = dataclasses.replace(plan, assigned_bytes=total, predicted_bytes=plan.peak_bytes)
    return dataclasses.replace(
        outcome, compiled=compiled, plan=plan, planned=True, reason="", objection=""
    )


def _fresh(compiles: Compiles, options: PlanOptions, key: str) -> Outcome:
    """Plans inside one compile. Plans again for less memory if XLA exceeds the budget, without
    changing loops and collectives if XLA cannot compile those changes, and on an accelerator if
    XLA's own order is kept and XLA recomputes in it. Raises BudgetError. `key`: under which JAX's
    persistent cache may have the executable, or "".
    """
    session = PlanningSession(compiles, options)
    try:
        outcome = session.outcome(compiles.handed_over(key, session.answer))
    except jax.errors.JaxRuntimeError as error:
        plan = session.plan if options.loops else None
        if plan is None or not plan.is_rewritten or refused.is_refusal(error, plan.target):
            raise
        _logger.warning("%s: XLA refuses to compile the plan's loops: %s", plan.module, error)
        without = dataclasses.replace(options, loops=False, collectives=False)
        return _fresh(compiles, without, key)
    if session.captured is None:
        return outcome
    if options.budget_bytes is not None:
        outcome = second_tries.fitted(compiles, options, session.captured, outcome)
    if outcome.plan is None or outcome.planned or platform(outcome.plan.target).is_host:
        return outcome
    return second_tries.quiet(compiles, options, session.captured, outcome)
