"""Ways in which a batch fits a memory: in XLA's order, planned, with recomputation."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable

import jax

import olla_xla.planner as planner
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.captured import Captured
from olla_xla.compile.compiles import Applied, Compiles
from olla_xla.compile.outcomes import Outcome, chosen
from olla_xla.compile.planned import compile_given
from olla_xla.compile.refused import is_refusal
from olla_xla.errors import BudgetError
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan

__all__ = [
    "Batches",
    "Make",
    "NotCompiled",
    "Planned",
    "Progress",
    "Recomputed",
    "Way",
    "Xla",
]

Make = Callable[[int], jax.stages.Lowered]
Progress = Callable[[str], None]

_QUICK = {"xla_backend_optimization_level": 0}
"""Compiler options: nothing is run, and machine code has no part in memory."""

_APART = 0.7
"""Part of the larger of two sizes that the other is at most, for a line through them."""


class Batches:
    """Batch sizes as XLA schedules them, and the totals that were predicted for them.

    Args:
      make: lowers the step for a size. progress: called with a line at each compile.

    Attributes:
      memory: what a device has for the step, in bytes.
      points: (way, batch, predicted bytes), in order.
      compiles: that were made so far, as far as a schedule or in full.
    """

    def __init__(self, make: Make, memory: int, progress: Progress) -> None:
        self.make, self.memory, self.progress = make, memory, progress
        self.compiles = 0
        self.points: list[tuple[str, int, int]] = []
        self._captured: dict[int, Captured] = {}

    def captured(self, batch: int) -> Captured:
        """A batch size as XLA schedules it."""
        if batch not in self._captured:
            self.progress(f"batch {batch:,}: compiling as far as XLA's schedule")
            compiles = self.lowered(batch)
            try:
                self._captured[batch] = compiles.capture()
            finally:
                compiles.forget()
        return self._captured[batch]

    def lowered(self, batch: int) -> Compiles:
        """A batch size that is about to be compiled, once."""
        self.compiles += 1
        return Compiles(self.make(batch), _QUICK, {})

    def is_captured(self, batch: int) -> bool:
        """Whether XLA has scheduled a batch size already."""
        return batch in self._captured

    def keep(self, batch: int, captured: Captured) -> None:
        """Keeps what XLA scheduled in a compile of its own accord."""
        self._captured.setdefault(batch, captured)

    def known(self) -> list[int]:
        """Two sizes whose schedules are at hand and that are apart; or fewer."""
        sizes = sorted(self._captured)
        lesser = [b for b in sizes if b <= _APART * sizes[-1]] if sizes else []
        return [lesser[-1], sizes[-1]] if lesser else sizes[-1:]

    def is_refusal(self, error: Exception) -> bool:
        """Whether XLA ended a compile as the size takes more than its device has."""
        return any(is_refusal(error, found.platform) for found in self._captured.values())

    def point(self, way: str, batch: int, size: int) -> None:
        """Notes a predicted total, once."""
        if (way, batch, size) not in self.points:
            self.points.append((way, batch, size))


class NotCompiled(Exception):
    """A size cannot be compiled in a way; it says why."""


class Way(abc.ABC):
    """A way to make a batch fit.

    Attributes:
      name: of the way.
      margin: part by which a total may come out above the line, as a search does not always get as
        low: the first size that is compiled allows for it.
    """

    name = "xla"
    margin = 0.0

    def __init__(self, work: Batches) -> None:
        self.work = work
        self._assigned: dict[int, int] = {}
        self._unmet: dict[int, int] = {}  # sizes for which there is nothing to run

    @abc.abstractmethod
    def predicted(self, batch: int) -> int:
        """The predicted total, nearly on a line; of what was planned, what the plan comes to."""

    @abc.abstractmethod
    def compiled(self, batch: int) -> int | None:
        """XLA's total of the batch, compiled this way; None where there is nothing to compile.

        Raises:
          NotCompiled: what was planned is not what would run.
        """

    @abc.abstractmethod
    def on_line(self) -> dict[int, int]:
        """Predicted totals that are known, of sizes that are nearly on a line."""

    def exact(self) -> dict[int, int]:
        """XLA's totals of sizes that were compiled, as far as they are on that line."""
        return self._assigned

    def learn(self, batch: int) -> None:
        """Predicts what `on_line` has of a size that was compiled."""
        self.predicted(batch)

    def overhead(self, batch: int) -> float:
        """Predicted time that is added, as a part of the step's."""
        return 0.0

    def assigned(self, batch: int) -> int:
        """XLA's total; where there is nothing to run, what was predicted, above the memory."""
        if batch not in self._assigned and batch not in self._unmet:
            self.work.progress(f"batch {batch:,}, {self.name}: compiling")
            try:
                size = self.compiled(batch)
            except jax.errors.JaxRuntimeError as error:
                if not self.work.is_refusal(error):
                    raise
                size = None
            if size is None:
                known = self.work.is_captured(batch)
                least = self.predicted(batch) if known else 0
                self._unmet[batch] = max(least, self.work.memory + 1)
            else:
                self._assigned[batch] = size
        return self._assigned.get(batch) or self._unmet[batch]

    def is_compiled(self, batch: int) -> bool:
        """Whether `assigned` is XLA's."""
        return batch in self._assigned


class Xla(Way):
    """XLA's own order."""

    def __init__(self, work: Batches) -> None:
        super().__init__(work)
        self._simulated: dict[int, int] = {}

    def predicted(self, batch: int) -> int:
        """As `Way.predicted`."""
        if batch not in self._simulated:
            captured = self.work.captured(batch)
            module = scheduled_module(captured.module)
            state = PlannedModule(module, captured.platform)
            self._simulated[batch] = state.simulate().total_bytes
        return self._simulated[batch]

    def on_line(self) -> dict[int, int]:
        """As `Way.on_line`."""
        return self._simulated

    def compiled(self, batch: int) -> int | None:
        """As `Way.compiled`."""
        compiles = self.work.lowered(batch)
        try:
            captured, compiled = compiles.captured()
        finally:
            compiles.forget()
        self.work.keep(batch, captured)
        return assigned_bytes(compiled)


class Planned(Way):
    """A planned order; that of the size before is one that competes."""

    name = "planned"

    def __init__(self, work: Batches, options: PlanOptions) -> None:
        super().__init__(work)
        self.options = options
        self._plans: dict[int, Plan | int] = {}
        self._last: Plan | None = None

    def plan(self, batch: int) -> Plan | int:
        """The plan for a batch, or the least that was reached where the budget cannot be met."""
        if batch not in self._plans:
            self._plans[batch] = self._made(self.work.captured(batch))
        return self._plans[batch]

    def _made(self, captured: Captured) -> Plan | int:
        last = self._last
        try:
            self._last = planner.plan_module(
                captured.module,
                self.options,
                target=captured.platform,
                alternative_orders=None if last is None else lambda: last.order,
                device_kind=captured.device_kind,
            )
        except BudgetError as error:
            return error.least_bytes
        return self._last

    def predicted(self, batch: int) -> int:
        """As `Way.predicted`."""
        return _bytes(self.plan(batch))

    def compiled(self, batch: int) -> int | None:
        """As `Way.compiled`."""
        found = self._plans.get(batch)
        if isinstance(found, int):
            return None
        if found is None:
            return self._within(batch)
        self.work.compiles += 1
        # With no budget: what XLA assigns is compared with it by the caller.
        outcome = compile_given(
            self.work.make(batch), found, PlanOptions(), compiler_options=_QUICK
        )
        return self._total(batch, found, outcome)

    def on_line(self) -> dict[int, int]:
        """As `Way.on_line`."""
        return {batch: _bytes(found) for batch, found in self._plans.items()}

    def _within(self, batch: int) -> int | None:
        """Plans inside of the one compile that then runs the plan."""
        compiles, seen = self.work.lowered(batch), []

        def answer(platform: str, module: bytes) -> bytes | None:
            captured = compiles.taken(platform, module, None)
            self.work.keep(batch, captured)
            plan = self._plans[batch] = self._made(captured)
            if isinstance(plan, int) or plan.keeps_xla:
                return None
            planned, objects = compiles.write(module, plan)
            seen.append((captured, objects))
            return None if objects else planned

        try:
            compiled = compiles.handed_over("", answer)
            found = self._plans[batch]
            self.work.point(self.name, batch, _bytes(found))
            if isinstance(found, int):
                return None
            if found.keeps_xla:
                return assigned_bytes(compiled)
            ((captured, objects),) = seen
            applied = Applied(compiled, objects, True) if objects else None
            applied = applied or compiles.judged(compiled, found)
            return self._total(batch, found, chosen(compiles, found, applied, captured))
        finally:
            compiles.forget()

    def _total(self, batch: int, plan: Plan, outcome: Outcome) -> int:
        if not outcome.planned and not plan.keeps_xla:
            raise NotCompiled(f"batch {batch:,} is not compiled as planned: {outcome.reason}")
        return assigned_bytes(outcome.compiled)

    def overhead(self, batch: int) -> float:
        """As `Way.overhead`."""
        found = self.plan(batch)
        return 0.0 if isinstance(found, int) else found.overhead


def _bytes(found: Plan | int) -> int:
    return found if isinstance(found, int) else found.predicted_bytes


class Recomputed(Planned):
    """A plan that computes things again, to fit.

    Args:
      work: the sizes. options: with the memory as the budget.
    """

    name = "recomputed"
    margin = 0.005

    def __init__(self, work: Batches, options: PlanOptions) -> None:
        super().__init__(work, options)
        self._least = Planned(work, dataclasses.replace(options, memory_budget=None))

    def predicted(self, batch: int) -> int:
        """As `Way.predicted`; before a plan, the least within the time that may be added.

        A plan that meets a budget computes no more again than it must: those are on no line.
        """
        if batch in self._plans:
            return super().predicted(batch)
        return self._least.predicted(batch)

    def on_line(self) -> dict[int, int]:
        """As `Way.on_line`: the least totals."""
        missed = {batch: found for batch, found in self._plans.items() if isinstance(found, int)}
        return self._least.on_line() | missed

    def exact(self) -> dict[int, int]:
        """As `Way.exact`: none, as what meets a budget is on no line."""
        return {}

    def learn(self, batch: int) -> None:
        """As `Way.learn`."""
        if batch not in self.on_line():
            self._least.predicted(batch)
