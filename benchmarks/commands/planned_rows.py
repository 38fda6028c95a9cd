"""Code shared by commands that compile others' steps and plan each in several ways."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

from absl import flags

from benchmarks.report.suite import suite_notes, suite_table
from benchmarks.suite import SuiteRow
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress


def define_flags(values: flags.FlagValues) -> None:
    """Defines --target, --out, --overheads, --format and limits."""
    flags.DEFINE_enum(
        "target", "h100", list(targets.TARGETS), "Device to compile for.", flag_values=values
    )
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    shared.define_overheads(values, "0.05,0.1,0.35")
    shared.define_format(values)
    shared.define_limits(values)
    values.set_default("time_limit", None)  # as the defaults have it


def run(
    values: flags.FlagValues, rows: Sequence[Callable[[Callable[[str], None]], SuiteRow]]
) -> int:
    """Makes every row and prints a table.

    Args:
      values: the flags.
      rows: functions that make a row each; their argument is called with a line at each stage.

    Returns:
      1 if a plan of a step that XLA compiles fails, else 0.
    """
    files.check_writable(values.out)
    found = []
    with Progress() as progress:
        for row in rows:
            found.append(row(progress.stage))
            # A row takes minutes: what is there already is kept.
            if values.out is not None:
                text = json.dumps([dataclasses.asdict(row) for row in found], indent=1)
                files.write_text(values.out, f"{text}\n")
    shared.print_table(values, suite_table(found, shared.overheads(values), values.target))
    for line in suite_notes(found):
        print(line)
    return 1 if any(row.trouble for row in found) else 0
