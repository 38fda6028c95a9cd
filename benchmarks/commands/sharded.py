"""Plans train steps over eight devices of this CPU, where they run, or of an H100 target.

Results must be jit's bit for bit. Collectives must keep their order, and transfers what hides them;
the exit code is 1 otherwise.
"""

from __future__ import annotations

import dataclasses
import json

from absl import flags

from benchmarks.report.sharded import sharded_table
from benchmarks.sharded.job import run_steps
from benchmarks.sharded.steps import STEPS, Sizes
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.targets.target import TARGETS


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list("steps", None, "Names of steps; all by default.", flag_values=values)
    flags.DEFINE_list("targets", ["cpu"], f"Of {', '.join(TARGETS)}.", flag_values=values)
    for name, default in dataclasses.asdict(Sizes()).items():
        flags.DEFINE_integer(name, default, "Of the model.", 1, flag_values=values)
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    shared.define_limits(values)
    shared.define_recomputation(values)
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Plans the steps and prints the table."""
    files.check_writable(values.out)
    if unknown := [name for name in values.targets if name not in TARGETS]:
        raise InputError(f"--targets: {unknown[0]!r} is not known; use {', '.join(TARGETS)}")
    sizes = Sizes(values.layers, values.width, values.batch, values.length)
    options = dataclasses.asdict(shared.options(values))
    rows = []
    with Progress() as progress:
        for target in values.targets:
            for row in run_steps(values.steps or list(STEPS), target, sizes, options):
                rows.append(row)
                progress.stage(f"{row.step} on {target}")
    shared.print_table(values, sharded_table(rows))
    if values.out is not None:
        text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
        files.write_text(values.out, text + "\n")
    return int(any(row.wrong for row in rows))
