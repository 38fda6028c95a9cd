"""Steps of other people's trainers: their own remat policies by hand, and plans of each.

For every trainer and policy, XLA's own schedule of the step is compiled for --target, and plans of
it: by default, and within each of --overheads. Totals are XLA's of what it compiled, in MB of a
device; times of a step are predicted as by olla_xla pareto. MaxText takes more of its settings as
in --trainers=maxtext:model_name=llama2-7b:per_device_batch_size=4. The trainers are installed by
uv run --no-dev --group trainers.
"""

from __future__ import annotations

import dataclasses
import json

from absl import flags

from olla_xla import targets
from olla_xla.bench.trainers import TRAINERS, parse_trainer
from olla_xla.bench.trainers.rows import trainer_row
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.suite import suite_notes, suite_table
from olla_xla.errors import InputError

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list(
        "trainers", list(TRAINERS), "Trainers, each with settings after colons.", flag_values=values
    )
    flags.DEFINE_list("policies", [], "Policies; all of each without it.", flag_values=values)
    flags.DEFINE_enum(
        "target", "h100", list(targets.TARGETS), "What to compile for.", flag_values=values
    )
    flags.DEFINE_bool(
        "collectives", False, "Whether plans may run collectives again.", flag_values=values
    )
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    shared.define_overheads(values, "0.05,0.1,0.35")
    shared.define_format(values)
    shared.define_limits(values)
    values.set_default("time_limit", None)  # as the defaults have it


def run(values: flags.FlagValues) -> int:
    """Plans every step and prints a table; 1 if a plan of one that XLA compiles fails."""
    overheads, options = shared.overheads(values), shared.options(values)
    chosen = [parse_trainer(text) for text in values.trainers]
    known = {policy for trainer, _ in chosen for policy in trainer.policies}
    if unknown := [policy for policy in values.policies if policy not in known]:
        raise InputError(f"--policies: {unknown[0]!r} is none of {', '.join(sorted(known))}")
    rows = []
    with Progress() as progress:
        for trainer, settings in chosen:
            for policy in trainer.policies:
                if values.policies and policy not in values.policies:
                    continue
                rows.append(
                    trainer_row(
                        trainer,
                        settings,
                        policy,
                        values.target,
                        overheads,
                        options,
                        progress.stage,
                    )
                )
                # A row takes minutes: what is there already is kept.
                if values.out is not None:
                    text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
                    shared.write_text(values.out, f"{text}\n")
    shared.print_table(values, suite_table(rows, overheads, values.target))
    for line in suite_notes(rows):
        print(line)
    return 1 if any(row.trouble for row in rows) else 0
