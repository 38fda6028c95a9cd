"""The fewest pieces, and the plan, with which a model's step fits a memory budget.

The part of the step that makes its largest values is run a piece at a time, as `olla_xla.fission`
does. The step is compiled for --target in 1, 2, 4, ... pieces until its total in XLA's own order
meets --memory_budget or falls no further. Then plans that recompute are tried with fewer pieces,
and taken if they meet the budget and are not predicted to be slower. Nothing is run. Exit code 2 if
nothing meets the budget.
"""

from __future__ import annotations

import dataclasses

from absl import flags

import olla_xla.targets as targets
from olla_xla.cli import document
from olla_xla.cli.commands import shared
from olla_xla.cli.report.pieces import fit_table, fit_verdict
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.planner.warm_up import loaded
from olla_xla.tools import models
from olla_xla.tools.fit import fit


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    shared.define_model(values)
    flags.DEFINE_enum(
        "target", "cpu", list(targets.TARGETS), "Device to compile for.", flag_values=values
    )
    shared.define_recomputation(values)
    shared.define_limits(values)
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Finds the fewest pieces, and prints what was tried and what was chosen. Returns 0."""
    options = shared.options(values)
    if values.model is None or options.budget_bytes is None:
        raise InputError("give --model=NAME and --memory_budget=BYTES; see olla_xla fit --help")
    targets.prepare_environment(values.target)
    with Progress() as progress:
        progress.stage("loading JAX, the model and the planner")
        target = targets.target(values.target)
        model = models.build(values.model, batch_size=values.batch_size, optimizer=values.optimizer)
        loaded()
        progress.stage("compiling in pieces")
        found = fit(model, target, options, progress)
    title = f"{model.name}, batch {model.batch_size}, {model.optimizer}, {target.name}"
    document.add(**dataclasses.asdict(found))
    shared.print_table(values, fit_table(found, title))
    print(fit_verdict(found, options.budget_bytes))
    return 0
