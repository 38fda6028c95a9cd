"""`olla_xla.plan(..., host_budget=)`: what is kept, recomputed or spilled to host memory."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import jax

from hlo.backend import platform_of_jax
from hlo.module import module_from_bytes
from olla_xla.compile.accounting import assigned_bytes, final_module, host_bytes
from olla_xla.compile.jax_private import devices_of
from olla_xla.compile.planned_function import PlannedFunction, PlanSettings, planned_function
from olla_xla.errors import BudgetError, InputError, OllaError
from olla_xla.memory.own_jit import own_jit
from olla_xla.pieces.chosen import ChosenFunction
from olla_xla.problem.options import KNEE
from olla_xla.problem.plan_parts import LONGEST_PATH
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.segments.spill import SpillPlan, spilled_by_waits

_logger = logging.getLogger("olla_xla")
LITTLE, _MUCH = 0.005, 0.1
"""Parts of a step's time that scans may wait for copies in the first trial with some, and in the
second, where no overhead is given. In the last all copies are made; of those plans make few."""
_WORTH = 0.01  # part of a step's time that it may take longer, for which it is planned again
_ALIKE = 1.001  # times the best up to which the other figure decides


@dataclasses.dataclass(frozen=True)
class HostTrial:
    """A plan of a function that may keep in host memory what its scans store for other scans.

    Attributes:
      spilled: these arrays, before the plan computes some of them again; bytes on all devices
        together.
      bytes: XLA's total on a device; if the budget is not met, the least that was reached.
      host_bytes: XLA's total in host memory, of a device. seconds: predicted time of a step, or inf
        if the budget is not met.
      fits: whether it is within the budget and the time.
    """

    spilled: SpillPlan
    bytes: int
    host_bytes: int = 0
    seconds: float = math.inf
    fits: bool = False

    def __str__(self) -> str:
        there = f"{_mb(self.spilled.host_bytes)} spilled" if self.spilled.arrays else "none spilled"
        if math.isinf(self.seconds):
            return f"{_mb(self.bytes)} with {there}"
        size = f"{_mb(self.bytes)} on the device and {_mb(self.host_bytes)} on the host"
        return f"{size}, {1e3 * self.seconds:.3f} ms per step, with {there}"


@dataclasses.dataclass(frozen=True)
class HostChoice:
    """Which arrays are kept in host memory for one signature, and what was tried.

    Attributes:
      chosen: the trial that is run. trials: all, from nothing in host memory to most.
      host_reason: why nothing is in host memory, or "".
      overhead: predicted time added to that of XLA's own order, as a part of it.
    """

    chosen: HostTrial
    trials: tuple[HostTrial, ...]
    host_reason: str
    overhead: float = 0.0

    def __str__(self) -> str:
        why = self.host_reason or "; ".join(
            f"{t}{' (exceeds a limit)' * (not t.fits)}" for t in self.trials
        )
        return f"{_mb(self.chosen.host_bytes)} in host memory: {why}"


class HostFunction(ChosenFunction):
    """A planned function with some, or none, of what its scans store in host memory, as is best."""

    _word = "with {} in host memory"

    def __init__(
        self,
        function: Callable[..., Any],
        jit_options: Any,
        settings: PlanSettings,
        most: int,
        fission: bool,
    ) -> None:
        knee = settings.options.max_overhead == KNEE
        if fission or settings.plan is not None or not settings.enabled or knee:
            raise InputError(
                "host_budget= excludes fission=, plan=, enabled=False and max_overhead='knee'; "
                "leave these out, or use olla_xla.spill instead of host_budget="
            )
        super().__init__(function, jit_options, settings)
        self._most = most

    def _named(self, choice: HostChoice) -> str:
        return _mb(choice.chosen.host_bytes)

    def _search(self, args: Any, kwargs: Any) -> tuple[HostChoice, PlannedFunction]:
        return _SpillSearch(self._plain, self._plan_settings, self._most, args, kwargs).run()


class _SpillSearch:
    """The search for which of the arrays that scans store one signature keeps in host memory."""

    def __init__(
        self, plain: PlannedFunction, settings: PlanSettings, most: int, args: Any, kwargs: Any
    ) -> None:
        self._function, self._jit_options = plain.__wrapped__, plain.jit_options
        self._settings, self._most, self._args, self._kwargs = settings, most, args, kwargs
        chips = devices_of(plain.lower(*args, **kwargs).stage)
        chip, self._devices = chips[0], len(chips)
        self._platform = platform_of_jax(chip.platform)
        name = self._platform.name
        self._cost = CostModel(device(name, chip.device_kind), name)
        self._trials: list[tuple[HostTrial, PlannedFunction]] = []
        self._own_seconds = math.nan
        self._tried(plain, SpillPlan(()))

    def run(self) -> tuple[HostChoice, PlannedFunction]:
        """Returns (the choice, its planned function); BudgetError if nothing that was tried meets
        the budget in the time that is allowed.
        """
        options, ways = self._settings.options, []
        first = self._trials[0][0]
        enough = self._is_enough(first)
        reason = "the step meets the budget and XLA's time without host memory" if enough else ""
        if self._platform.is_host:
            reason = "the device is a CPU, whose memory is the host's"
        elif not enough:
            link_bytes = self._allowed(0.0) * self._cost.device.host_bytes_per_second
            link_bytes *= self._devices  # each has a link
            given = self._function, self._args, self._kwargs, self._most
            waits = LITTLE, max(self._overhead or _MUCH, LITTLE), math.inf
            ways = spilled_by_waits(*given, waits, link_bytes)
            reason = "" if ways else "no scan stores a value for another scan that fits host_budget"
        for way in ways:
            self._try_spilled(*way)
            if self._is_enough(self._best()[0]):
                break
        best, function = self._best()
        trials = tuple(trial for trial, _ in self._trials)
        if not best.fits:
            least = min(t.bytes for t in trials)
            why = reason and f"nothing can be spilled: {reason}" or "; ".join(map(str, trials))
            raise BudgetError(options.budget_bytes or least, least, why)
        if ways and not best.host_bytes:
            reason = f"host memory makes no plan better: {'; '.join(map(str, trials))}"
        return HostChoice(best, trials, reason, best.seconds / self._allowed(0.0) - 1), function

    def _best(self) -> tuple[HostTrial, PlannedFunction]:
        """Returns (trial, its function): with a memory budget the one with least time, else with
        least bytes, of those within the budget and the time; the first of all if none is. Among
        those within 0.1 % of the least the other figure decides.
        """
        order = -1 if self._settings.options.budget_bytes is None else 1
        fitting = [found for found in self._trials if found[0].fits] or self._trials[:1]
        least = min((t.seconds, t.bytes)[::order][0] for t, _ in fitting)

        def key(found: tuple[HostTrial, PlannedFunction]) -> tuple[float, float, int]:
            first, second = (found[0].seconds, found[0].bytes)[::order]
            return first > _ALIKE * least, second, found[0].host_bytes

        return min(fitting, key=key)

    def _is_enough(self, trial: HostTrial) -> bool:
        """Whether there is a memory budget, and a trial meets it in no more than XLA's own time."""
        fits = self._settings.options.budget_bytes is not None and trial.fits
        return fits and trial.seconds <= self._allowed(0.0)

    def _allowed(self, overhead: float) -> float:
        """Returns the predicted seconds of a step in XLA's own order, which is compiled if they are
        not known yet, times (1 + overhead).
        """
        if math.isnan(self._own_seconds):
            own = own_jit(functools.partial(self._function), **self._jit_options)
            self._own_seconds = self._seconds(own.lower(*self._args, **self._kwargs).compile())
        return (1 + overhead) * self._own_seconds

    def _seconds(self, compiled: Any) -> float:
        return run_seconds(module_from_bytes(final_module(compiled)), self._cost)

    def _try_spilled(self, spilled: Callable[..., Any], part: SpillPlan) -> None:
        """Plans and records as a trial `spilled`, a function that keeps the arrays `part` in host
        memory; without a memory budget perhaps again, with the overhead that its time leaves.
        `max_overhead` is a fraction of the spilled step's own time: that may be longer or shorter.
        """
        settings, options = self._settings, self._settings.options
        own = self._tried(planned_function(spilled, self._jit_options, settings), part)
        if own is None or options.budget_bytes is not None:
            return
        more = self._allowed(self._overhead) / own - 1
        late = 0 < more < self._overhead and not self._trials[-1][0].fits
        if late or more > self._overhead + _WORTH:
            options = dataclasses.replace(options, max_overhead=more)
            settings = settings._replace(options=options)
            self._tried(planned_function(spilled, self._jit_options, settings), part)

    def _tried(self, function: PlannedFunction, spilled: SpillPlan) -> float | None:
        """Plans and compiles a function that keeps `spilled` in host memory, and records it as a
        trial, also if it exceeds the budget; returns its predicted seconds in XLA's own order, or
        None if it fails. Other errors are logged, but raised if nothing is spilled.
        """
        try:
            compiled = function.lower(*self._args, **self._kwargs).compile()
        except BudgetError as error:
            self._trials.append((HostTrial(spilled, error.least_bytes), function))
            return None
        except (OllaError, jax.errors.JaxRuntimeError) as error:
            if not spilled.arrays:
                raise
            _logger.warning("with %s spilled: %s", _mb(spilled.host_bytes), error)
            return None
        plan, stage = compiled.plan, compiled.stage
        own = seconds = self._seconds(stage)
        if plan is not None and plan.path_seconds:  # before what XLA:TPU does after its scheduler
            own *= plan.xla_path_seconds / plan.path_seconds
        if not spilled.arrays:
            self._own_seconds = own
        size = assigned_bytes(stage), host_bytes(stage)
        trial = HostTrial(spilled, *size, seconds, self._in_time(seconds))
        _logger.info("tried: %s", trial)
        self._trials.append((trial, function))
        return own

    def _in_time(self, seconds: float) -> bool:
        """Whether a step of `seconds` meets `max_overhead`, or is as fast as the first trial's. Any
        time will do for the first trial, and with a memory budget but no `max_overhead`.
        """
        options = self._settings.options
        if not self._trials or (options.budget_bytes is not None and options.max_overhead is None):
            return True
        alone = self._trials[0][0].seconds
        most = 0.0 if math.isinf(alone) else alone
        return seconds <= max(self._allowed(max(self._overhead, LONGEST_PATH - 1)), most)

    @property
    def _overhead(self) -> float:
        overhead = self._settings.options.max_overhead or 0.0
        assert not isinstance(overhead, str)  # `HostFunction` refuses it
        return overhead


def _mb(size: int) -> str:
    return f"{size / 2**20:,.1f} MB"
