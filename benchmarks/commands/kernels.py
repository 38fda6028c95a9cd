"""Compares kernels of planned steps with those of XLA's own order: which arrays share memory.

Kernels whose rounding may depend on it must have the same arrays in one place in both. Exit code 1
if one has not, or a case fails.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from absl import flags
from rich.table import Table

from benchmarks import kernels as bench
from benchmarks.schedule import CASES, SCANS, Case, parse_cases
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import OllaError

_SCANS = tuple(
    Case(model, batch_size, "adam", target)
    for target in ("cpu", "h100")
    for model in SCANS
    for batch_size in (1, 32)
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_list(
        "cases", None,
        "model/batch_size/optimizer/target, several; by default those of schedule, and scans.",
        flag_values=values,
    )  # fmt: skip
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Compiles every case in both ways and prints a table."""
    options = shared.options(values)
    cases = parse_cases(values.cases) if values.cases else dict.fromkeys((*CASES, *_SCANS))
    files.check_writable(values.out)
    targets.prepare_environment("h100")  # both targets, in one process
    rows, failed = [], 0
    with Progress() as progress:
        for case in cases:
            progress.stage(case.name)
            try:
                rows.append(bench.measure(case, options))
            except OllaError as error:
                failed += 1
                print(f"{case.name}: {error}", file=sys.stderr)
                continue
            row = rows[-1]
            progress(f"{case.name}: {row.kernels} kernels, {len(row.differing)} differ")
    table = Table(
        "step",
        "kernels",
        "steered",
        "differ",
        "not as simulated",
        "XLA",
        "planned",
        "run, µs",
        "planned %",
    )
    for row in rows:
        counts = (row.kernels, row.steered, len(row.differing), len(row.simulated))
        totals = (f"{b / 2**20:,.1f}" for b in (row.xla_bytes, row.bytes))
        run = f"{1e6 * row.xla_seconds:,.1f}", f"{row.longer:+.2%}".removesuffix("%")
        table.add_row(row.case, *map(str, counts), *totals, *run)
    shared.console().print(table)
    if values.out is not None:
        data = [dataclasses.asdict(row) for row in rows]
        files.write_text(values.out, json.dumps(data, indent=1) + "\n")
    return 1 if failed or any(row.differing for row in rows) else 0
