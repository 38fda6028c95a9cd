"""Plans steps of several processes on this machine's CPU, and has things go wrong in one of them.

All must run the plan or none, with jit's results, and no job may hang; else the exit code is 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from absl import flags

from benchmarks.driver import Flags, whole_numbers, write_json
from benchmarks.together.cases import CASES, parse_cases
from benchmarks.together.job import Row, run_cases
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names("cases", None, "Names of cases; all by default.")
    define.names("processes", ["2"], "Of a job, several.")
    define.whole("runs", 1, "Of each case.", least=1)
    define.real("patience", 5.0, "Seconds to wait for others.", least=0.1)
    define.out()
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Runs the cases and prints what came of them."""
    files.check_writable(values.out)
    cases = parse_cases(values.cases or list(CASES))
    limits = dataclasses.asdict(shared.options(values))
    options = {name: limits[name] for name in ("time_limit", "step_limit", "seed")}
    rows = []
    with Progress() as progress:
        for count in whole_numbers("processes", values.processes, 2):
            for row in run_cases(cases, count, values.runs, values.patience, options):
                rows.append(row)
                progress.stage(f"{row.case} in {count} processes ({len(rows)} done)")
    _table(rows).print(shared.console())
    write_json(values.out, rows)
    return int(any(row.wrong for row in rows))


def _table(rows: Sequence[Row]) -> Table:
    """A line for each case and number of processes, over all its runs; sizes in bytes."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.case, row.processes), []).append(row)
    lines = []
    for (case, processes), runs in groups.items():
        wrong = [row.wrong for row in runs if row.wrong]
        lines.append(
            (
                case,
                str(processes),
                f"{len(runs) - len(wrong)} of {len(runs)}",
                f"{sum(row.planned == row.processes for row in runs)}",
                f"{max(row.xla_bytes for row in runs):,}",
                f"{max(row.bytes for row in runs):,}",
                f"{max(row.seconds for row in runs):.1f}",
                wrong[0] if wrong else runs[-1].message,
            )
        )
    return Table(
        ("case:", "processes", "right", "planned", "XLA", "runs", "most s", "message:"),
        lines,
        "all or none run the plan; bytes of a device, assigned",
    )
