"""`olla_xla.plan(..., fission=True)`: the fewest pieces with which a planned function fits."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hlo.backend import platform_of_jax
from hlo.module import module_from_bytes
from olla_xla.compile.accounting import assigned_bytes, final_module, temporary_bytes
from olla_xla.compile.jax_private import devices_of
from olla_xla.compile.planned_function import PlannedFunction, PlanSettings, planned_function
from olla_xla.errors import BudgetError, InputError
from olla_xla.memory.own_jit import own_jit
from olla_xla.pieces.across import cost_in_pieces
from olla_xla.pieces.chosen import ChosenFunction
from olla_xla.pieces.sharded import leaf_shardings
from olla_xla.pieces.transform import FissionPlan, in_pieces

_LITTLE = 0.01  # part of the total that doubling the pieces must save, or no more are tried


@dataclasses.dataclass(frozen=True)
class PiecesTrial:
    """A function compiled to run in a number of pieces of an axis: total bytes and predicted times.

    Attributes:
      pieces: how many; 1: the function as it is. xla_bytes: XLA's total in its own order.
      xla_seconds: predicted time of a step in that order. seconds: that with the plan's overhead,
        if it was planned and meets the budget.
      planned_bytes: XLA's total of the plan; if the budget is not met, the least that was reached;
        None where no plan was tried.
    """

    pieces: int
    xla_bytes: int
    xla_seconds: float
    seconds: float
    planned_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class FissionChoice:
    """In how many pieces of an axis a function runs for one signature, and what was tried.

    Attributes:
      pieces: how many; 1: the function is not cut. trials: those compiled, by number of pieces.
      plan: what is cut, or None. reason: why nothing can be cut; "" if it can, or need not be.
    """

    pieces: int
    trials: tuple[PiecesTrial, ...]
    plan: FissionPlan | None
    reason: str


class FissionFunction(ChosenFunction):
    """A planned function that runs in the fewest pieces of an axis that meet its memory budget.
    Each new signature is compiled in XLA's own order with 1, 2, 4, ... pieces, until one meets the
    budget or more pieces save less than 1 %. Plans are tried for the number that is found, or else
    for about the best; then with fewer pieces, as long as they meet the budget and are predicted to
    take no longer than with more pieces.
    """

    _word = "in {} pieces"

    def _search(self, args: Any, kwargs: Any) -> tuple[FissionChoice, PlannedFunction]:
        search = _PiecesSearch(
            self.__wrapped__, self._jit_options, self._plan_settings, args, kwargs
        )
        return search.run()

    def _named(self, choice: FissionChoice) -> str:
        return str(choice.pieces)


def fission_function(
    function: Callable[..., Any], jit_options: Mapping[str, Any], plan_settings: PlanSettings
) -> FissionFunction:
    """Returns the function, planned in the fewest pieces that meet its budget. Raises InputError if
    the settings have no memory budget, or a plan, or turn planning off.
    """
    if (
        plan_settings.options.budget_bytes is None
        or plan_settings.plan is not None
        or not plan_settings.enabled
    ):
        raise InputError(
            "fission=True chooses the fewest pieces that fit memory_budget=; give memory_budget=, "
            "and leave out plan= and enabled=False"
        )
    return FissionFunction(function, jit_options, plan_settings)


def compiled_cost(lowered: jax.stages.Lowered) -> tuple[int, float]:
    """Compiles in XLA's own order; returns (device's total bytes, predicted seconds of a step), for
    which `cost_in_pieces` may measure on a CPU.
    """
    compiled = lowered.compile()
    chip = devices_of(lowered)[0]
    target = platform_of_jax(chip.platform).name
    module = module_from_bytes(final_module(compiled))
    cost = cost_in_pieces(target, chip.device_kind, module)
    return assigned_bytes(compiled), cost.run_seconds(module, temporary_bytes(compiled))


class _PiecesSearch:
    """The search for the number of pieces of an axis in which a function runs for one signature."""

    def __init__(
        self,
        function: Callable[..., Any],
        jit_options: Mapping[str, Any],
        plan_settings: PlanSettings,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        assert plan_settings.options.budget_bytes is not None
        self._function, self._jit_options, self._plan_settings = (
            function,
            dict(jit_options),
            plan_settings,
        )
        self._args, self._kwargs = args, kwargs
        self._shardings = leaf_shardings(args, kwargs, jit_options.get("in_shardings"))
        self._budget = plan_settings.options.budget_bytes
        self._trials: dict[int, PiecesTrial] = {}
        self._planned: dict[int, PlannedFunction] = {}
        self._plans: dict[int, FissionPlan] = {}
        self._reason = ""

    def run(self) -> tuple[FissionChoice, PlannedFunction]:
        """Returns (what is chosen for the signature, the planned function in that many pieces).
        Raises BudgetError if nothing tried meets the budget.
        """
        pieces = self._fewest_unplanned()
        if pieces is None:
            least = min(t.xla_bytes for t in self._trials.values())
            good = [n for n, t in self._trials.items() if t.xla_bytes <= (1 + _LITTLE) * least]
            pieces = min(good)
        if not self._plans_within(pieces):
            reached = [t.planned_bytes or t.xla_bytes for t in self._trials.values()]
            raise BudgetError(self._budget, min(reached), self._reason)
        while pieces > 1 and self._plans_within(fewer := self._fewer(pieces)):
            if self._trials[fewer].seconds > self._trials[pieces].seconds:
                break
            pieces = fewer
        trials = tuple(self._trials[n] for n in sorted(self._trials))
        plan = self._plans[pieces] if pieces > 1 else None
        return FissionChoice(pieces, trials, plan, self._reason), self._planned[pieces]

    def _fewer(self, pieces: int) -> int:
        return max(n for n in self._trials if n < pieces)

    def _fewest_unplanned(self) -> int | None:
        """Compiles with 1, 2, 4, ... pieces and records the trials; returns the first number with
        which XLA's own order meets the budget. None if none does before more pieces save less than
        1 %, or if nothing can be cut; the reason for that is recorded too.
        """
        self._compile(1)
        if self._trials[1].xla_bytes <= self._budget:
            return 1
        try:
            self._jitted(2).trace(*self._args, **self._kwargs)
        except InputError as error:
            self._reason = str(error)
            return None
        units = max(region.units for region in self._plans[2].regions)
        pieces, before = 1, self._trials[1].xla_bytes
        while pieces < units:
            pieces = min(2 * pieces, units)
            self._compile(pieces)
            total = self._trials[pieces].xla_bytes
            if total <= self._budget:
                return pieces
            if total > (1 - _LITTLE) * before:
                break
            before = total
        return None

    def _in(self, pieces: int) -> Callable[..., Any]:
        if pieces == 1:
            return self._function
        cut = functools.partial(self._plans.__setitem__, pieces)
        return in_pieces(self._function, pieces, cut, self._shardings)

    def _jitted(self, pieces: int) -> Any:
        return own_jit(self._in(pieces), **self._jit_options)

    def _compile(self, pieces: int) -> None:
        """Compiles the function in `pieces` pieces in XLA's own order, and records the trial."""
        lowered = self._jitted(pieces).lower(*self._args, **self._kwargs)
        total, seconds = compiled_cost(lowered)
        self._trials[pieces] = PiecesTrial(pieces, total, seconds, seconds)

    def _plans_within(self, pieces: int) -> bool:
        """Plans and compiles the function in `pieces` pieces; returns whether it meets the budget.
        Updates the trial, and keeps the function if it does.
        """
        function = planned_function(self._in(pieces), self._jit_options, self._plan_settings)
        trial = self._trials[pieces]
        try:
            compiled = function.lower(*self._args, **self._kwargs).compile()
        except BudgetError as error:
            self._trials[pieces] = dataclasses.replace(trial, planned_bytes=error.least_bytes)
            return False
        self._planned[pieces] = function
        overhead = 0.0 if compiled.plan is None else compiled.plan.overhead
        self._trials[pieces] = dataclasses.replace(
            trial,
            planned_bytes=assigned_bytes(compiled.stage),
            seconds=(1 + overhead) * trial.xla_seconds,
        )
        return True
