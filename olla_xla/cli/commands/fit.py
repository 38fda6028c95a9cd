"""The fewest pieces, and the plan, with which a model's step fits a memory budget.

The part of the step that makes its largest values is run a piece at a time, as `olla_xla.fission`
does. The step is compiled for --target in 1, 2, 4, ... pieces until its total in XLA's own order
meets --memory_budget or falls no further. Then plans that recompute are tried with fewer pieces,
and taken if they meet the budget and are not predicted to be slower. Nothing is run. Exit code 2 if
nothing meets the budget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from absl import flags

import olla_xla.targets as targets
from olla_xla.cli import document
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes, percent
from olla_xla.compile import decorator
from olla_xla.errors import InputError
from olla_xla.pieces.in_pieces import FissionChoice
from olla_xla.planner.warm_up import loaded
from olla_xla.problem.options import PlanOptions
from olla_xla.targets.target import Target
from olla_xla.tools.models import BuiltModel, tracing
from olla_xla.tools.step import plan_progress


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla fit` in `values`."""
    shared.define_model(values)
    shared.define_target(values)
    shared.define_recomputation(values)
    shared.define_limits(values)
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Finds the fewest pieces in which a step meets the budget; prints the trials. Returns 0.
    What makes its largest values runs a piece at a time. Raises BudgetError if nothing meets it.
    """
    options = shared.options(values)
    if values.model is None or options.budget_bytes is None:
        raise InputError("give --model=NAME and --memory_budget=BYTES; see olla_xla fit --help")
    targets.prepare_environment(values.target)
    with Progress() as progress:
        progress.stage("loading JAX, the model and the planner")
        target = targets.target(values.target)
        model = shared.built_model(values)
        loaded()
        progress.stage("compiling in pieces")
        choice = fit(model, target, options, progress)
    document.add(**dataclasses.asdict(choice))
    shared.print_table(values, fit_table(choice, model.titled(target.name)))
    print(fit_verdict(choice, options.budget_bytes))
    return 0


def fit(
    model: BuiltModel, target: Target, options: PlanOptions, progress: Callable[[str], None]
) -> FissionChoice:
    """Chooses in how few pieces a model's step fits, as `olla_xla.plan(fission=True)` does.
    What makes the step's largest values runs a piece at a time.

    Args:
      model: the step. target: what to compile it for. options: with a budget.
      progress: called with one line at each improvement.

    Raises BudgetError if no number of pieces and no recomputation meets the budget, with what
    forbids it; InputError if the step cannot be traced.
    """
    arguments = target.place(model.arguments)
    settings = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    with tracing(model.name), plan_progress(progress):
        function = decorator.plan(model.step, fission=True, **settings, **model.jit_options)
        return function.choice(*arguments)


def fit_table(found: FissionChoice, title: str) -> Table:
    """Returns the table of `olla_xla fit`, a row for each number of pieces that was tried.
    XLA's total and the plan's ("-" if not planned), predicted time in % above the first row's in
    XLA's order, and "chosen" in one row.
    """
    whole = found.trials[0].xla_seconds
    rows = [
        (
            f"{trial.pieces:,}",
            megabytes(trial.xla_bytes),
            "-" if trial.planned_bytes is None else megabytes(trial.planned_bytes),
            f"{percent(trial.seconds / whole - 1, 1)} %",
            "chosen" if trial.pieces == found.pieces else "",
        )
        for trial in found.trials
    ]
    return Table(("pieces", "XLA, MB", "plan, MB", "added time", ""), rows, title)


def fit_verdict(found: FissionChoice, budget: int) -> str:
    """Says in how many pieces the step meets `budget` bytes, and which parts of it are cut."""
    chosen = next(trial for trial in found.trials if trial.pieces == found.pieces)
    meets = f"{megabytes(chosen.planned_bytes or chosen.xla_bytes)} of {megabytes(budget)} MB"
    if found.plan is None:
        why = f" It cannot be cut into pieces: {found.reason}." if found.reason else ""
        return f"The step meets the budget without being cut into pieces: it takes {meets}.{why}"
    regions = "\n".join(map(str, found.plan.regions))
    return f"In {found.pieces} pieces the step meets the budget: it takes {meets}.\n{regions}"
