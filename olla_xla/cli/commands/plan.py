"""Plans the memory of one train step.

With --model the step is traced, planned and compiled for --target, and the bytes that XLA assigns
to its own order and to the planned one are printed.

With --hlo that is done for a dumped module: HLO text or proto, or StableHLO, also gzipped. XLA may
have dumped it before its pipeline or after its partitioner (`_spmd`); it is compiled for as many
devices as it says. On a GPU target, custom calls of libraries that are not installed are compiled
as if they were. A module that has a schedule already, and any module with --nocompile, is only
planned: its own order is the order of the file, nothing is compiled, and totals are predicted.

With --plan nothing is searched: the plan of a file that --plan_out wrote is applied. A plan of
another program is refused.
"""

import dataclasses
import json
import time
from pathlib import Path

from absl import flags
from rich.console import Console

import olla_xla.targets as targets
from hlo.backend import PLATFORMS
from hlo.buffer_assignment import BufferAssignment
from hlo.dumps.lowered import LoweredModule
from hlo.module import Module, module_from_bytes
from olla_xla.analysis.memory_view import MemoryView, memory_view
from olla_xla.analysis.remedies import remedy
from olla_xla.analysis.remedy import Remedy
from olla_xla.analysis.terminal import of_devices
from olla_xla.cli import document
from olla_xla.cli.commands import shared
from olla_xla.cli.flags import Flags
from olla_xla.cli.report import plans
from olla_xla.cli.report.progress import Progress
from olla_xla.compile import loading
from olla_xla.errors import InputError, PlanFileError
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.planner import apply_plan, plan_module
from olla_xla.planner.warm_up import loaded
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan, dumps
from olla_xla.tools.assignment_report import allocation_rows
from olla_xla.tools.residual_rows import residual_rows
from olla_xla.tools.step import PlannedModel, plan_dump, plan_model, plan_progress


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla plan` in `values`."""
    define = Flags(values)
    shared.define_model(values)
    shared.define_hlo(values)
    shared.define_compile(values)
    shared.define_target(values, "Device to plan for.")
    shared.define_recomputation(values)
    define.text(
        "host_budget",
        None,
        'With --model: most host memory that scan residuals may take, such as "64GiB".',
    )
    define.text("plan", None, "Plan file to apply in place of a search.")
    define.text("plan_out", None, "File to write the plan to; --plan applies such files.")
    shared.define_largest(values, 10, "Number of tensors at the peak to list, largest first.", 0)
    about = "List XLA's memory allocations and their unused bytes, beside an optimal packing."
    define.switch("assignment", False, about)
    shared.define_advice(values)
    shared.define_limits(values)
    shared.define_method(values)
    shared.define_placement(values)


KEEPS_GARBAGE = True


def run(values: flags.FlagValues) -> int:
    """Plans or applies a plan, prints the result and writes the file of --plan_out. Returns 0.
    Raises InputError if not exactly one of --model and --hlo is given, or --host_budget with --hlo;
    PlanFileError if a plan file cannot be read or written.
    """
    options = shared.options(values)
    plan_out = values.plan_out
    if (values.model is None) == (values.hlo is None):
        raise InputError("give either --model=NAME or --hlo=FILE; see olla_xla plan --help")
    if values.host_budget is not None and values.model is None:
        raise InputError("--host_budget works with --model only, not with a dumped module (--hlo)")
    # Fails before planning, which may take minutes.
    if plan_out is not None and not Path(plan_out).absolute().parent.is_dir():
        raise PlanFileError(f"cannot write {plan_out}: there is no such folder; create it first")
    given = None if values["plan"].value is None else Plan.load(values["plan"].value)
    targets.prepare_environment(values.target)
    make = _plan_hlo if values.model is None else _plan_model
    plan = make(values, options, given)
    document.add(plan=json.loads(dumps(plan))["plan"])
    if plan_out is not None:
        plan.save(plan_out)
    return 0


def _plan_model(values: flags.FlagValues, options: PlanOptions, given: Plan | None) -> Plan:
    with Progress() as progress:
        model, target = shared.loaded_model(values, progress)
        result = plan_model(
            model,
            target,
            options,
            stage=progress.stage,
            progress=progress,
            given=given,
            host_budget=values.host_budget,
        )
        view = _view(scheduled_module(result.module), target.platform, result.assignment)
        other = _remedy(result, view, options, values, given, progress)
    return _print_compiled(result, view, model.titled(target.name), values, other)


def _view(module: Module, platform: str, assignment: BufferAssignment | None = None) -> MemoryView:
    """Returns what is in memory under a module's order, by XLA's assignment or else simulated."""
    return memory_view(PlannedModule(module, platform), "planned", assignment)


def _remedy(
    result: PlannedModel,
    view: MemoryView,
    options: PlanOptions,
    values: flags.FlagValues,
    given: Plan | None,
    progress: Progress,
) -> Remedy | None:
    """Compiles the step with other ways to save memory; returns what each saves.
    None with --noadvice, with a plan that was given, or where the plan leaves little to save.
    """
    if not values.advice or given is not None or result.program is None:
        return None
    progress.stage("trying other ways to save memory")
    with plan_progress(progress.stage):
        return remedy(result.program, result.module, view, options, result.plan)


def _print_compiled(
    result: PlannedModel,
    view: MemoryView,
    title: str,
    values: flags.FlagValues,
    other: Remedy | None,
) -> Plan:
    """Prints tables and lines for a plan that was compiled, adds the remedy to `--json`; returns
    the plan.
    """
    console = shared.console()
    table = plans.plan_table(
        result.plan,
        assigned=True,
        memory_optimized_bytes=result.memory_optimized_bytes,
        all_seconds=result.seconds,
        title=title + of_devices(result.devices),
        elsewhere=result.assignment.elsewhere,
        constant_bytes=view.constant_bytes,
    )
    table.print(console)
    line = plans.verdict(
        result.plan, planned=result.planned, reason=result.reason, refused=result.refused
    )
    console.print(line, markup=False)
    if result.host:
        console.print(f"{result.host}.", markup=False)
    if result.ran_again is not None:
        console.print(f"In its own order {result.ran_again}.", markup=False)
    if other is not None:
        console.print(other.sentence(), markup=False)
        document.add(remedy=other.to_dict())
    _print_recomputation(console, result.plan, result.scheduled, values.largest)
    console.print(plans.check_line(result.report), markup=False)
    if values.assignment:
        with Progress() as progress:
            progress.stage("choosing new addresses for the values in XLA's allocations")
            rows = allocation_rows(result.module, result.assignment, result.plan.target)
        plans.allocation_table(rows, values.largest).print(console)
    _print_peak(console, view, values.largest)
    _print_proofs(console, result.plan)
    return result.plan


def _plan_lowered(
    module: LoweredModule, values: flags.FlagValues, options: PlanOptions, given: Plan | None
) -> Plan:
    """Plans a dumped module without a schedule, which XLA's pipeline compiles; prints results."""
    with Progress() as progress:
        progress.stage("loading JAX and the planner")
        target = targets.target(values.target, module.devices, values.topology)
        loaded()
        result = plan_dump(
            module, target, options, stage=progress.stage, progress=progress, given=given
        )
        view = _view(scheduled_module(result.module), target.platform, result.assignment)
        other = _remedy(result, view, options, values, given, progress)
    title = f"{module.name} ({values['hlo'].value}), {target.name}"
    return _print_compiled(result, view, title, values, other)


def _plan_hlo(values: flags.FlagValues, options: PlanOptions, given: Plan | None) -> Plan:
    lowered = shared.lowered_module(values)
    if lowered is not None:
        return _plan_lowered(lowered, values, options, given)
    started = time.monotonic()
    platform = targets.TARGETS[values.target]
    with Progress() as progress:
        progress.stage(f"reading {values['hlo'].value}")
        read = shared.scheduled_module(values, values.hlo)  # kept: nothing below reads it anew
        module, view = read.data, scheduled_module(read.data)
        progress.stage(loading.what())
        loaded()
        progress.stage("planning")
        if given is None:
            measured = PLATFORMS[platform].has_measured_rates
            kind = "" if measured else targets.card(values.target).kind
            plan = plan_module(
                module, options, target=platform, progress=progress, device_kind=kind
            )
        else:
            plan = dataclasses.replace(
                given, assigned_bytes=None
            )  # totals of this dump are predicted
        changed = plan.predicted_bytes < plan.xla_predicted_bytes
        if given or (changed and values.largest):
            view = scheduled_module(apply_plan(module, plan))
    console = shared.console()
    table = plans.plan_table(
        plan,
        own_order="order in the file",
        assigned=False,
        memory_optimized_bytes=None,
        all_seconds=time.monotonic() - started,
        title=f"{plan.module} ({values['hlo'].value}), {values['target'].value}",
    )
    table.print(console)
    console.print(plans.verdict(plan, planned=changed, reason=""), markup=False)
    _print_recomputation(console, plan, module, values.largest)
    if values.largest:
        _print_peak(console, _view(view, platform), values.largest)
    _print_proofs(console, plan)
    return plan


def _print_recomputation(console: Console, plan: Plan, module: bytes, count: int) -> None:
    """Prints what is recomputed, its predicted cost, and the `count` largest scan residuals."""
    if plan.step_seconds:
        console.print(plans.clones_line(plan), markup=False)
    if plan.loops and count:
        rows = residual_rows(module_from_bytes(module), plan)
        plans.stacks_table(rows, count, plan.least_stack_bytes).print(console)


def _print_proofs(console: Console, plan: Plan) -> None:
    """Prints what integer programs proved about the orders; nothing if none was used."""
    if plan.proofs:
        console.print()
        plans.proofs_table(plan.proofs).print(console)


def _print_peak(console: Console, view: MemoryView, count: int) -> None:
    """Prints the `count` largest tensors at the peak of a scheduled module; nothing if it is 0."""
    if count:
        console.print()
        plans.peak_table(view, count).print(console)
