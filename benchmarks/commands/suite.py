"""Plans of dumped train steps: a folder of modules as XLA had them before its pipeline, a row each.

Every dump (HLO text or proto, StableHLO, also gzipped; whole or partitioned) is compiled by XLA's
own pipeline for --target, by default for an H100 that need not be there, and planned: by default,
and within each of --overheads. Totals are XLA's of what it compiled, in MB of a device; times of a
step are predicted as by olla_xla pareto; a first call is XLA's compile with the planning inside
it, by a planner that is loaded already. Where XLA does not compile a dump, a line says why.
XLA's own modules are in xla/tools/benchmarks/hlo of its sources.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from absl import flags

from benchmarks import suite as bench
from benchmarks.commands import planned_rows
from benchmarks.driver import Flags
from olla_xla import targets
from olla_xla.cli.commands import shared
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.text("folder", None, "Where the dumps are.")
    define.names("dumps", [], "Parts of file names, one of which a dump must have; all without it.")
    planned_rows.define_flags(values)


def run(values: flags.FlagValues) -> int:
    """Plans every dump and prints a table; 1 if a plan of one that XLA compiles fails."""
    if values.folder is None:
        raise InputError("give --folder=FOLDER; see python -m benchmarks suite --help")
    overheads, options = shared.overheads(values), shared.options(values)
    paths = bench.dumps(Path(values.folder), values.dumps)
    targets.prepare_environment(values.target)

    def row(path: Path, progress: Callable[[str], None]) -> bench.SuiteRow:
        return bench.suite_row(path, values.target, overheads, options, progress)

    return planned_rows.run(values, [functools.partial(row, path) for path in paths])
