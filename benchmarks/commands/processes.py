"""Plans steps of several processes on this machine's CPU, and has things go wrong in one of them.

All must run the plan or none, with jit's results, and no job may hang; else the exit code is 1.
"""

from __future__ import annotations

import dataclasses
import json

from absl import flags

from benchmarks.report.together import together_table
from benchmarks.together.cases import CASES, parse_cases
from benchmarks.together.job import run_cases
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list("cases", None, "Names of cases; all by default.", flag_values=values)
    flags.DEFINE_list("processes", ["2"], "Of a job, several.", flag_values=values)
    flags.DEFINE_integer("runs", 1, "Of each case.", 1, flag_values=values)
    flags.DEFINE_float("patience", 5.0, "Seconds to wait for others.", 0.1, flag_values=values)
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Runs the cases and prints what came of them."""
    files.check_writable(values.out)
    cases = parse_cases(values.cases or list(CASES))
    try:
        counts = [int(text) for text in values.processes]
    except ValueError as error:
        raise InputError(f"--processes={','.join(values.processes)}: give 2 or 2,4") from error
    if min(counts) < 2:
        raise InputError("--processes must be 2 or more")
    limits = dataclasses.asdict(shared.options(values))
    options = {name: limits[name] for name in ("time_limit", "step_limit", "seed")}
    rows = []
    with Progress() as progress:
        for count in counts:
            for row in run_cases(cases, count, values.runs, values.patience, options):
                rows.append(row)
                progress.stage(f"{row.case} in {count} processes ({len(rows)} done)")
    together_table(rows).print(shared.console())
    if values.out is not None:
        text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
        files.write_text(values.out, text + "\n")
    return int(any(row.wrong for row in rows))
