"""Steps of other people's trainers: their own remat policies by hand, and plans of each.

For every trainer and policy, XLA's own schedule of the step is compiled for --target, and plans of
it: by default, and within each of --overheads. Totals are XLA's of what it compiled, in MB of a
device; times of a step are predicted as by olla_xla pareto. MaxText takes more of its settings as
in --trainers=maxtext:model_name=llama2-7b:per_device_batch_size=4. The trainers are installed by
uv run --group trainers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from absl import flags

from benchmarks.commands import planned_rows
from benchmarks.driver import Flags
from benchmarks.suite import SuiteRow
from benchmarks.trainers import TRAINERS, Trainer, parse_trainer
from benchmarks.trainers.rows import trainer_row
from olla_xla.cli.commands import shared
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names("trainers", list(TRAINERS), "Trainers, each with settings after colons.")
    define.names("policies", [], "Policies; all of each without it.")
    define.switch("collectives", False, "Whether plans may run collectives again.")
    define.switch(
        "beside", False, "Plan the first policy also in the predicted time of each of the others."
    )
    define.text("host_budget", None, "Also plan with so much host memory, for each overhead.")
    planned_rows.define_flags(values)


def run(values: flags.FlagValues) -> int:
    """Plans every step and prints a table; 1 if a plan of one that XLA compiles fails."""
    chosen = [parse_trainer(text) for text in values.trainers]
    known = {policy for trainer, _ in chosen for policy in trainer.policies}
    if unknown := [policy for policy in values.policies if policy not in known]:
        raise InputError(f"--policies: {unknown[0]!r} is none of {', '.join(sorted(known))}")

    rows: list[Callable[[Callable[[str], None]], SuiteRow]] = []
    for trainer, settings in chosen:
        policies = [
            one for one in trainer.policies if not values.policies or one in values.policies
        ]
        seconds: dict[str, float] = {}
        # The first comes last: by then the predicted times of the others are known.
        for policy in reversed(policies):
            beside = values.beside and policy == policies[0]
            row = functools.partial(_row, values, trainer, settings, policy, seconds, beside)
            rows.append(row)
    return planned_rows.run(values, rows)


def _row(
    values: flags.FlagValues,
    trainer: Trainer,
    settings: dict[str, str],
    policy: str,
    seconds: dict[str, float],
    beside: bool,
    progress: Callable[[str], None],
) -> SuiteRow:
    """The row of one policy, whose predicted time is added to `seconds`."""
    overheads, options = shared.overheads(values), shared.options(values)
    among = seconds if beside else None
    found = trainer_row(
        trainer, settings, policy, values.target, overheads, options, progress, among,
        values.host_budget,
    )  # fmt: skip
    if found.xla_bytes is not None:
        seconds[policy] = found.step_seconds
    return found
