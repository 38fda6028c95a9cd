"""Runs a model's step planned and unplanned on this machine's CPU or GPU and compares them.

Each runs in a fresh process, from the same seed. Compares every output of every step bit for bit,
the bytes that XLA assigned, the peak of memory that was in use, and the median step time. With
--memory_budget or --max_overhead it also gives the step time that recomputation adds, predicted and
measured; for that the plan is run in turns with XLA's own executable.

With --target=gpu the first GPU that JAX finds runs both, with autotuning off and with deterministic
kernels. With another target, such as h100, the step is only planned and compiled for it, and
nothing is measured. Exit code 1 if an output differs, 2 if --target=gpu finds no GPU.
"""

from __future__ import annotations

from absl import flags

import olla_xla.targets as targets
from hlo.backend import platform
from olla_xla.cli.commands import shared
from olla_xla.cli.report.measured import (
    measured_table,
    measured_verdict,
    memory_table,
    recomputation_table,
    unmeasured_table,
)
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.problem.options import PlanOptions
from olla_xla.tools import models
from olla_xla.tools.measure.processes import gpu_kind, measure
from olla_xla.tools.measure.records import RunRequest
from olla_xla.tools.step import plan_model
from olla_xla.version import to_install


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla measure`."""
    shared.define_model(values)
    flags.DEFINE_enum(
        "target",
        "cpu",
        [
            "cpu",
            "gpu",
            *(name for name, kind in targets.TARGETS.items() if not platform(kind).is_host),
        ],
        "Device to run on (cpu, gpu), or a card for which to compile only.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "steps", 10, "Steps that each process runs.", lower_bound=2, flag_values=values
    )
    flags.DEFINE_integer(
        "turns",
        40,
        "If the plan recomputes: steps to time, with the plan and XLA's own executable in turns.",
        lower_bound=2,
        flag_values=values,
    )
    shared.define_recomputation(values)
    shared.define_placement(values)
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Measures the step and prints the comparison; for a card that is not here it only compiles.

    Returns:
      The exit code: 1 if an output differs.

    Raises:
      InputError: no model is given, or --target=gpu and JAX finds no GPU.
    """
    options = shared.options(values)
    if values.model is None:
        raise InputError("give --model=NAME; see olla_xla measure --help")
    if not platform(targets.TARGETS.get(values.target, "cpu")).is_host:
        return _compile_only(values, options)
    device = gpu_kind() if values.target == "gpu" else "cpu"
    if not device:
        raise InputError(
            "not measured: target=gpu, but JAX finds no GPU here; this needs an NVIDIA GPU and "
            f"JAX's CUDA plugin, {to_install('cuda13')}; --target=h100 compiles without a card"
        )
    request = RunRequest(
        model=values.model,
        batch_size=values.batch_size,
        optimizer=values.optimizer,
        steps=values.steps,
        planned=True,
        platform=values.target,
        time_limit=options.time_limit,
        step_limit=options.step_limit,
        seed=options.seed,
        memory_budget=options.memory_budget,
        max_overhead=options.max_overhead,
        loops=options.loops,
        collectives=options.collectives,
        placement=options.placement,
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
    """Plans and compiles for a card that is not here; prints totals that were not measured."""
    targets.prepare_environment(values.target)
    with Progress() as progress:
        progress.stage("loading JAX and the model")
        target = targets.target(values.target)
        model = models.build(values.model, batch_size=values.batch_size, optimizer=values.optimizer)
        result = plan_model(
            model, target, options, stage=progress.stage, progress=progress, compare=False
        )
    title = f"{values.model}, batch {values.batch_size}, {values.optimizer}, {target.kind}"
    unmeasured_table(result.plan, title).print(shared.console())
    print(f"Not measured: nothing runs for a target that is not there ({values.target}).")
    return 0
