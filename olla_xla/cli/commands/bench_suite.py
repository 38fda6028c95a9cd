"""Plans of dumped train steps: a folder of modules as XLA had them before its pipeline, a row each.

Every dump (HLO text or proto, StableHLO, also gzipped; whole or partitioned) is compiled by XLA's
own pipeline for --target, by default for an H100 that need not be there, and planned: by default,
and within each of --overheads. Totals are XLA's of what it compiled, in MB of a device; times of a
step are predicted as by olla_xla pareto; a first call is XLA's compile with the planning in its
midst, by a planner that is loaded already. Where XLA does not compile a dump, a line says why.
XLA's own modules are in xla/tools/benchmarks/hlo of its sources.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from absl import flags

from olla_xla import targets
from olla_xla.bench import suite as bench
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.suite import suite_notes, suite_table
from olla_xla.errors import InputError

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("folder", None, "Where the dumps are.", flag_values=values)
    flags.DEFINE_list(
        "dumps", [], "Parts of file names, one of which a dump must have; all without it.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_enum(
        "target", "h100", list(targets.TARGETS), "What to compile for.", flag_values=values
    )
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    shared.define_overheads(values, "0.05,0.1,0.35")
    shared.define_format(values)
    shared.define_limits(values)
    values.set_default("time_limit", None)  # as the defaults have it


def run(values: flags.FlagValues) -> int:
    """Plans every dump and prints a table; 1 if a plan of one that XLA compiles fails."""
    if values.folder is None:
        raise InputError("give --folder=FOLDER; see olla_xla bench suite --help")
    overheads, options = shared.overheads(values), shared.options(values)
    paths = bench.dumps(Path(values.folder), values.dumps)
    if values.out is not None and not Path(values.out).absolute().parent.is_dir():
        raise InputError(f"cannot write {values.out}: there is no such folder")
    targets.prepare_environment(values.target)
    rows = []
    with Progress() as progress:
        for path in paths:
            rows.append(bench.suite_row(path, values.target, overheads, options, progress.stage))
            # A dump takes minutes: what is there already is kept.
            if values.out is not None:
                text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
                shared.write_text(values.out, f"{text}\n")
    shared.print_table(values, suite_table(rows, overheads, values.target))
    for line in suite_notes(rows):
        print(line)
    return 1 if any(row.trouble for row in rows) else 0
