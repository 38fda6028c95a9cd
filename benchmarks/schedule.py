"""Measures planning on real train steps: gap, total, seconds, and seconds against XLA's compile.

The graphs are made on the spot: each model is compiled for each target, which gives the module as
XLA scheduled it, XLA's assigned total, and the seconds its compile takes. Then it is planned, as
`olla_xla.plan` would, on the same machine.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hlo.module import module_from_bytes
from olla_xla import targets
from olla_xla.check.executable import check_executable, results_digest
from olla_xla.errors import InputError, OllaError
from olla_xla.planner import plan_module
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import StopReason
from olla_xla.tools import models
from olla_xla.tools.capture import capture

if TYPE_CHECKING:
    from olla_xla.tools.capture import Compiled

_SHORT = 10.0  # seconds after which no plan may be above XLA's order
_COMPUTE = {"resnet50": "momentum", "vgg11": "sgd"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A train step and what it is compiled for."""

    model: str
    batch_size: int
    optimizer: str
    target: str

    @property
    def name(self) -> str:
        """E.g. "gpt/32/adam/h100"."""
        return f"{self.model}/{self.batch_size}/{self.optimizer}/{self.target}"


CASES = tuple(
    Case(model, batch_size, _COMPUTE.get(model, "adam"), target)
    for target in ("cpu", "h100")
    for model in ("resnet50", "vgg11", "efficientnet_b0", "gpt", "llama_scan", "lstm")
    for batch_size in (1, 32)
)


SCANS = ("llama_scan", "llama_scan_saved", "gpt_scan", "lstm_scan")
"""The zoo's models that scan over layers or time."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One case as measured; sizes in bytes, `loss` and `gap` as shares of one.

    Attributes:
      case: its name. operators: instructions of the entry computation.
      xla_bytes: XLA's assigned total of its own order. planned_bytes: predicted total of ours.
      short_bytes: predicted total of the plan that 10 s give.
      peak_bytes: least lifetime peak found. bound_bytes: certified bound on it.
      gap: of the lifetime peak. loss: of the assignment.
      error: relative, of the predicted total of XLA's order against its assigned one.
      seconds: of planning. compile_seconds: of XLA's compile. ratio: of the two.
      instructions: of the whole module, those inside fusions too.
      referee_seconds: of the referee on XLA's own executable, its results as scheduled included.
      referee_ratio: of those to XLA's compile.
      stopped_by: why the search ended.
    """

    case: str
    operators: int
    xla_bytes: int
    planned_bytes: int
    short_bytes: int
    peak_bytes: int
    bound_bytes: int
    gap: float
    loss: float
    error: float
    seconds: float
    compile_seconds: float
    ratio: float
    instructions: int
    referee_seconds: float
    referee_ratio: float
    stopped_by: StopReason


@dataclasses.dataclass(frozen=True)
class Summary:
    """All cases together; shares of one.

    Attributes:
      cases: how many. never_worse: no plan of 10 s is above XLA's order.
      within_1_percent, within_5_percent: cases whose certified gap is at most that.
      mean_loss: of the assignment. median_seconds: of planning. median_ratio: to XLA's compile.
      median_referee_ratio: of the referee to XLA's compile.
    """

    cases: int
    never_worse: bool
    within_1_percent: float
    within_5_percent: float
    mean_loss: float
    median_seconds: float
    median_ratio: float
    median_referee_ratio: float


def parse_cases(names: Sequence[str]) -> list[Case]:
    """The cases named, as "model/batch/optimizer/target". Raises InputError."""
    found = []
    for name in names:
        parts = name.split("/")
        if len(parts) != 4 or not parts[1].isdigit():
            raise InputError(f"case {name!r} must read model/batch_size/optimizer/target")
        found.append(Case(parts[0], int(parts[1]), parts[2], parts[3]))
    return found


def measure(case: Case, options: PlanOptions) -> Row:
    """Compiles and plans one case.

    Raises:
      OllaError: it cannot be built, compiled or planned.
    """
    captured, compile_seconds = capture_case(case)
    xla_bytes = captured.assigned_bytes
    referee_seconds = referee_time(captured)

    def plan_within(options: PlanOptions) -> Plan:
        return plan_module(
            captured.module,
            options,
            target=captured.platform,
            xla_bytes=xla_bytes,
            alternative_orders=captured.alternative_orders,
        )

    plan = short = plan_within(options)
    if plan.seconds > _SHORT:
        short = plan_within(dataclasses.replace(options, time_limit=_SHORT))
    return Row(
        case=case.name,
        operators=max(len(order) for order in plan.order.values()),
        xla_bytes=xla_bytes,
        planned_bytes=plan.predicted_bytes,
        short_bytes=short.predicted_bytes,
        peak_bytes=plan.least_peak_bytes,
        bound_bytes=plan.lower_bound_bytes,
        gap=plan.gap,
        loss=plan.loss,
        error=plan.xla_predicted_bytes / max(xla_bytes, 1) - 1,
        seconds=plan.seconds,
        compile_seconds=compile_seconds,
        ratio=plan.seconds / compile_seconds,
        instructions=sum(
            len(c.instructions) for c in module_from_bytes(captured.final).computations
        ),
        referee_seconds=referee_seconds,
        referee_ratio=referee_seconds / compile_seconds,
        stopped_by=plan.stopped_by,
    )


def capture_case(case: Case) -> tuple[Compiled, float]:
    """(XLA's own compile of a case, the seconds that it took)."""
    import jax

    model = models.build(case.model, batch_size=case.batch_size, optimizer=case.optimizer)
    with models.tracing(case.model):
        arguments = targets.target(case.target).place(model.arguments)
        lowered = jax.jit(model.step, **model.jit_options).lower(*arguments)
    started = time.monotonic()
    captured = capture(lowered)
    return captured, time.monotonic() - started


def referee_time(captured: Compiled) -> float:
    """Seconds that the referee takes for XLA's own executable, as for a planned one.

    Raises:
      CheckError: it objects.
    """
    started = time.monotonic()
    results = results_digest(captured.module, captured.platform)
    check_executable(
        captured.final, captured.platform, results=results, assignment=captured.assignment
    )
    return time.monotonic() - started


def warm_up(options: PlanOptions) -> None:
    """Loads the machine code of the search once in a process; no measurement includes that."""
    measure(Case("mlp", 8, "adam", "cpu"), dataclasses.replace(options, step_limit=2000))


def summarise(rows: Sequence[Row]) -> Summary:
    """The figures of all rows together; at least one row."""
    if not rows:
        raise OllaError("no case could be measured")
    count = len(rows)
    return Summary(
        cases=count,
        never_worse=all(r.short_bytes <= r.xla_bytes * (1 + 1e-6) for r in rows),
        within_1_percent=sum(r.gap <= 0.01 for r in rows) / count,
        within_5_percent=sum(r.gap <= 0.05 for r in rows) / count,
        mean_loss=statistics.fmean(r.loss for r in rows),
        median_seconds=statistics.median(r.seconds for r in rows),
        median_ratio=statistics.median(r.ratio for r in rows),
        median_referee_ratio=statistics.median(r.referee_ratio for r in rows),
    )
