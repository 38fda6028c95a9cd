"""Outcomes of compiling a function with a plan; descriptions of plans that are not used."""

from __future__ import annotations

import dataclasses
import logging

import jax

from olla_xla.check.graph import lifetime_peak
from olla_xla.compile import host_memory, loading, own_places, refused
from olla_xla.compile.accounting import assigned_bytes, host_bytes, temporary_bytes
from olla_xla.compile.captured import Captured
from olla_xla.compile.compiles import Applied, Compiles
from olla_xla.errors import BudgetError, OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import PlanStatus

_logger = logging.getLogger("olla_xla")

NO_GAIN = "no order found beats XLA's"
"""The reason for XLA's own schedule if nothing went wrong."""


_EXACT = 1e-6  # part of an assigned total by which a prediction may be off


_CERTAIN = 0.01  # part of the gain by which a prediction may be off


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of compiling a function with a plan: the executable, its plan, and why.

    Attributes:
      compiled: JAX's compiled stage, with the plan's schedule or XLA's own.
      plan: describes the schedule in use; None when planning failed.
      planned: True when the schedule in use is not XLA's own.
      reason: why XLA's own schedule is used, or "". error: what went wrong in planning, or None.
      objection: why the referee, our checker, rejected the planned executable, with the path of the
        file that was saved, or "".
      members: numbers of the processes that agreed on it; () where it concerns this one only.
      accepted: digest of the planned executable that the referee accepted; or "".
    """

    compiled: jax.stages.Compiled
    plan: Plan | None
    planned: bool
    reason: str = ""
    error: Exception | None = None
    objection: str = ""
    members: tuple[int, ...] = ()
    accepted: str = ""

    def described(self) -> Outcome:
        """Returns the outcome with what of the executable is in host memory added to its plan."""
        if self.plan is None or not (size := host_bytes(self.compiled)):
            return self
        plan = host_memory.described(self.compiled, self.plan, size)
        return dataclasses.replace(self, plan=plan)

    @property
    def fell_back(self) -> bool:
        """Whether XLA's own schedule is used because of a problem, not for lack of a gain."""
        return not self.planned and self.reason != NO_GAIN


def require_budget(compiled: jax.stages.Compiled, options: PlanOptions, reason: str) -> None:
    """Raises BudgetError with `reason` if an executable takes more than `options.budget_bytes`."""
    if options.budget_bytes is not None and assigned_bytes(compiled) > options.budget_bytes:
        raise BudgetError(options.budget_bytes, assigned_bytes(compiled), reason)


def failed(compiled: jax.stages.Compiled, error: Exception) -> Outcome:
    """Returns the outcome where planning raised `error`: XLA's own executable, `compiled`."""
    _logger.debug("planning failed", exc_info=error)
    return Outcome(compiled, None, False, error_text(error), error)


def error_text(error: Exception) -> str:
    """Returns an error's message for users, with its type's name in front if it is no OllaError."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, OllaError) else f"{type(error).__name__}: {text}"


def without_gain(plan: Plan) -> bool:
    """Whether a plan's predicted total bytes are at least those of XLA's own order."""
    return plan.predicted_bytes >= plan.xla_predicted_bytes


def chosen(
    compiles: Compiles, plan: Plan, applied: Applied, captured: Captured | None = None
) -> Outcome:
    """Returns the outcome with the planned executable; with XLA's own if that one is rejected or
    gains nothing. The total of XLA's own order is only predicted. If the plan's prediction was
    wrong, or XLA's rematerialization may make that total smaller, XLA's own order is compiled too,
    and compared, unless the executable was accepted before. With `placement="own"` this package
    chooses the buffers' addresses in the planned executable, where it can.
    """
    compiled, reason, objects = applied[:3]
    plan = dataclasses.replace(plan, without_rematerialization=applied.is_quiet)
    if plan.placement == "own" and not reason:
        compiled, plan = own_places.placed(compiled, plan)
    if applied.is_known and plan.assigned_bytes is not None:
        return Outcome(compiled, plan, True, accepted=applied.digest)
    plan = dataclasses.replace(plan, results=applied.results)
    assigned = assigned_bytes(compiled)
    known = plan.assigned_bytes == assigned  # by an earlier compile of the same plan
    if not reason and not known and (doubt := _doubt(compiles, plan, compiled, captured)):
        _logger.info("%s: %s; compiling XLA's own order", plan.module, doubt)
        own = _own_bytes(compiles, plan)
        plan = dataclasses.replace(plan, xla_bytes=plan.xla_bytes if own is None else own)
        if own is not None and assigned >= own:
            again = compiles.ran_again(compiles.own(), plan)
            if assigned > own and not again:
                reason = f"XLA assigned {assigned:,} bytes to the plan, {own:,} to its own order"
            elif assigned > own or not again:
                reason = NO_GAIN
    if not reason:
        plan = dataclasses.replace(plan, assigned_bytes=assigned)
        return Outcome(compiled, plan, True, accepted=applied.digest)
    captured = captured or compiles.capture()
    try:
        own_compiled = compiles.own()
    except jax.errors.JaxRuntimeError as error:
        error.add_note(f"olla_xla's plan of {plan.predicted_bytes:,} bytes is not used: {reason}")
        raise
    return rejected(own_compiled, plan, captured, reason, reason if objects else "")


def _own_bytes(compiles: Compiles, plan: Plan) -> int | None:
    """Compiles XLA's own order; returns its bytes, or None if XLA refuses for lack of memory."""
    try:
        return assigned_bytes(compiles.own())
    except jax.errors.JaxRuntimeError as error:
        if not refused.is_refusal(error, plan.target):
            raise
        _logger.info("%s: XLA's own order does not fit the device, so XLA refuses it", plan.module)
        return None


def _doubt(
    compiles: Compiles, plan: Plan, compiled: jax.stages.Compiled, captured: Captured | None
) -> str:
    """Says why XLA's own order may take fewer bytes than predicted, or "".
    It may if the total of the plan's executable was mispredicted, or XLA may rematerialize.
    """
    assigned = assigned_bytes(compiled)
    error, gain = abs(assigned - plan.predicted_bytes), plan.xla_predicted_bytes - assigned
    if error > _EXACT * assigned and error > _CERTAIN * gain:
        return f"XLA assigned {assigned:,} bytes, but {plan.predicted_bytes:,} were predicted"
    if captured is not None and compiles.may_run_again(captured, compiled):
        return "XLA's rematerialization may act on its own order"
    return ""


def rejected(
    own: jax.stages.Compiled, plan: Plan, captured: Captured, reason: str, objection: str
) -> Outcome:
    """Returns the outcome with XLA's own executable `own` and its order in a plan's place. Logs the
    reason as a warning, unless it is that nothing is gained.
    """
    if reason != NO_GAIN:
        _logger.warning("%s: XLA's own schedule is used: %s", plan.module, reason)
    kept = unplanned(plan, captured, assigned_bytes(own))
    return Outcome(own, kept, False, reason, objection=objection)


def small_plan(captured: Captured, compiled: jax.stages.Compiled) -> Plan:
    """Makes a Plan of XLA's own order and total, for a module too small for a search."""
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
    """Turns a rejected plan into one of XLA's own order, which takes `assigned` bytes in all."""
    order = captured.view.order
    if plan.order == order and not (plan.aliases or plan.holds or plan.is_rewritten):
        return dataclasses.replace(plan, xla_bytes=assigned, assigned_bytes=assigned)
    entry = loading.planner().graphs(captured.module, captured.platform)[-1]
    peak = lifetime_peak(entry, range(len(entry.operators)))
    return dataclasses.replace(
        plan,
        order=order,
        aliases={},
        holds={},
        clones=(),
        front=(),
        loops=(),
        sunk=(),
        joined=(),
        added_seconds=0.0,
        least_added_seconds=0.0,
        exposed_seconds=0.0,
        path_seconds=plan.xla_path_seconds,
        least_stack_bytes=0,
        added_moved_bytes=0,
        offsets={},
        placement="xla",
        without_rematerialization=False,
        xla_bytes=assigned,
        predicted_bytes=plan.xla_predicted_bytes,
        peak_bytes=peak,
        assigned_bytes=assigned,
        status=PlanStatus.OPTIMAL if peak <= plan.lower_bound_bytes else PlanStatus.XLA,
        source="xla",
    )
