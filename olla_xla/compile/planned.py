"""Compiles a function with a planned schedule: one compile, with the planner in its midst.

1. The first time: XLA hands the module over as it has scheduled it (hook.py) and waits; the planner
   runs, and the schedule goes straight back. XLA's own total is the predicted one. Should XLA
   assign another total than predicted, XLA's own order is compiled too, and the better one kept.
2. With a stored plan: the same compile, and the hook only writes the schedule.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import jax

from hlo.gc_pause import without_collection
from olla_xla.check.graph import lifetime_peak
from olla_xla.compile import loading, plan_store
from olla_xla.compile.accounting import (
    ask_ahead,
    assigned_bytes,
    final_module,
    scratch_peak,
    temporary_bytes,
)
from olla_xla.compile.compiles import NO_HOOK, Applied, Captured, Compiles
from olla_xla.compile.order import order_difference
from olla_xla.compile.waiting import waiting
from olla_xla.errors import BudgetError, LimitError, OllaError, PlanMismatchError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan, PlanStatus

__all__ = [
    "NO_GAIN",
    "Midst",
    "Outcome",
    "chosen",
    "compile_given",
    "compile_planned",
    "compile_without_clones",
    "failed",
    "rejected",
    "require_budget",
    "small_plan",
    "unplanned",
    "without_gain",
]

_logger = logging.getLogger("olla_xla")

NO_GAIN = "no better order was found"
"""Why XLA's own schedule is used where nothing went wrong."""
_SMALL = 2**20
"""Bytes of a step's own values, at most live together, up to which none is planned by default."""
_NOTHING = 256 * 2**10
"""Bytes below which a gain is none by default."""
_ALL_OF_PLANNING = 8
"""What all of planning takes at the least, in terms of what reading the module took."""
_LATE, _TOO_LATE = 0.5, 1.5
"""Seconds, and part of a limit that was asked for, by which planning may take longer."""
_EXACT = 1e-6  # part of an assigned total by which a prediction may be off
_CERTAIN = 0.01  # part of the gain by which a prediction may be off
_BUDGET_TRIES = 3  # plans for a budget, each allowing for how far the one before was off


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A compiled function and how it came to its schedule.

    Attributes:
      compiled: JAX's compiled stage, with the plan's schedule or XLA's own.
      plan: describes the schedule in use; None when planning failed.
      planned: True when the schedule in use is not XLA's own.
      reason: why XLA's own schedule is used, or "".
      error: what went wrong in planning, or None.
      objection: what the referee said against the planned executable, with the file that has the
        case in it, or "".
      members: numbers of the processes that agreed on it; () where it concerns this one only.
      accepted: digest of the planned executable, which the referee has accepted; or "".
    """

    compiled: jax.stages.Compiled
    plan: Plan | None
    planned: bool
    reason: str = ""
    error: Exception | None = None
    objection: str = ""
    members: tuple[int, ...] = ()
    accepted: str = ""

    @property
    def fell_back(self) -> bool:
        """Whether XLA's schedule is used although a better one might have been."""
        return not self.planned and self.reason != NO_GAIN


def compile_planned(
    lowered: jax.stages.Lowered,
    options: PlanOptions,
    *,
    environment: str,
    store: plan_store.PlanStore | None = None,
    compiler_options: dict[str, Any] | None = None,
    **compile_kwargs: Any,
) -> Outcome:
    """Compiles `lowered` with a planned schedule where that lowers XLA's total.

    Calls of the jitted function that `lowered` came from then run the same executable, unless
    `compiler_options` or other `compile` arguments are given (as in JAX).

    Args:
      lowered: JAX's lowered stage; nothing else may compile it meanwhile.
      options: limits and seed.
      environment: part of the key of reusable plans: names the devices, their runtime and the
        compiler options that `lowered` brings along.
      store: where plans are kept for reuse; the process's own by default.
      compiler_options: as for `Lowered.compile`; other arguments of it in `compile_kwargs`.

    Raises:
      BudgetError: XLA assigns more than the options' memory budget to the best plan.
      Whatever XLA raises compiling its own schedule. Trouble with the plan is in the outcome.
    """
    compiles = Compiles(lowered, compiler_options, compile_kwargs)
    try:
        outcome = _compile(compiles, options, environment, store, compiler_options)
        outcome = dataclasses.replace(outcome, compiled=compiles.kept(outcome.compiled))
    finally:
        compiles.forget()
    require_budget(outcome.compiled, options, outcome.reason)
    return outcome


def compile_given(
    lowered: jax.stages.Lowered,
    plan: Plan,
    options: PlanOptions,
    *,
    compiler_options: dict[str, Any] | None = None,
    **compile_kwargs: Any,
) -> Outcome:
    """Compiles `lowered` with a plan that was made before; the referee sees it as any other.

    Raises:
      PlanMismatchError: the plan was made for another program.
      BudgetError: XLA assigns more than the options' memory budget.
    """
    compiles = Compiles(lowered, compiler_options, compile_kwargs)
    try:
        if plan.keeps_xla:
            captured, own = compiles.captured()
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
            f"plan=: {error}; it must be of this function, these shapes and devices ({plan.target} "
            "it was made for), this jax and these flags"
        ) from error
    finally:
        compiles.forget()
    require_budget(outcome.compiled, options, outcome.reason)
    return outcome


def compile_without_clones(lowered: jax.stages.Lowered, plan: Plan) -> jax.stages.Compiled:
    """Compiles `lowered` in a plan's order with nothing computed again, whatever memory it takes.

    Raises:
      PlanMismatchError: the plan was made for another module, or XLA did not keep the order.
    """
    from olla_xla.remat.without_clones import without_clones

    compiles = Compiles(lowered, None, {})
    try:
        captured = compiles.capture()
        bare = without_clones(captured.module, plan)
        compiled = compiles.apply(bare).compiled
        if difference := order_difference(bare, final_module(compiled)):
            raise PlanMismatchError(difference)
    finally:
        compiles.forget()
    return compiled


def require_budget(compiled: jax.stages.Compiled, options: PlanOptions, reason: str) -> None:
    """Raises BudgetError, with `reason`, if an executable takes more than the options allow."""
    if options.budget_bytes is not None and assigned_bytes(compiled) > options.budget_bytes:
        raise BudgetError(options.budget_bytes, assigned_bytes(compiled), reason)


def _compile(
    compiles: Compiles,
    options: PlanOptions,
    environment: str,
    store: plan_store.PlanStore | None,
    compiler_options: dict[str, Any] | None,
) -> Outcome:
    """The best executable, planned or XLA's own; trouble with the plan is in the outcome."""
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
            _logger.info("%s: the stored plan no longer fits; planning again", plan.module)
        outcome = _fresh(compiles, options, key)
        if outcome.plan is not None and not outcome.fell_back:
            store.save(key, outcome.plan, outcome.accepted)
        return outcome
    except BudgetError:
        raise
    except Exception as error:
        return failed(compiles.own(), error)


def failed(compiled: jax.stages.Compiled, error: Exception) -> Outcome:
    """XLA's own executable, and what went wrong in planning."""
    _logger.debug("planning failed", exc_info=error)
    return Outcome(compiled, None, False, _text(error), error)


def _text(error: Exception) -> str:
    """What a user is told of an error."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, OllaError) else f"{type(error).__name__}: {text}"


def without_gain(plan: Plan) -> bool:
    """Whether a plan is no better than XLA's own order."""
    return plan.predicted_bytes >= plan.xla_predicted_bytes


def _known(compiles: Compiles, plan: Plan, key: str, accepted: Sequence[str]) -> Outcome:
    """The executable of a stored plan, which is judged if it is none of the `accepted` ones.

    Raises:
      PlanMismatchError: the module is not the plan's.
    """
    if without_gain(plan):
        # A stored plan without a gain describes XLA's order already.
        return Outcome(compiles.own(key), plan, False, NO_GAIN)
    return chosen(compiles, plan, compiles.apply(plan, key, accepted))


def _fresh(compiles: Compiles, options: PlanOptions, key: str) -> Outcome:
    """Plans in the midst of one compile; plans again for less where that takes more than allowed.

    Raises:
      BudgetError: the budget cannot be met.
    """
    midst = Midst(compiles, options)
    outcome = midst.outcome(compiles.handed_over(key, midst.answer))
    return (
        outcome if midst.captured is None else _fitted(compiles, options, midst.captured, outcome)
    )


class Midst:
    """Plans while XLA waits. `answer` is called in the midst of the compile, `outcome` after it.

    Attributes:
      captured: the module as XLA scheduled it, once it has. plan: the plan that was made, if any.
    """

    def __init__(self, compiles: Compiles, options: PlanOptions) -> None:
        self._compiles, self._options = compiles, options
        self._started = time.monotonic()
        self.captured: Captured | None = None
        self.plan: Plan | None = None
        self._objection = ""
        self._error: Exception | None = None
        if compiles.stablehlo.mentions_more(_SMALL):
            loading.begin(compile=True)

    @without_collection()
    def answer(self, platform: str, module: bytes) -> bytes | None:
        """The module with a plan in it, or None to leave XLA's schedule.

        Raises:
          BudgetError: the budget cannot be met.
        """
        taken, compiles, options = time.monotonic() - self._started, self._compiles, self._options
        captured = compiles.taken(platform, module, taken)
        self.captured = captured
        began = time.thread_time()
        small = scratch_peak(captured.view) <= _SMALL  # read here, and kept for all that follow
        if options.is_default and small:
            return None
        if trouble := _too_late(options, _ALL_OF_PLANNING * (time.thread_time() - began)):
            self._error = LimitError(trouble)
            return None
        with waiting(compiles.name):  # What is loaded, or compiled once, is no search.
            loading.finish()
        try:
            plan = self.plan = _plan(compiles.name, captured, options, options)
            if self._is_idle(plan):
                return None
            planned, self._objection = compiles.write(module, plan)
        except BudgetError:
            raise
        except Exception as error:
            self._error = error
            return None
        return None if self._objection else planned

    @without_collection()
    def outcome(self, compiled: jax.stages.Compiled) -> Outcome:
        """What came of the compile in which `answer` was asked."""
        plan, captured = self.plan, self.captured
        if captured is None:
            return failed(compiled, OllaError(NO_HOOK))
        if self._error is not None:
            return failed(compiled, self._error)
        if plan is None:
            return Outcome(compiled, small_plan(captured, compiled), False, NO_GAIN)
        if self._objection:
            return rejected(compiled, plan, captured, self._objection, self._objection)
        if self._is_idle(plan):
            plan = unplanned(plan, captured, assigned_bytes(compiled))
            return Outcome(compiled, plan, False, NO_GAIN)
        ask_ahead(compiled)
        compiles = self._compiles
        return chosen(compiles, plan, compiles.judged(compiled, plan), captured)

    def _is_idle(self, plan: Plan) -> bool:
        """Whether a plan gains nothing that would be worth a compile's while."""
        gain = plan.xla_predicted_bytes - plan.predicted_bytes
        return without_gain(plan) or (self._options.is_default and gain < _NOTHING)

    @property
    def why_not(self) -> str:
        """Why `answer` left XLA's schedule."""
        if self._error is not None:
            return _text(self._error)
        return self._objection or NO_GAIN


def _too_late(options: PlanOptions, least: float) -> str:
    """Why a time limit is too short where planning takes at least so many seconds; or ""."""
    limit = options.time_limit
    if limit is None or least <= _TOO_LATE * limit + _LATE:
        return ""
    return (
        f"time_limit={limit} is too short: planning this step takes at least {least:.1f} s, so ask "
        f"for time_limit={math.ceil(least)} or more"
    )


def _plan(name: str, captured: Captured, options: PlanOptions, attempt: PlanOptions) -> Plan:
    """A plan of the captured module within the limits of an attempt at the options.

    Raises:
      BudgetError: the budget cannot be met; it names the options' own.
    """
    from olla_xla import planner  # Loads numba and the solvers; not needed until here.

    try:
        with waiting(name) as progress:
            plan = planner.plan_module(
                captured.module,
                attempt,
                target=captured.platform,
                more=captured.more,
                progress=progress,
                schedule_seconds=captured.seconds,
                device_kind=captured.device_kind,
                device_bytes=captured.device_bytes,
            )
    except BudgetError as error:
        if attempt is options or options.budget_bytes is None:
            raise
        raise BudgetError(options.budget_bytes, error.least_bytes, error.reason) from error
    return plan


def _fitted(
    compiles: Compiles, options: PlanOptions, captured: Captured, outcome: Outcome
) -> Outcome:
    """The outcome, planned anew for less while XLA assigns more than the budget after all."""
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
        plan = _plan(compiles.name, captured, options, attempt)
        outcome = chosen(compiles, plan, compiles.apply(plan), captured)
    return outcome


def chosen(
    compiles: Compiles, plan: Plan, applied: Applied, captured: Captured | None = None
) -> Outcome:
    """The planned executable, or XLA's own where the planned one is to be rejected.

    XLA's own total is predicted, so it is compiled where predictions prove wrong.
    """
    compiled, reason, objects = applied[:3]
    if applied.is_known and plan.assigned_bytes is not None:
        return Outcome(compiled, plan, True, accepted=applied.digest)
    plan = dataclasses.replace(plan, results=applied.results)
    assigned = assigned_bytes(compiled)
    known = plan.assigned_bytes == assigned  # by an earlier compile of the same plan
    if not reason and not known and _is_surprise(plan, assigned):
        _logger.info(
            "%s: XLA assigned %s bytes, predicted were %s; compiling XLA's own order",
            plan.module,
            *(f"{b:,}" for b in (assigned, plan.predicted_bytes)),
        )
        own = assigned_bytes(compiles.own())
        plan = dataclasses.replace(plan, xla_bytes=own)
        if assigned == own:
            reason = NO_GAIN
        elif assigned > own:
            reason = f"XLA assigned {assigned:,} bytes to the plan, {own:,} to its own order"
    if not reason:
        plan = dataclasses.replace(plan, assigned_bytes=assigned)
        return Outcome(compiled, plan, True, accepted=applied.digest)
    captured = captured or compiles.capture()
    return rejected(compiles.own(), plan, captured, reason, reason if objects else "")


def _is_surprise(plan: Plan, assigned: int) -> bool:
    """Whether a prediction is so far off that XLA's own total may not be as predicted either."""
    error, gain = abs(assigned - plan.predicted_bytes), plan.xla_predicted_bytes - assigned
    return error > _EXACT * assigned and error > _CERTAIN * gain


def rejected(
    own: jax.stages.Compiled, plan: Plan, captured: Captured, reason: str, objection: str
) -> Outcome:
    """XLA's own executable instead of a plan's."""
    if reason != NO_GAIN:
        _logger.warning("%s: XLA's own schedule is used: %s", plan.module, reason)
    kept = unplanned(plan, captured, assigned_bytes(own))
    return Outcome(own, kept, False, reason, objection=objection)


def small_plan(captured: Captured, compiled: jax.stages.Compiled) -> Plan:
    """XLA's own order of a module that has next to no temporaries."""
    view, total = captured.view, assigned_bytes(compiled)
    return Plan(
        module=view.name,
        fingerprint=view.fingerprint,
        target=captured.platform,
        order=view.order,
        offsets={},
        xla_bytes=total,
        xla_predicted_bytes=total,
        predicted_bytes=total,
        peak_bytes=0,
        least_peak_bytes=total,
        lower_bound_bytes=total - temporary_bytes(compiled),
        assigned_bytes=total,
        status=PlanStatus.XLA,
    )


def unplanned(plan: Plan, captured: Captured, assigned: int) -> Plan:
    """A plan that is not used, rewritten to describe XLA's own order and its assigned total."""
    from olla_xla import planner

    order = captured.view.order
    if plan.order == order and not (plan.aliases or plan.holds or plan.is_rewritten):
        return dataclasses.replace(plan, xla_bytes=assigned, assigned_bytes=assigned)
    entry = planner.graphs(captured.module, captured.platform)[-1]
    peak = lifetime_peak(entry, range(len(entry.operators)))
    return dataclasses.replace(
        plan,
        order=order,
        aliases={},
        holds={},
        clones=(),
        loops=(),
        sunk=(),
        added_seconds=0.0,
        least_added_seconds=0.0,
        exposed_seconds=0.0,
        least_stack_bytes=0,
        added_moved_bytes=0,
        offsets={},
        xla_bytes=assigned,
        predicted_bytes=plan.xla_predicted_bytes,
        peak_bytes=peak,
        assigned_bytes=assigned,
        status=PlanStatus.OPTIMAL if peak <= plan.lower_bound_bytes else PlanStatus.XLA,
        source="xla",
    )
