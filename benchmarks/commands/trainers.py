"""Steps of other people's trainers: their own remat policies by hand, and plans of each.

For every trainer and policy, XLA's own schedule of the step is compiled for --target, and plans of
it: by default, and within each of --overheads. Totals are XLA's of what it compiled, in MB of a
device; times of a step are predicted as by olla_xla pareto. MaxText takes more of its settings as
in --trainers=maxtext:model_name=llama2-7b:per_device_batch_size=4. The trainers are installed by
uv run --group trainers.
"""

from __future__ import annotations

from collections.abc import Callable

from absl import flags

from benchmarks.commands import planned_rows
from benchmarks.suite import SuiteRow
from benchmarks.trainers import TRAINERS, Trainer, parse_trainer
from benchmarks.trainers.rows import trainer_row
from olla_xla.cli.commands import shared
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list(
        "trainers", list(TRAINERS), "Trainers, each with settings after colons.", flag_values=values
    )
    flags.DEFINE_list("policies", [], "Policies; all of each without it.", flag_values=values)
    flags.DEFINE_bool(
        "collectives", False, "Whether plans may run collectives again.", flag_values=values
    )
    flags.DEFINE_bool(
        "beside",
        False,
        "Plan the first policy also in the predicted time of each of the others.",
        flag_values=values,
    )
    planned_rows.define_flags(values)


def run(values: flags.FlagValues) -> int:
    """Plans every step and prints a table; 1 if a plan of one that XLA compiles fails."""
    overheads, options = shared.overheads(values), shared.options(values)
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

            def row(
                progress: Callable[[str], None],
                trainer: Trainer = trainer,
                settings: dict[str, str] = settings,
                policy: str = policy,
                seconds: dict[str, float] = seconds,
                beside: bool = values.beside and policy == policies[0],
            ) -> SuiteRow:
                found = trainer_row(
                    trainer,
                    settings,
                    policy,
                    values.target,
                    overheads,
                    options,
                    progress,
                    seconds if beside else None,
                )
                if found.xla_bytes is not None:
                    seconds[policy] = found.step_seconds
                return found

            rows.append(row)
    return planned_rows.run(values, rows)
