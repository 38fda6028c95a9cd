"""Runs a model's step planned and unplanned on this machine's CPU and compares them.

Each runs in a fresh process, from the same seed. Compares every output of every step bit for bit,
the peak resident memory, and the median step time. With --memory_budget or --max_overhead, what
computing things again adds to the step time, predicted and measured: the plan is run in turns with
the same plan without recomputation. Exit code 1 if an output differs.
"""

from __future__ import annotations

from absl import flags

from olla_xla.bench.measure.processes import measure
from olla_xla.bench.measure.records import Request
from olla_xla.cli.commands import shared
from olla_xla.cli.report.measured import measured_table, measured_verdict, recomputation_table
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    shared.define_model(values)
    flags.DEFINE_integer("steps", 10, "Steps to run.", lower_bound=2, flag_values=values)
    flags.DEFINE_integer(
        "turns",
        40,
        "Steps of the plan with and without recomputation, run in turns.",
        lower_bound=2,
        flag_values=values,
    )
    shared.define_recomputation(values)
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Measures and prints."""
    options = shared.options(values)
    if values.model is None:
        raise InputError("give --model=NAME; see olla_xla measure --help")
    request = Request(
        model=values.model,
        batch_size=values.batch_size,
        optimizer=values.optimizer,
        steps=values.steps,
        planned=True,
        time_limit=values.time_limit,
        step_limit=options.step_limit,
        seed=options.seed,
        memory_budget=options.memory_budget,
        max_overhead=options.max_overhead,
    )
    with Progress() as progress:
        comparison = measure(request, progress.stage, values.turns)
    title = f"{request.model}, batch {request.batch_size}, {request.optimizer}, cpu"
    console = shared.console()
    measured_table(comparison, title).print(console)
    if comparison.recomputation is not None:
        recomputation_table(comparison.recomputation).print(console)
    console.print(measured_verdict(comparison), markup=False)
    return 1 if comparison.difference else 0
