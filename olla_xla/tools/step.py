"""Plans one model, or dumped module, for one target: what `olla_xla plan` and `sweep` show."""

from __future__ import annotations

import dataclasses
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from hlo.backend import platform
from hlo.buffer_assignment import BufferAssignment
from hlo.dumps.lowered import LoweredModule
from olla_xla.analysis.compiled_leaves import device_count, donatable
from olla_xla.analysis.ran_again import RanAgain
from olla_xla.analysis.remedies import JittedFunction, Plannable
from olla_xla.compile import decorator
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.compile.assignment import AssignmentReport, check_compiled, read_assignment
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.outcomes import Outcome
from olla_xla.compile.planned_function import PlanWarning
from olla_xla.compile.refused import is_refusal, refused_executable
from olla_xla.errors import OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.targets.target import Target
from olla_xla.tools.capture import Compiled, capture
from olla_xla.tools.dumped import DumpedStage
from olla_xla.tools.models import BuiltModel, tracing

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class PlannedModel:
    """A model compiled with its plan; nothing was run.

    Attributes:
      plan: the plan in use, XLA's own order when `planned` is False.
      planned: True when the executable runs another order than XLA's own. reason: why not, or "".
      memory_optimized_bytes: XLA's assigned total under its scheduler for memory; None where it has
        none (GPU) or was not asked.
      assignment: XLA's buffer assignment of the executable. report: its comparison with the plan.
      module: the executable's serialized HloModuleProto.
      scheduled: the module as XLA scheduled it itself, serialized; b"" if the step was not compiled
        a second time, without the plan.
      seconds: for tracing, compiling, planning and checking together.
      program: the step, for `analysis.remedies.remedy`.
      refused: whether XLA refuses its own order, which takes more memory than there is.
      devices: that run the step; sizes are of one of them.
      host: with a host budget, what lies in host memory, and what else was tried; else "".
      ran_again: what XLA's own rematerialization adds to its own order, or None.
    """

    plan: Plan
    planned: bool
    reason: str
    report: AssignmentReport
    module: bytes
    assignment: BufferAssignment
    memory_optimized_bytes: int | None = None
    scheduled: bytes = b""
    seconds: float = 0.0
    program: Plannable | None = None
    refused: bool = False
    devices: int = 1
    ran_again: RanAgain | None = None
    host: str = ""


def plan_model(
    model: BuiltModel,
    target: Target,
    options: PlanOptions,
    *,
    stage: Progress,
    progress: Progress,
    compare: bool = True,
    given: Plan | None = None,
    host_budget: int | str | None = None,
) -> PlannedModel:
    """Plans and compiles a model's step for a target, and checks XLA's buffer assignment.

    Args:
      model: the step. target: what to compile it for. options: limits and seed.
      stage: called with one line at each stage. progress: at each improvement.
      compare: also compile with XLA's scheduler for memory, where it has one.
      given: a plan to apply instead of looking for one. host_budget: as of `olla_xla.plan`.

    Raises:
      InputError: the step cannot be traced.
      VersionError: JAX is too old, or newer than what was tested.
      CheckError: XLA's buffer assignment contradicts the plan.
      PlanMismatchError: the given plan is of another program.
      OllaError: planning failed.
    """
    started = time.monotonic()
    arguments = target.place(model.arguments)
    settings = {**dataclasses.asdict(options), "host_budget": host_budget}
    with tracing(model.name):
        planned: Any = decorator.plan(model.step, plan=given, **settings, **model.jit_options)
        stage("tracing" if host_budget is None else "planning with values in host memory")
        lowered = planned.lower(*arguments)
        host = "" if host_budget is None else str(planned.choice(*arguments))
    stage("XLA compiles the step")
    with plan_progress(progress), warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)  # raised below
        compiled = lowered.compile()
    outcome = Outcome(compiled.stage, compiled.plan, compiled.planned, compiled.reason)

    def jitted() -> jax.stages.Lowered:
        return jax.jit(model.step, **model.jit_options).lower(*arguments)

    optimized = (lambda options: jitted().compile(options)) if compare else None
    static = model.jit_options.get("static_argnums") or ()
    left = donatable(compiled.stage, (static,) if isinstance(static, int) else static)
    program = JittedFunction(model.step, model.jit_options, arguments, {}, left)
    result = _beside(outcome, target, stage, started, lambda: _own(jitted(), target), optimized)
    devices = device_count(compiled.stage)
    return dataclasses.replace(result, program=program, devices=devices, host=host)


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
    `stage` and `progress` get lines at each stage and improvement; `given` is a plan to apply.

    Raises InputError if XLA cannot read the module; CheckError and PlanMismatchError as by
    `plan_model`; OllaError if XLA cannot compile the module, or planning failed.
    """
    started = time.monotonic()
    step = DumpedStage(module, target)
    stage("XLA compiles the module")
    with plan_progress(progress):
        outcome = step.planned(options, given)
    result = _beside(outcome, target, stage, started, step.captured, step.compiled)
    return dataclasses.replace(result, program=step, devices=module.devices)


def _own(lowered: jax.stages.Lowered, target: Target) -> Compiled:
    """Compiles a step with XLA's own schedule, and returns its modules and total bytes.
    If XLA refuses a step that does not fit, these are read from a dump, without an executable.
    """
    try:
        return capture(lowered)
    except Exception as error:
        if not is_refusal(error, target.platform):
            raise
    captured = Compiles(lowered, None, {}).capture()
    final, assignment = refused_executable(lowered, target.platform, {})
    return Compiled(
        captured.platform,
        captured.module,
        captured.alternative_orders,
        device_kind=captured.device_kind,
        assigned_bytes=assignment.total_bytes,
        final=final,
        is_refused=True,
    )


def _beside(
    outcome: Outcome,
    target: Target,
    stage: Progress,
    started: float,
    own: Callable[[], Compiled],
    optimized: Callable[[dict[str, Any]], jax.stages.Compiled] | None,
) -> PlannedModel:
    """Checks XLA's buffer assignment of a planned step; where another order or no rematerialization
    is in use, compiles it as XLA would, too. Raises OllaError if planning failed.

    Args:
      outcome: of the plan. target: what it is for. stage: called with each stage.
      started: when all began. own: compiles it in XLA's own order.
      optimized: compiles it with options, for XLA's scheduler for memory; None leaves that out.
    """
    plan, compiled = outcome.plan, outcome.compiled
    if plan is None:
        raise OllaError(f"planning failed: {outcome.reason}")
    stage("checking XLA's buffer assignment")
    planned_model = PlannedModel(
        plan=plan,
        planned=outcome.planned,
        reason=outcome.reason,
        report=check_compiled(compiled, plan),
        module=final_module(compiled),
        assignment=read_assignment(compiled, target.platform)[1],
    )
    if outcome.planned or plan.without_rematerialization:  # its XLA total is predicted
        stage("compiling with XLA's own schedule")
        captured = own()
        planned_model = dataclasses.replace(
            planned_model,
            plan=dataclasses.replace(plan, xla_bytes=captured.assigned_bytes),
            scheduled=captured.module,
            refused=captured.is_refused,
            ran_again=captured.ran_again,
        )
    scheduler = platform(target.platform).memory_scheduler
    if optimized is not None and scheduler is not None:
        stage("compiling with XLA's memory-optimized scheduler")
        total = assigned_bytes(optimized(dict(scheduler)))
        planned_model = dataclasses.replace(planned_model, memory_optimized_bytes=total)
    return dataclasses.replace(planned_model, seconds=time.monotonic() - started)


@contextmanager
def plan_progress(progress: Progress) -> Iterator[None]:
    """Context manager in which lines of this package's log, of any level, go to `progress` only."""
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
    """A logging handler that passes each record's message to `progress`."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress(record.getMessage())
