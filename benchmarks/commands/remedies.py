"""Asks of 35 small steps what would help their memory, and tries each remedy that is named.

Exit code 1 where a remedy is missing, where one is named that was not expected, or where it gives
another total than was said.
"""

from __future__ import annotations

import dataclasses

from absl import flags

from benchmarks.remedies import tried
from benchmarks.remedy_steps import STEPS
from benchmarks.report.remedies import remedies_line, remedies_table
from olla_xla.cli import document
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress

_WITHIN = 0.05
"""Part of a total by which what is said may be off."""


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list("steps", None, "Names of steps; all by default.", flag_values=values)
    flags.DEFINE_float("time_limit", 30.0, "Of each plan, in seconds.", 0.1, flag_values=values)
    flags.DEFINE_integer("step_limit", 5000, "Of each plan.", 1, flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Tries every step and prints the table."""
    rows = []
    with Progress() as progress:
        for number, step in enumerate(STEPS, 1):
            if values.steps and step.name not in values.steps:
                continue
            progress.stage(f"{step.name} ({number} of {len(STEPS)})")
            rows += tried(step, time_limit=values.time_limit, step_limit=values.step_limit)
    document.add(rows=[dataclasses.asdict(row) for row in rows])
    console = shared.console()
    remedies_table(rows).print(console)
    console.print(remedies_line(rows, _WITHIN), markup=False)
    wrong = [r for r in rows if r.helped != bool(r.setting) or abs(r.error) > _WITHIN]
    return 1 if wrong else 0
