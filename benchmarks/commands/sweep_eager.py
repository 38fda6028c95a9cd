"""Plans unfused graphs, as a framework has them that runs operator by operator: a grid of models.

Nothing is compiled. What an eager framework's allocator reserves stands beside the arena of our
order and places, both predicted. Rows go to --out (CSV), which `figures --sweep` reads, and beside
it as JSON lines; a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from absl import flags

from benchmarks.papers.eager.cell import COLUMNS
from benchmarks.report.eager_sweep import eager_table
from olla_xla.cli.commands import sweep
from olla_xla.problem.options import parse_bytes
from olla_xla.tools.sweep.grid import Cell, cells
from olla_xla.tools.sweep.journal import Journal
from olla_xla.tools.sweep.local import run_local
from olla_xla.tools.sweep.process import run_process

_MODE = "eager"


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    sweep.define_shared_flags(values, "eager.csv")


def run(values: flags.FlagValues) -> int:
    """Runs what is missing, and prints the table."""
    grid = cells(
        sweep.model_names(values), values.batch_sizes, ["cpu"], values.optimizers, [_MODE],
        targets=["cpu"], known_modes=[_MODE],
    )  # fmt: skip
    journal = Journal(values.out, grid, sweep.settings(values), COLUMNS)
    return sweep.fill(journal, values, _rows, eager_table)


def _rows(values: flags.FlagValues, missing: list[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    return run_local(
        missing,
        sweep.settings(values),
        workers=values.workers,
        worker_bytes=parse_bytes(values.worker_memory, "worker_memory"),
        run=functools.partial(run_process, program="benchmarks.papers.eager.cell"),
    )
