"""Plans inside XLA's compile, which has handed its module over and waits for the schedule."""

from __future__ import annotations

import logging
import math
import time

import jax

from hlo.backend import platform
from hlo.gc_pause import without_collection
from olla_xla.compile import loading, outcomes
from olla_xla.compile.accounting import ask_ahead, assigned_bytes, scratch_peak
from olla_xla.compile.captured import Captured
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.gpu_limits import reason_of_plan
from olla_xla.compile.stage_compiles import NO_HOOK
from olla_xla.compile.waiting import waiting
from olla_xla.errors import BudgetError, LimitError, OllaError
from olla_xla.problem.options import NOTHING, PlanOptions
from olla_xla.problem.plan import Plan

_logger = logging.getLogger("olla_xla")

_SMALL = 2**20
"""Peak bytes of the values that a step makes, up to which it is not planned by default."""


_MUCH_FASTER = 0.1
"""A plan that saves this part of the predicted time may save next to no memory: it leaves out
copies to the host's."""


_ALL_OF_PLANNING = 8
"""Least time for all of planning, as a multiple of the time for reading the module."""


_LATE, _TOO_LATE = 0.5, 1.5
"""Planning may take so many seconds more than this multiple of a time limit."""


class PlanningSession:
    """Plans a step inside its compile: XLA calls `answer` and waits; `outcome` is called after it.
    `captured`: the module as XLA scheduled it; None before that. `plan`: that was made, if any.
    """

    def __init__(self, compiles: Compiles, options: PlanOptions) -> None:
        self._compiles, self._options = compiles, options
        self._started = time.monotonic(), time.process_time()
        self.captured: Captured | None = None
        self.plan: Plan | None = None
        self._objection = ""
        self._error: Exception | None = None
        if compiles.stablehlo.mentions_more(_SMALL) and self._waits:
            loading.begin(compile=True)

    @property
    def _waits(self) -> bool:
        return loading.is_needed(self._compiles.stablehlo.operations)

    @without_collection()
    def answer(self, platform: str, module: bytes) -> bytes | None:
        """Called by XLA's hook: returns the planned module, or None to keep XLA's schedule.
        Errors are kept for `outcome`, except BudgetError if the budget cannot be met.
        """
        began, processor = self._started
        # On a busy machine XLA waits for processors; what search is worth does not grow by that.
        taken = min(time.monotonic() - began, time.process_time() - processor)
        compiles, options = self._compiles, self._options
        captured = compiles.taken(platform, module, taken)
        self.captured = captured
        began = time.thread_time()
        small = scratch_peak(captured.view) <= _SMALL  # parsed once, for all later readers
        if options.is_default and small:
            return None
        if trouble := _too_late(options, _ALL_OF_PLANNING * (time.thread_time() - began)):
            self._error = LimitError(trouble)
            return None
        if self._waits:  # loading, and compiling loops once, do not count as search
            with waiting(compiles.name, loading.what()):
                loading.finish()
        try:
            plan = self.plan = planned_within(compiles.name, captured, options, options)
            if self._is_idle(plan) or reason_of_plan(plan):
                return None
            _logger.debug("checking the plan")
            planned, self._objection = compiles.write(module, plan)
        except BudgetError:
            raise
        except Exception as error:
            self._error = error
            return None
        finally:
            _logger.debug("XLA compiles the step with its schedule")
        return None if self._objection else planned

    @without_collection()
    def outcome(self, compiled: jax.stages.Compiled) -> outcomes.Outcome:
        """Called after the compile: checks the executable, and returns what came of planning."""
        plan, captured = self.plan, self.captured
        if captured is None:
            return outcomes.failed(compiled, OllaError(NO_HOOK))
        if self._error is not None:
            return outcomes.failed(compiled, self._error)
        if plan is None:
            return outcomes.Outcome(
                compiled, outcomes.small_plan(captured, compiled), False, outcomes.NO_GAIN
            )
        if self._objection:
            return outcomes.rejected(compiled, plan, captured, self._objection, self._objection)
        if self._is_idle(plan):
            plan = outcomes.unplanned(plan, captured, assigned_bytes(compiled))
            return outcomes.Outcome(compiled, plan, False, outcomes.NO_GAIN)
        if reason := reason_of_plan(plan):
            return outcomes.rejected(compiled, plan, captured, reason, "")
        ask_ahead(compiled)
        compiles = self._compiles
        return outcomes.chosen(compiles, plan, compiles.judged(compiled, plan), captured)

    def _is_idle(self, plan: Plan) -> bool:
        """Whether a plan saves too little memory and time to be compiled."""
        gain = plan.xla_predicted_bytes - plan.predicted_bytes
        least = platform(plan.target).least_gain * plan.xla_predicted_bytes
        options = self._options.in_need(plan.xla_predicted_bytes)
        small = gain < least or (options.is_default and gain < NOTHING)
        return outcomes.without_gain(plan) or (small and plan.overhead > -_MUCH_FASTER)

    @property
    def why_not(self) -> str:
        """Why XLA's own schedule is kept: error, checker's message, longer time or no gain."""
        if self._error is not None:
            return outcomes.error_text(self._error)
        longer = "" if self.plan is None else reason_of_plan(self.plan)
        return self._objection or longer or outcomes.NO_GAIN


def _too_late(options: PlanOptions, least: float) -> str:
    """Says why a time limit is too short if planning takes at least `least` seconds; or ""."""
    limit = options.time_limit
    if limit is None or least <= _TOO_LATE * limit + _LATE:
        return ""
    return (
        f"time_limit={limit} is too short: planning this step takes at least {least:.1f} s, so ask "
        f"for time_limit={math.ceil(least)} or more"
    )


def planned_within(
    name: str, captured: Captured, options: PlanOptions, attempt: PlanOptions
) -> Plan:
    """Searches for a plan of the captured module with the options `attempt`; shows progress.
    Raises BudgetError, which names the budget of `options`, if the budget cannot be met.
    """
    try:
        with waiting(name) as progress:
            plan = loading.planner().plan_module(
                captured.module,
                attempt,
                target=captured.platform,
                alternative_orders=captured.alternative_orders,
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
