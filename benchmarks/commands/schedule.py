"""Plans a fixed set of real train steps and prints gap, total, loss and seconds of each.

Graphs are made on the spot by compiling each model for each target. Exit code 1 if a plan is above
XLA's own order, or a case fails.
"""

from __future__ import annotations

import json
import sys

from absl import flags

from benchmarks import schedule as bench
from benchmarks.report.benches import schedule_summary, schedule_table
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import OllaError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_list(
        "cases", None, "model/batch_size/optimizer/target, several; all by default.",
        flag_values=values,
    )  # fmt: skip
    shared.define_limits(values)
    values.set_default("time_limit", 60.0)


def run(values: flags.FlagValues) -> int:
    """Measures every case and prints the table."""
    options = shared.options(values)
    cases = bench.parse_cases(values.cases) if values.cases else bench.CASES
    files.check_writable(values.out)
    targets.prepare_environment("h100")  # both targets, in one process
    rows, failed = [], 0
    with Progress() as progress:
        progress.stage("loading")
        bench.warm_up(options)
        for number, case in enumerate(cases, 1):
            progress.stage(f"{case.name} ({number} of {len(cases)})")
            try:
                rows.append(bench.measure(case, options))
            except OllaError as error:
                failed += 1
                print(f"{case.name}: {error}", file=sys.stderr)
                continue
            progress(f"{case.name}: gap {100 * rows[-1].gap:.2f} %, {rows[-1].seconds:.1f} s")
    console = shared.console()
    schedule_table(rows).print(console)
    summary = bench.summarise(rows)
    console.print(schedule_summary(summary), markup=False)
    if values.out is not None:
        files.write_text(values.out, json.dumps(bench.as_json(rows), indent=1) + "\n")
    return 1 if failed or not summary.never_worse else 0
