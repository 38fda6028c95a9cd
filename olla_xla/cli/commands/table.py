"""Plans every combination of --models, --batch_sizes, --optimizers and --targets.

A row for each: XLA's assigned total, that of its memory-optimized scheduler (CPU), of the planned
order, the gain, the lower bound, the lifetime gap, the assignment loss, how far both totals were
from their predictions, and the seconds of planning. With --out each row is also written as a line
of JSON as soon as it is known. Exit code 1 if a row failed.
"""

from __future__ import annotations

from absl import flags

import olla_xla.targets as targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.matrix import matrix_summary, matrix_table
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.tools.table import cells, row_json, rows

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    for name, default, text in (
        ("models", "resnet50,vgg11,efficientnet_b0,gpt", "Model names."),
        ("batch_sizes", "1,4", "Examples in a batch."),
        ("optimizers", "adam,momentum", "The models' optimizers."),
        ("targets", "cpu", f"What to plan for, of {', '.join(targets.TARGETS)}."),
    ):
        flags.DEFINE_list(name, default, text, flag_values=values)
    flags.DEFINE_string("out", None, "File for the rows, JSON lines.", flag_values=values)
    shared.define_format(values)
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Plans row by row and prints the table."""
    options = shared.options(values)
    for name in values.targets:
        if name not in targets.TARGETS:
            raise InputError(f"--targets: {name!r} is not one of {', '.join(targets.TARGETS)}")
        targets.prepare_environment(name)

    wanted = cells(values.models, values.batch_sizes, values.optimizers, values.targets)
    file = files.GrowingFile(values.out)
    done = []
    with Progress() as progress:
        for row in rows(wanted, options, progress.stage, progress):
            done.append(row)
            file.add(row_json(row))
    shared.print_table(values, matrix_table(done))
    console = shared.console()
    for line in matrix_summary(done):
        console.print(line, markup=False, soft_wrap=True)
    return 1 if any(row.error for row in done) else 0
