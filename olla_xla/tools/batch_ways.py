"""Ways to fit a batch into a memory: XLA's order, planned, with recomputation, host memory."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax

import olla_xla.planner as planner
from olla_xla.compile import decorator
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.captured import Captured
from olla_xla.compile.compiles import Applied, Compiles
from olla_xla.compile.events import withheld
from olla_xla.compile.outcomes import Outcome, chosen
from olla_xla.compile.planned import compile_given
from olla_xla.compile.refused import is_refusal, refused_bytes
from olla_xla.errors import BudgetError
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan

Make = Callable[[int], Any]
"""From a batch size to the step lowered, or to (the jitted step, a tuple of arguments)."""
Progress = Callable[[str], None]

_QUICK = {"xla_backend_optimization_level": 0}
"""Compiler options: nothing is run, and memory does not depend on the machine code."""

_APART = 0.7
"""Largest ratio of two sizes, the smaller to the larger, for a line through them."""


class Batches:
    """Compiles one step for several batch sizes, remembers their schedules, and counts compiles.

    Args:
      make: gives the step for a size. memory: bytes. progress: called with a line at each compile.

    Attributes:
      memory: a device's memory for the step, in bytes.
      points: (name of the way to compile, batch size, predicted total bytes), in order.
      compiles: how many were made, up to the schedule or in full; without those that XLA refused.
      refusals: how many XLA refused, since the size does not fit its device. It does so before code
        generation, which takes longest: a refusal on a TPU takes a tenth of a compile.
    """

    def __init__(self, make: Make, memory: int, progress: Progress) -> None:
        self.make, self.memory, self.progress = make, memory, progress
        self.compiles = self.refusals = 0
        self.points: list[tuple[str, int, int]] = []
        self._captured: dict[int, Captured] = {}

    def captured(self, batch: int) -> Captured:
        """Returns the module that XLA schedules for a batch size; compiles it at the first call."""
        if batch not in self._captured:
            self.progress(f"batch {batch:,}: compiling as far as XLA's schedule")
            with contextlib.closing(self.lowered(batch)) as compiles:
                self._captured[batch] = compiles.capture()
        return self._captured[batch]

    def lowered(self, batch: int) -> Compiles:
        """Lowers the step for a batch size, to be compiled; counts as one compile."""
        self.compiles += 1
        return Compiles(self.step(batch), _QUICK, {})

    def step(self, batch: int) -> jax.stages.Lowered:
        """Calls `make` for a batch size, and lowers the step that it gives unless it is lowered."""
        made = self.make(batch)
        return made[0].lower(*made[1]) if isinstance(made, tuple) else made

    def is_captured(self, batch: int) -> bool:
        """Whether XLA's schedule is known for a batch size, so that totals can be predicted."""
        return batch in self._captured

    def keep(self, batch: int, captured: Captured) -> None:
        """Stores the schedule that a full compile gave for a batch size, unless one is known."""
        self._captured.setdefault(batch, captured)

    def known(self) -> list[int]:
        """Returns the largest batch size whose schedule is known, after one that is far smaller.
        The latter is at most 0.7 times as large, and left out where there is none; [] for none.
        """
        sizes = sorted(self._captured)
        lesser = [b for b in sizes if b <= _APART * sizes[-1]] if sizes else []
        return [lesser[-1], sizes[-1]] if lesser else sizes[-1:]

    def is_refusal(self, error: Exception) -> bool:
        """Whether an error is XLA's refusal of a size; False until a schedule is known."""
        return any(is_refusal(error, captured.platform) for captured in self._captured.values())

    def refused(self) -> None:
        """Counts the last compile as one that XLA refused for lack of memory."""
        self.compiles -= 1
        self.refusals += 1

    def point(self, way: str, batch: int, size: int) -> None:
        """Adds (name of a way to compile, batch size, predicted bytes) to `points`, once."""
        if (way, batch, size) not in self.points:
            self.points.append((way, batch, size))


class NotCompiled(Exception):
    """Raised if a batch size cannot be compiled in one way (planned, ...); the message says why."""


class BatchWay(abc.ABC):
    """A way to compile a step (XLA's order, a plan's, with recomputation), and its totals by batch.

    Attributes:
      name: of the way.
      margin: fraction by which a total may exceed what a line through known totals predicts, since
        a search does not always find as much; the first size that is compiled allows for it.
      host_bytes: batch size -> XLA's total in host memory; compiled sizes that have any.
    """

    name = "xla"
    margin = 0.0

    def __init__(self, work: Batches) -> None:
        self.work = work
        self.host_bytes: dict[int, int] = {}
        self._assigned: dict[int, int] = {}
        self._unmet: dict[int, int] = {}  # bytes above the memory, where XLA gives no total

    @abc.abstractmethod
    def predicted(self, batch: int) -> int:
        """Predicts the step's total bytes for a batch size, in this way of compiling."""

    @abc.abstractmethod
    def compiled(self, batch: int) -> int | None:
        """Compiles a batch size this way. Returns XLA's total bytes, None if no plan meets the
        budget. Raises NotCompiled if the executable would not run the plan.
        """

    @abc.abstractmethod
    def on_line(self) -> dict[int, int]:
        """Returns the totals predicted so far, by which others are extrapolated: size -> bytes."""

    def exact(self) -> dict[int, int]:
        """Returns XLA's totals of compiled sizes: size -> bytes; {} if they are not linear."""
        return self._assigned

    def learn(self, batch: int) -> None:
        """Predicts the total of a compiled size, unless known, so that others are extrapolated."""
        self.predicted(batch)

    def overhead(self, batch: int) -> float:
        """Returns the predicted time that recomputation adds, as a fraction of the step's."""
        return 0.0

    def assigned(self, batch: int) -> int:
        """Returns XLA's total in bytes for a batch size, compiled this way at the first call.
        If XLA refuses it, the total that its message names; if there is none, or no plan fits, a
        prediction; both above the memory. Raises NotCompiled as `compiled` does.
        """
        if batch not in self._assigned | self._unmet:
            self.work.progress(f"batch {batch:,}, {self.name}: compiling")
            size = None
            try:
                size = self.compiled(batch)
            except jax.errors.JaxRuntimeError as error:
                if not self.work.is_refusal(error):
                    raise
                self.work.refused()
                if said := refused_bytes(error):  # rounded
                    size = max(said, self.work.memory + 1)
            if size is not None:
                self._assigned[batch] = size
            else:
                known = self.work.is_captured(batch)
                least = self.predicted(batch) if known else 0
                self._unmet[batch] = max(least, self.work.memory + 1)
        return (self._assigned | self._unmet)[batch]

    def is_compiled(self, batch: int) -> bool:
        """Whether the total that `assigned` returns is XLA's own, not a prediction."""
        return batch in self._assigned


class Xla(BatchWay):
    """The way "xla" to compile a step for a batch size: in XLA's own order, without a plan."""

    def __init__(self, work: Batches) -> None:
        super().__init__(work)
        self._simulated: dict[int, int] = {}

    def predicted(self, batch: int) -> int:
        """Returns a batch size's total bytes by simulating XLA's assignment in its own order."""
        if batch not in self._simulated:
            captured = self.work.captured(batch)
            module = scheduled_module(captured.module)
            state = PlannedModule(module, captured.platform)
            self._simulated[batch] = state.simulate().total_bytes
        return self._simulated[batch]

    def on_line(self) -> dict[int, int]:
        """Returns the totals predicted so far in XLA's own order: batch size -> bytes."""
        return self._simulated

    def compiled(self, batch: int) -> int | None:
        """Compiles a batch size in XLA's own order; stores its schedule, returns XLA's total."""
        with contextlib.closing(self.work.lowered(batch)) as compiles:
            captured, compiled = compiles.captured()
        self.work.keep(batch, captured)
        return assigned_bytes(compiled)


class Planned(BatchWay):
    """The way "planned" to compile a step for a batch size: in an order that saves memory."""

    name = "planned"

    def __init__(self, work: Batches, options: PlanOptions) -> None:
        super().__init__(work)
        self.options = options
        self._plans: dict[int, Plan | int] = {}
        self._last: Plan | None = None

    def plan(self, batch: int) -> Plan | int:
        """Returns a batch size's plan, made once; the least bytes if no plan meets the budget."""
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
        """Predicts a batch size's total bytes as planned; the least found if none fits a budget."""
        return _bytes(self.plan(batch))

    def compiled(self, batch: int) -> int | None:
        """Compiles a batch size with its plan; returns XLA's total, or None if no plan fits."""
        plan = self._plans.get(batch)
        if isinstance(plan, int):
            return None
        if plan is None:
            return self._within(batch)
        self.work.compiles += 1
        # Without a budget: the caller compares XLA's total with the memory.
        outcome = compile_given(self.work.step(batch), plan, PlanOptions(), compiler_options=_QUICK)
        return self._total(batch, outcome)

    def on_line(self) -> dict[int, int]:
        """Returns the predicted totals of the plans made so far: batch size -> bytes."""
        return {batch: _bytes(plan) for batch, plan in self._plans.items()}

    def _within(self, batch: int) -> int | None:
        """Plans and compiles a batch size in one compile, in which XLA's schedule is replaced.
        Stores schedule, plan and point. Returns XLA's total, or None if no plan meets the budget.
        """
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

        with contextlib.closing(compiles):
            compiled = compiles.handed_over("", answer)
            batch_plan = self._plans[batch]
            self.work.point(self.name, batch, _bytes(batch_plan))
            if isinstance(batch_plan, int):
                return None
            if batch_plan.keeps_xla:
                return assigned_bytes(compiled)
            ((captured, objects),) = seen
            applied = Applied(compiled, objects, True) if objects else None
            applied = applied or compiles.judged(compiled, batch_plan)
            return self._total(batch, chosen(compiles, batch_plan, applied, captured))

    def _total(self, batch: int, outcome: Outcome) -> int:
        """XLA's total bytes for the executable that a user gets: planned, or XLA's own if smaller.
        Raises NotCompiled if the planned executable was rejected, or planning failed.
        """
        if outcome.objection or outcome.error is not None:
            raise NotCompiled(f"batch {batch:,} is not compiled as planned: {outcome.reason}")
        return assigned_bytes(outcome.compiled)

    def overhead(self, batch: int) -> float:
        """Returns the predicted time that recomputation adds, a fraction; 0.0 if no plan fits."""
        plan = self.plan(batch)
        return 0.0 if isinstance(plan, int) else plan.overhead


def _bytes(found: Plan | int) -> int:
    return found if isinstance(found, int) else found.predicted_bytes


class Recomputed(Planned):
    """The way "recomputed" to compile a step for a batch size: a plan that may recompute values.

    Args:
      work: the step's compiles. options: of plans, with the device's memory as their budget.
    """

    name = "recomputed"
    margin = 0.005

    def __init__(self, work: Batches, options: PlanOptions) -> None:
        super().__init__(work, options)
        self._least = Planned(work, dataclasses.replace(options, memory_budget=None))

    def predicted(self, batch: int) -> int:
        """Predicts a batch size's total bytes: of its plan for the memory budget, if one was made.
        Else the least that recomputation reaches: a plan for a budget recomputes no more than it
        must, so the totals of such plans are not linear in the batch.
        """
        if batch in self._plans:
            return super().predicted(batch)
        return self._least.predicted(batch)

    def on_line(self) -> dict[int, int]:
        """Returns the least totals predicted so far with recomputation: batch size -> bytes."""
        missed = {batch: size for batch, size in self._plans.items() if isinstance(size, int)}
        return self._least.on_line() | missed

    def exact(self) -> dict[int, int]:
        """Returns {}: XLA's totals do not grow linearly, as plans for a budget fill the memory."""
        return {}

    def learn(self, batch: int) -> None:
        """Plans a compiled size for the least total, unless known, to extrapolate others by it."""
        if batch not in self.on_line():
            self._least.predicted(batch)


class WithHost(Planned):
    """The way "spilled" to compile a step: with recomputation, and scan residuals in host memory.
    Scan residuals are arrays that one loop writes slice by slice for a later one.

    Args:
      work: the step's compiles, of functions with arguments. options: without a memory budget, so
        that totals, the least in the allowed time, grow linearly. most: bytes of host memory.
    """

    name = "spilled"
    margin = -0.05  # totals are predicted as if nothing was in host memory

    def __init__(self, work: Batches, options: PlanOptions, most: int) -> None:
        super().__init__(work, options)
        self._most, self._added = most, dict[int, float]()

    def predicted(self, batch: int) -> int:
        """Returns XLA's total of a batch size if compiled, else predicted without host memory."""
        return self._assigned.get(batch) or super().predicted(batch)

    def compiled(self, batch: int) -> int:
        """Compiles a batch size with arrays kept in host memory; returns XLA's total on a device.
        Sets `host_bytes` and `overhead`; raises NotCompiled if nothing is kept in host memory.
        """
        self.work.compiles += 1
        step, arguments = self.work.make(batch)
        options = dataclasses.asdict(self.options)
        with withheld():
            choice = decorator.plan(step, host_budget=self._most, **options).choice(*arguments)
        if not choice.chosen.host_bytes:
            raise NotCompiled(choice.host_reason)
        self.host_bytes[batch], self._added[batch] = choice.chosen.host_bytes, choice.overhead
        return choice.chosen.bytes

    def overhead(self, batch: int) -> float:
        """Returns the predicted time that a compiled size adds, waits included, by XLA's time."""
        return self._added[batch]
