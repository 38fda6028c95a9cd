"""Plans train steps over eight devices of this CPU, where they run, or of an H100 target.

Results must be jit's bit for bit. Collectives must keep their order, and transfers what hides them;
the exit code is 1 otherwise.
"""

from __future__ import annotations

import dataclasses

from absl import flags

from benchmarks.driver import Column, Flags, fixed, known, table_of, write_json
from benchmarks.sharded.job import run_steps
from benchmarks.sharded.steps import STEPS, Sizes
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import megabytes, percent
from olla_xla.targets.target import TARGETS

_COLUMNS = (
    Column("target:", "target"),
    Column("step:", "step"),
    Column("XLA", "xla_bytes", megabytes),
    Column("planned", "bytes", megabytes),
    Column("saved %", lambda row: percent(1 - row.bytes / row.xla_bytes, 1)),
    Column("same bits", "same", {True: "yes", False: "NO"}.__getitem__),
    Column("collectives", "collectives"),
    Column("moved", "moved"),
    Column("starts", "starts"),
    Column("hidden µs", "hidden_seconds", fixed(0, 1e6)),
    Column("planned µs", "planned_hidden_seconds", fixed(0, 1e6)),
    Column("hiding nothing", lambda row: row.least_overlap_bytes or None, megabytes),
    Column(
        "for µs",
        lambda row: row.least_overlap_seconds if row.least_overlap_bytes else None,
        fixed(0, 1e6),
    ),
    Column("message:", lambda row: row.wrong or row.reason),
)
_TITLE = (
    "eight devices; assigned, MB of 2^20 bytes a device; hidden: predicted, of work between starts "
    "and their dones; hiding nothing: predicted, if that were given up"
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names("steps", None, "Names of steps; all by default.")
    define.names("targets", ["cpu"], f"Of {', '.join(TARGETS)}.")
    for name, default in dataclasses.asdict(Sizes()).items():
        define.whole(name, default, "Of the model.", least=1)
    define.out()
    shared.define_limits(values)
    shared.define_recomputation(values)
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Plans the steps and prints the table."""
    files.check_writable(values.out)
    sizes = Sizes(values.layers, values.width, values.batch, values.length)
    options = dataclasses.asdict(shared.options(values))
    rows = []
    with Progress() as progress:
        for target in known("targets", values.targets, TARGETS):
            for row in run_steps(values.steps or list(STEPS), target, sizes, options):
                rows.append(row)
                progress.stage(f"{row.step} on {target}")
    shared.print_table(values, table_of(rows, _COLUMNS, _TITLE))
    write_json(values.out, rows)
    return int(any(row.wrong for row in rows))
