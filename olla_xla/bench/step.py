"""Plans one model, or dumped module, for one target: what `olla_xla plan` and `table` show."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import olla_xla
from hlo.lowered import LoweredModule
from olla_xla.bench.models import BuiltModel, tracing
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.compile.assignment import AssignmentReport, check_compiled, dump_options
from olla_xla.compile.capture import capture
from olla_xla.compile.compiles import MEMORY_OPTIMIZED
from olla_xla.compile.dumped import DumpedStage
from olla_xla.errors import OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.targets.target import Target

__all__ = ["PlannedModel", "plan_dump", "plan_model", "plan_progress"]

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class PlannedModel:
    """A model compiled with its plan; nothing was run.

    Attributes:
      plan: the plan in use, XLA's own order when `planned` is False.
      planned: True when the executable runs another order than XLA's own. reason: why not, or "".
      memory_optimized_bytes: XLA's assigned total under its scheduler for memory; None where it has
        none (GPU) or was not asked.
      report: the comparison of XLA's buffer assignment with the plan.
      module: the executable's serialized HloModuleProto.
      scheduled: the module as XLA scheduled it itself, serialized; b"" when `planned` is False.
      seconds: of it all: tracing, compiling, planning, checking.
    """

    plan: Plan
    planned: bool
    reason: str
    memory_optimized_bytes: int | None
    report: AssignmentReport
    module: bytes
    scheduled: bytes
    seconds: float


def plan_model(
    model: BuiltModel,
    target: Target,
    options: PlanOptions,
    *,
    stage: Progress,
    progress: Progress,
    compare: bool = True,
    given: Plan | None = None,
) -> PlannedModel:
    """Plans and compiles a model's step.

    Args:
      model: the step. target: what to compile it for. options: limits and seed.
      stage: called with one line at each stage. progress: at each improvement.
      compare: also compile with XLA's scheduler for memory, where it has one.
      given: a plan to apply instead of looking for one.

    Raises:
      InputError: the step cannot be traced.
      VersionError: JAX is too old.
      CheckError: XLA's buffer assignment contradicts the plan.
      PlanMismatchError: the given plan is of another program.
      OllaError: planning failed.
    """
    import jax

    started = time.monotonic()
    arguments = target.place(model.arguments)
    settings = dataclasses.asdict(options)
    with tracing(model.name):
        planned = olla_xla.plan(model.step, plan=given, **settings, **model.jit_options)
        stage("tracing")
        lowered = planned.lower(*arguments)
    with tempfile.TemporaryDirectory() as folder:
        # The CPU backend hands its buffer assignment over with the executable.
        dump = dump_options(Path(folder)) if target.platform == "cuda" else None
        stage("compiling and planning")
        with plan_progress(progress), warnings.catch_warnings():
            warnings.simplefilter("ignore", olla_xla.PlanWarning)  # raised below
            compiled = lowered.compile(compiler_options=dump)
        if compiled.plan is None:
            raise OllaError(f"planning failed: {compiled.reason}")
        stage("checking XLA's buffer assignment")
        report = check_compiled(compiled, compiled.plan, Path(folder))
    plan, optimized, scheduled = compiled.plan, None, b""
    if compiled.planned:  # its XLA total is predicted
        stage("compiling with XLA's own schedule")
        own = capture(jax.jit(model.step, **model.jit_options).lower(*arguments))
        plan, scheduled = dataclasses.replace(plan, xla_bytes=own.assigned_bytes), own.module
    scheduler = MEMORY_OPTIMIZED.get(target.platform)
    if compare and scheduler is not None:
        stage("compiling with XLA's memory-optimized scheduler")
        plain = jax.jit(model.step, **model.jit_options).lower(*arguments)
        optimized = assigned_bytes(plain.compile(compiler_options=dict(scheduler)))
    return PlannedModel(
        plan=plan,
        planned=compiled.planned,
        reason=compiled.reason,
        memory_optimized_bytes=optimized,
        report=report,
        module=final_module(compiled.stage),
        scheduled=scheduled,
        seconds=time.monotonic() - started,
    )


def plan_dump(
    module: LoweredModule,
    target: Target,
    options: PlanOptions,
    *,
    stage: Progress,
    progress: Progress,
    given: Plan | None = None,
) -> PlannedModel:
    """Plans and compiles a module that was dumped before XLA's pipeline; see `plan_model`.

    Raises:
      InputError: XLA cannot read the module.
      CheckError, PlanMismatchError: as there.
      OllaError: XLA cannot compile the module, or planning failed.
    """
    started = time.monotonic()
    step = DumpedStage(module, target)
    with tempfile.TemporaryDirectory() as folder:
        dump = dump_options(Path(folder)) if target.platform == "cuda" else None
        stage("compiling and planning")
        with plan_progress(progress):
            outcome = step.planned(options, given, dump)
        if outcome.plan is None:
            raise OllaError(f"planning failed: {outcome.reason}")
        stage("checking XLA's buffer assignment")
        report = check_compiled(outcome.compiled, outcome.plan, Path(folder))
    plan, optimized, scheduled = outcome.plan, None, b""
    if outcome.planned:
        stage("compiling with XLA's own schedule")
        own = step.captured()
        plan, scheduled = dataclasses.replace(plan, xla_bytes=own.assigned_bytes), own.module
    scheduler: dict[str, Any] | None = MEMORY_OPTIMIZED.get(target.platform)
    if scheduler is not None:
        stage("compiling with XLA's memory-optimized scheduler")
        optimized = assigned_bytes(step.compiled(dict(scheduler)))
    return PlannedModel(
        plan=plan,
        planned=outcome.planned,
        reason=outcome.reason,
        memory_optimized_bytes=optimized,
        report=report,
        module=final_module(outcome.compiled),
        scheduled=scheduled,
        seconds=time.monotonic() - started,
    )


@contextmanager
def plan_progress(progress: Progress) -> Iterator[None]:
    """Within it the planner's log, each improvement of the search included, goes to `progress`."""
    logger = logging.getLogger("olla_xla")
    handler = _Handler(progress)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _Handler(logging.Handler):
    """Hands each record's message on."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress(record.getMessage())
