"""Compares kernels of planned steps with those of XLA's own order: which arrays share memory.

Kernels whose rounding may depend on it must have the same arrays in one place in both. Exit code 1
if one has not, or a case fails. A step is compiled twice, by `jax.jit` and by `olla_xla.plan`, and
XLA's own buffer assignment says for both which arrays of a kernel share memory.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

import olla_xla
from benchmarks.driver import Column, Flags, fixed, measured, table_of
from benchmarks.dumped_assignment import dumped_assignment
from benchmarks.schedule import CASES, SCANS, Case, parse_cases
from hlo.module import module_from_bytes
from olla_xla import targets
from olla_xla.check.executable import KernelMemory, check_executable
from olla_xla.cli.commands import shared
from olla_xla.cli.report.tables import megabytes, percent
from olla_xla.compile.accounting import assigned_bytes, assignment_proto, final_module
from olla_xla.compile.assignment import dump_options
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.tools import models


@dataclasses.dataclass(frozen=True)
class KernelsRow:
    """One step.

    Attributes:
      case: its name. planned: whether a plan is in use.
      kernels: number of kernels in the planned module whose rounding may depend on memory.
      steered: how many of them the plan binds to operands or keeps from overwriting one.
      differing: names of those that share memory otherwise than in XLA's own executable.
      simulated: names of those for which the plan predicts XLA's own sharing wrongly.
      xla_bytes, bytes: totals as assigned.
      xla_seconds, seconds: predicted of one run, on a GPU as its streams run it.
    """

    case: str
    planned: bool
    kernels: int
    steered: int
    differing: tuple[str, ...]
    simulated: tuple[str, ...]
    xla_bytes: int
    bytes: int
    xla_seconds: float
    seconds: float

    @property
    def longer(self) -> float:
        """Predicted extra time of a planned run, as a fraction of that in XLA's own order."""
        return self.seconds / self.xla_seconds - 1


def measure(case: Case, options: PlanOptions) -> KernelsRow:
    """Compiles a step in both ways.

    Raises:
      OllaError: it cannot be built or compiled.
    """
    import jax

    model = models.build(case.model, batch_size=case.batch_size, optimizer=case.optimizer)
    target = targets.target(case.target)
    cost = CostModel(device(target.platform, target.kind), target.platform)
    given = dataclasses.asdict(options)
    with models.tracing(case.model):
        arguments = target.place(model.arguments)
        own, own_kernels = _compiled(
            jax.jit(model.step, **model.jit_options), arguments, target.platform
        )
        planned, kernels = _compiled(
            olla_xla.plan(model.step, **model.jit_options, **given), arguments, target.platform
        )
    plan = planned.plan
    assert plan is not None
    first = {name: memory.found for name, memory in own_kernels.items()}
    copies = {name: original for name, original, *_ in plan.clones}
    differing = [
        name
        for name, memory in kernels.items()
        if first.get(copies.get(name, name), memory.found) != memory.found
    ]
    simulated = [
        name for name, pattern in plan.kernels.items() if first.get(name, pattern) != pattern
    ]
    steered = {*plan.holds, *plan.aliases} & kernels.keys()
    return KernelsRow(
        case=case.name,
        planned=planned.planned,
        kernels=len(kernels),
        steered=len(steered),
        differing=tuple(differing),
        simulated=tuple(simulated),
        xla_bytes=assigned_bytes(own),
        bytes=assigned_bytes(planned),
        xla_seconds=run_seconds(module_from_bytes(final_module(own)), cost),
        seconds=run_seconds(module_from_bytes(final_module(planned)), cost),
    )


def _compiled(
    function: Any, arguments: tuple[Any, ...], target: str
) -> tuple[Any, Mapping[str, KernelMemory]]:
    """An executable for a platform, and the memory of its kernels."""
    lowered = function.lower(*arguments)
    with tempfile.TemporaryDirectory() as folder:
        compiled = lowered.compile(compiler_options=dump_options(Path(folder)))
        module, assignment = final_module(compiled), assignment_proto(compiled, target)
        if not assignment:
            module, assignment = dumped_assignment(Path(folder), module)
    return compiled, check_executable(module, target, assignment=assignment)


_SCANS = tuple(
    Case(model, batch_size, "adam", target)
    for target in ("cpu", "h100")
    for model in SCANS
    for batch_size in (1, 32)
)

_COLUMNS = (
    Column("step:", "case"),
    Column("kernels", "kernels"),
    Column("steered", "steered"),
    Column("differ", lambda row: len(row.differing)),
    Column("not as simulated", lambda row: len(row.simulated)),
    Column("XLA", "xla_bytes", megabytes),
    Column("planned", "bytes", megabytes),
    Column("run, µs", "xla_seconds", fixed(1, 1e6)),
    Column("planned %", "longer", percent),
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.out()
    define.cases("by default those of schedule, and scans")
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Compiles every case in both ways and prints a table."""
    options = shared.options(values)
    cases = parse_cases(values.cases) if values.cases else list(dict.fromkeys((*CASES, *_SCANS)))
    targets.prepare_environment("h100")  # both targets, in one process
    rows, failed = measured(
        cases,
        lambda case, _: measure(case, options),
        name=lambda case: case.name,
        said=lambda row: f"{row.kernels} kernels, {len(row.differing)} differ",
        out=values.out,
    )
    table_of(rows, _COLUMNS).print(shared.console())
    return 1 if failed or any(row.differing for row in rows) else 0
