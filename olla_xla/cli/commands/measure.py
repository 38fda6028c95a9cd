"""Runs a model's step planned and unplanned on this machine's CPU or GPU and compares them.

Each runs in a fresh process, from the same seed. Compares every output of every step bit for bit,
the bytes that XLA assigned, the peak of memory that was in use, and the median step time. With
--memory_budget or --max_overhead it also gives the step time that recomputation adds, predicted and
measured; for that the plan is run in turns with XLA's own executable.

With --target=gpu the first GPU that JAX finds runs both, with autotuning off and with deterministic
kernels. With another target, such as h100, the step is only planned and compiled for it, and
nothing is measured. Exit code 1 if an output differs, 2 if --target=gpu finds no GPU.
"""

from absl import flags

import olla_xla.targets as targets
from hlo.backend import platform
from olla_xla.cli.commands import shared
from olla_xla.cli.flags import Flags
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, change, megabytes, percent
from olla_xla.errors import InputError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.tools.measure.processes import gpu_kind, measure
from olla_xla.tools.measure.records import Comparison, Measured, Recomputation, RunRequest
from olla_xla.tools.step import plan_model
from olla_xla.version import to_install


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla measure` in `values`."""
    shared.define_model(values)
    define = Flags(values)
    cards = [name for name, kind in targets.TARGETS.items() if not platform(kind).is_host]
    about = "Device to run on (cpu, gpu), or a GPU or TPU for which the step is only compiled."
    define.one_of("target", "cpu", ["cpu", "gpu", *cards], about)
    define.whole("steps", 10, "Number of steps that each process runs.", least=2)
    define.whole(
        "turns",
        40,
        "If the plan recomputes values: number of steps timed with the plan, and as many without "
        "it, run alternately.",
        least=2,
    )
    shared.define_recomputation(values)
    shared.define_placement(values)
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Measures the step and prints the comparison; for a card that is not here it only compiles.
    Returns the exit code: 1 if an output differs, else 0. Raises InputError if no model is given,
    or with --target=gpu if JAX finds no GPU.
    """
    options = shared.options(values)
    if values.model is None:
        raise InputError("give --model=NAME; see olla_xla measure --help")
    if not platform(targets.TARGETS.get(values.target, "cpu")).is_host:
        return _compile_only(values, options)
    device = gpu_kind() if values.target == "gpu" else "cpu"
    if not device:
        raise InputError(
            "JAX finds no GPU on this machine; --target=gpu needs an NVIDIA GPU and JAX's CUDA "
            f"plugin, {to_install('cuda13')}; --target=h100 compiles without a GPU"
        )
    request = RunRequest(
        model=values.model,
        batch_size=values.batch_size,
        optimizer=values.optimizer,
        steps=values.steps,
        planned=True,
        platform=values.target,
        options=options,
    )
    with Progress() as progress:
        comparison = measure(request, progress.stage, values.turns)
    title = f"{request.model}, batch {request.batch_size}, {request.optimizer}, {device}"
    console = shared.console()
    measured_table(comparison, title).print(console)
    memory_table(comparison).print(console)
    if comparison.recomputation is not None:
        recomputation_table(comparison.recomputation).print(console)
    console.print(measured_verdict(comparison), markup=False)
    return 1 if comparison.difference else 0


def _compile_only(values: flags.FlagValues, options: PlanOptions) -> int:
    """Plans and compiles for a card that is not here; prints total bytes by XLA. Returns 0."""
    with Progress() as progress:
        model, target = shared.loaded_model(values, progress)
        result = plan_model(
            model, target, options, stage=progress.stage, progress=progress, compare=False
        )
    unmeasured_table(result.plan, model.titled(target.kind)).print(shared.console())
    print(f"Nothing was measured: for --target={values.target} the step is only compiled.")
    return 0


def measured_table(comparison: Comparison, title: str) -> Table:
    """Returns a table of measured memory (MB) and step time (ms), by XLA's order and planned."""
    ours, theirs = comparison.planned, comparison.unplanned
    rows = [
        _sizes("XLA's total, assigned", theirs.assigned_bytes, ours.assigned_bytes),
        _sizes("resident over the steps", theirs.steps_peak_bytes, ours.steps_peak_bytes),
        _sizes("resident, whole process", theirs.process_peak_bytes, ours.process_peak_bytes),
    ]
    if theirs.device_peak_bytes is not None or ours.device_peak_bytes is not None:
        rows.append(_sizes("peak on the device", theirs.device_peak_bytes, ours.device_peak_bytes))
    rows.append(
        (
            "median step",
            f"{_step(theirs):.1f} ms",
            f"{_step(ours):.1f} ms",
            f"ratio {comparison.time_ratio:.3f}",
        )
    )
    return Table((":", "XLA's order", "planned", ":"), rows, title)


def memory_table(comparison: Comparison) -> Table:
    """Returns a table of predicted, assigned and measured totals in MB, a row for each order."""
    ours, theirs = comparison.planned, comparison.unplanned
    rows = []
    for name, one, predicted in (
        ("XLA's order", theirs, ours.xla_predicted_bytes),
        ("planned", ours, ours.predicted_bytes),
    ):
        measured = one.measured_bytes
        rows.append(
            (
                name,
                megabytes(predicted),
                megabytes(one.assigned_bytes),
                "not measured" if measured is None else megabytes(measured),
                megabytes(one.arguments_bytes),
                megabytes(one.profiled_bytes),
            )
        )
    headings = (":", "predicted", "assigned", "measured", "of it arguments", "profiler")
    return Table(headings, rows, "Memory, MB")


def unmeasured_table(plan: Plan, title: str) -> Table:
    """Returns a table of predicted and assigned totals in MB of a step that was only compiled."""
    rows = [
        ("XLA's order", plan.xla_predicted_bytes, plan.xla_bytes),
        ("planned", plan.predicted_bytes, plan.assigned_bytes),
    ]
    cells = [(name, megabytes(p), megabytes(a), "not measured") for name, p, a in rows]
    return Table((":", "predicted", "assigned", "measured"), cells, f"{title}, MB")


def recomputation_table(found: Recomputation) -> Table:
    """Returns a table that compares XLA's order with a plan that recomputes: MB, ms, % more."""
    rows = []
    for name, one in (("XLA's order", found.kept), ("planned, with recomputation", found.again)):
        first = one is found.kept
        rows.append(
            (
                name,
                megabytes(one.assigned_bytes),
                *prediction(one.predicted_seconds, one.seconds),
                "" if first else percent(found.planned, 1),
                "" if first else percent(found.predicted, 1),
                "" if first else percent(found.overhead, 1),
                "" if first else " to ".join(percent(end, 1) for end in found.interval),
            )
        )
    title = f"{len(found.again.step_seconds)} steps with recomputation alternate with steps without"
    headings = (
        *(":", "assigned", "pred. ms", "meas. ms", "err. %"),
        *("plan + %", "pred. + %", "meas. + %", "95 %"),
    )
    return Table(headings, rows, title)


def prediction(predicted: float | None, measured: float) -> tuple[str, str, str]:
    """Formats a predicted and a measured time, in seconds: (ms, ms, percent of error).
    Without a prediction the first and the last are "-".
    """
    if not predicted:
        return "-", f"{1e3 * measured:.1f}", "-"
    error = percent(predicted / measured - 1, 1)
    return f"{1e3 * predicted:.1f}", f"{1e3 * measured:.1f}", error


def _sizes(label: str, theirs: int | None, ours: int | None) -> tuple[str, str, str, str]:
    grown = "" if not theirs or ours is None else change(ours / theirs - 1)
    return label, f"{megabytes(theirs)} MB", f"{megabytes(ours)} MB", grown


def _step(measured: Measured) -> float:
    """Returns the median time of a step in milliseconds, as one process measured it."""
    return 1e3 * measured.seconds


def measured_verdict(comparison: Comparison) -> str:
    """Returns a line on a measurement: whether outputs are equal, and what is recomputed.
    It also says if no plan was in use, or compiling is in the figures.
    """
    ours = comparison.planned
    steps, leaves = len(ours.digests), len(ours.leaves)
    if comparison.difference:
        line = f"NOT identical: {comparison.difference}."
    else:
        line = f"Measured: both runs gave bit-identical outputs ({leaves} in {steps} steps)."
    if ours.clones or ours.stacks:
        again = "instruction is" if ours.clones == 1 else "instructions are"
        line += f" {ours.clones} {again} computed again" if ours.clones else ""
        line += " and" if ours.clones and ours.stacks else ""
        line += f" {ours.stacks} scan residuals are recomputed" if ours.stacks else ""
        line += f"; the predicted added time is {percent(ours.overhead, 1)} %"
        if recomputation := comparison.recomputation:
            line += f", the measured added time is {percent(recomputation.overhead, 1)} %"
        line += "."
    if not ours.planned:
        line += f" No plan was used: {ours.reason}. Both processes ran XLA's own order, so"
        line += " differences in time and memory are noise."
    if not (ours.cached and comparison.unplanned.cached):
        line += " The whole-process figures include compiling."
    return line
