"""Plans train steps of 1,000 to 100,000 operators and prints operators against seconds.

Exit code 1 if a case fails, takes more than 5 minutes or 8 GiB, or gets worse than its own order.
"""

from __future__ import annotations

import json
import sys

from absl import flags

from benchmarks import scale as bench
from benchmarks.report.solvers import scale_table
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError, OllaError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_list(
        "cases",
        None,
        "synthetic/LAYERS, lstm/TOKENS or lstm_xla/TOKENS, several.",
        flag_values=values,
    )
    shared.define_limits(values)
    values.set_default("time_limit", 120.0)


def run(values: flags.FlagValues) -> int:
    """Measures every case and prints the table."""
    options = shared.options(values)
    files.check_writable(values.out)
    rows, failed = [], 0
    with Progress() as progress:
        for case in values.cases or bench.CASES:
            progress.stage(case)
            try:
                rows.append(bench.measure(case, options))
            except InputError:
                raise
            except OllaError as error:
                failed += 1
                print(error, file=sys.stderr)
                continue
            progress(f"{case}: {rows[-1].operators:,} operators, {rows[-1].seconds:.1f} s")
    scale_table(rows).print(shared.console())
    if values.out is not None:
        files.write_text(values.out, json.dumps(bench.as_json(rows), indent=1) + "\n")
    return 1 if failed or not all(map(bench.within_limits, rows)) else 0
