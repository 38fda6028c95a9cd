"""Holds XLA's buffer assignment of one train step against the optimal packing.

Prints XLA's allocations, their fragmentation, what the optimal packing of the same values needs,
and the planned and the actual place of the largest tensors. With --noplan the step is compiled as
it is. Exit code 1 if two live tensors overlap in XLA's assignment.

With --baseline=FILE, a plan file or what `olla_xla analyze --json` wrote, the step is compiled
again and its total held against the one there: exit code 1, with the tensors that make the
difference, if it grew by more than --tolerance.

With --objection=FILE a case that the referee objected to is looked at again, and nothing compiled.
"""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

from absl import flags

import olla_xla
import olla_xla.targets as targets
from olla_xla.cli.commands import shared
from olla_xla.cli.report.allocations import allocation_table, tensor_table
from olla_xla.cli.report.differences import difference_line, difference_table
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.units import megabytes
from olla_xla.compile import objection
from olla_xla.compile.assignment import check_compiled, read_assignment
from olla_xla.errors import InputError, OllaError
from olla_xla.memory.analysis.difference import load_snapshot
from olla_xla.problem.options import PlanOptions
from olla_xla.tools import models
from olla_xla.tools.assignment_report import full_report
from olla_xla.tools.baseline import compare_with

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    shared.define_model(values)
    flags.DEFINE_enum(
        "target", "cpu", list(targets.TARGETS), "What to compile for.", flag_values=values
    )
    flags.DEFINE_boolean("plan", True, "Compile with our plan.", flag_values=values)
    flags.DEFINE_integer(
        "largest", 10, "Allocations and tensors to list.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_string(
        "objection", None, "File of a case that the referee objected to.", flag_values=values
    )
    flags.DEFINE_string(
        "baseline", None, "Plan or analysis file whose total must not grow.", flag_values=values
    )
    flags.DEFINE_string(
        "tolerance", "0%", 'How much the total may grow, such as "1%".', flag_values=values
    )
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Compiles, checks and prints."""
    if values.objection is not None:
        return _again(Path(values.objection))
    options = shared.options(values)
    if values.model is None:
        raise InputError("give --model=NAME; see olla_xla check --help")
    if values.baseline is not None:
        return _guard(values, options)
    targets.prepare_environment(values.target)

    target = targets.target(values.target)
    with Progress() as progress:
        progress.stage("loading, tracing, compiling")
        compiled = _compiled(values, target, dataclasses.asdict(options))
        plan = compiled.plan if values.plan else None
        progress.stage("checking XLA's buffer assignment")
        if plan is not None:
            check_compiled(compiled, plan)
        module, assignment = read_assignment(compiled)
        report = full_report(module, assignment, target.platform, plan)
    console = shared.console()
    allocation_table(report, values.largest).print(console)
    tensor_table(report, values.largest).print(console)
    console.print(
        f"total {megabytes(report.total_bytes, 2)} MB, lifetime peak "
        f"{megabytes(report.peak_bytes, 2)} MB; no two live tensors overlap among "
        f"{len(report.tensors):,} in {len(report.checked)} computations",
        markup=False,
    )
    return 0


def _guard(values: flags.FlagValues, options: PlanOptions) -> int:
    """Holds the step's total against a baseline's; 1 if it grew by more than is tolerated."""
    tolerance = _share(values.tolerance)
    baseline = load_snapshot(values.baseline)
    if baseline is None:
        raise InputError(f"{values.baseline} is neither a plan nor an analysis file")
    targets.prepare_environment(values.target)
    target = targets.target(values.target)
    with Progress() as progress:
        progress.stage("loading JAX and the model")
        model = models.build(values.model, batch_size=values.batch_size, optimizer=values.optimizer)
        found = compare_with(baseline, model, target, options, progress.stage)
    console = shared.console()
    console.print(difference_line(found), markup=False, soft_wrap=True)
    if found.bytes <= tolerance * baseline.total_bytes:
        return 0
    difference_table(found, values.largest).print(console)
    return 1


def _share(text: str) -> float:
    """A tolerance such as "1%" or "0.01" as a part of one. Raises InputError."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise InputError(f"--tolerance={text} is not a part of a total, such as 1%")
    return share


def _again(path: Path) -> int:
    """Asks the referee about a case once more; CheckError if it still objects."""
    objection.load(path).check()
    shared.console().print(f"the referee has no objection to the case in {path}", markup=False)
    return 0


def _compiled(values: flags.FlagValues, target: Any, settings: dict[str, Any]) -> Any:
    """The executable of the step, planned or not."""
    import jax

    model = models.build(values.model, batch_size=values.batch_size, optimizer=values.optimizer)
    arguments = target.place(model.arguments)
    with models.tracing(model.name):
        if not values.plan:
            plain = jax.jit(model.step, **model.jit_options).lower(*arguments)
            return plain.compile()
        planned = olla_xla.plan(model.step, **settings, **model.jit_options).lower(*arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", olla_xla.PlanWarning)  # raised below
        compiled = planned.compile()
    if compiled.plan is None:
        raise OllaError(f"planning failed: {compiled.reason}")
    return compiled
